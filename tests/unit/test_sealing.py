"""Sealed values open in their own place, under their own version, and nowhere else."""

import pickle

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from pushops.errors import PushopsError
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.sealing import KeyRing, SealError, TamperedSealError, UnknownSealKeyError

ONE, TWO = b"\x01" * 32, b"\x02" * 32
RING = KeyRing({1: ONE, 2: TWO}, current=2)
ROW = endpoint_hash("https://fcm.googleapis.com/fcm/send/a")
OTHER_ROW = endpoint_hash("https://fcm.googleapis.com/fcm/send/b")
AUTH = b"0123456789abcdef"


@settings(deadline=None)
@given(st.binary(max_size=5000), st.binary(min_size=1, max_size=64), st.sampled_from(["auth", "payload"]))
def test_what_is_sealed_opens_to_the_same(plaintext: bytes, bound_to: bytes, purpose: str) -> None:
    sealed = RING.seal(purpose, bound_to, plaintext)
    assert RING.open(purpose, bound_to, sealed.version, sealed.blob) == plaintext


def test_the_current_version_seals_and_old_ones_open() -> None:
    old = KeyRing({1: ONE}, current=1).seal("auth", ROW, AUTH)
    assert old.version == 1
    assert RING.seal("auth", ROW, AUTH).version == RING.current == 2
    assert RING.open("auth", ROW, old.version, old.blob) == AUTH


def test_a_version_that_is_named_seals_in_the_place_of_the_current_one() -> None:
    sealed = RING.seal("auth", ROW, AUTH, version=1)
    assert (sealed.version, RING.open("auth", ROW, 1, sealed.blob)) == (1, AUTH)
    with pytest.raises(UnknownSealKeyError, match=r"\[1, 2\], got 3"):
        RING.seal("auth", ROW, AUTH, version=3)


def test_nonce_ciphertext_and_tag_stand_together_under_the_derived_key() -> None:
    """Written out once more, so that a change of the format cannot go unseen: stored rows must open for years."""
    sealed = RING.seal("auth", ROW, AUTH)
    key = HKDF(SHA256(), 32, None, b"pushops.seal.v1\x00auth\x00" + ROW).derive(TWO)
    assert len(sealed.blob) == 12 + len(AUTH) + 16
    assert AESGCM(key).decrypt(sealed.blob[:12], sealed.blob[12:], ROW) == AUTH


def test_sealing_twice_gives_two_blobs() -> None:
    assert RING.seal("auth", ROW, AUTH).blob != RING.seal("auth", ROW, AUTH).blob


def test_a_value_moved_to_another_row_does_not_open() -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    with pytest.raises(TamperedSealError):
        RING.open("auth", OTHER_ROW, sealed.version, sealed.blob)


def test_a_value_moved_to_another_purpose_does_not_open() -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    with pytest.raises(TamperedSealError):
        RING.open("payload", ROW, sealed.version, sealed.blob)


def test_a_value_under_another_version_does_not_open() -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    with pytest.raises(TamperedSealError):
        RING.open("auth", ROW, 1, sealed.blob)


@settings(deadline=None)
@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    bit = data.draw(st.integers(0, len(sealed.blob) * 8 - 1))
    flipped = bytearray(sealed.blob)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(TamperedSealError):
        RING.open("auth", ROW, sealed.version, bytes(flipped))


@pytest.mark.parametrize("length", [0, 1, 12, 27, 28, 43])
def test_a_cut_value_is_noticed(length: int) -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    with pytest.raises(TamperedSealError):
        RING.open("auth", ROW, sealed.version, sealed.blob[:length])


def test_a_missing_key_version_has_its_own_error_that_names_it() -> None:
    with pytest.raises(UnknownSealKeyError, match=r"\[1, 2\], got 3") as raised:
        RING.open("auth", ROW, 3, RING.seal("auth", ROW, AUTH).blob)
    assert raised.value.label == "no_data_key"


@pytest.mark.parametrize(("version", "kind"), [(2, TamperedSealError), (9, UnknownSealKeyError)])
def test_errors_carry_no_material_and_travel_through_pickle(version: int, kind: type[SealError]) -> None:
    blob = RING.seal("auth", ROW, AUTH).blob
    with pytest.raises(kind) as raised:
        RING.open("auth", OTHER_ROW, version, blob)
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301  # what Celery does
    assert type(again) is kind
    assert isinstance(again, PushopsError)
    assert str(again) == str(raised.value)
    for material in (blob, ROW, OTHER_ROW, AUTH, ONE, TWO):
        assert material.hex() not in str(again)
        assert repr(material) not in str(again)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_neither_ring_nor_sealed_value_shows_material() -> None:
    sealed = RING.seal("auth", ROW, AUTH)
    assert repr(RING) == "KeyRing(versions=(1, 2), current=2)"
    assert repr(sealed) == "Sealed(version=2)"


def test_a_key_ring_does_not_leave_its_process() -> None:
    with pytest.raises(TypeError, match="stays in the memory"):
        pickle.dumps(RING)


def test_a_later_change_of_the_mapping_does_not_reach_the_ring() -> None:
    keys = {1: ONE}
    ring = KeyRing(keys, current=1)
    sealed = ring.seal("auth", ROW, AUTH)
    keys[1] = TWO
    assert ring.open("auth", ROW, sealed.version, sealed.blob) == AUTH


@pytest.mark.parametrize(
    ("keys", "current", "fault"),
    [
        ({}, 1, r"one of \[\], got 1"),
        ({1: ONE}, 2, r"one of \[1\], got 2"),
        ({0: ONE}, 0, "version from 1 to 32767, got 0"),
        ({-1: ONE}, -1, "version from 1"),
        ({32768: ONE}, 32768, "version from 1"),
        ({True: ONE}, 1, "version from 1 to 32767, got True"),
        ({"1": ONE}, 1, "version from 1 to 32767, got '1'"),
        ({1: ONE[:31]}, 1, "seal key 1 to be 32 bytes, got 31"),
        ({1: ONE + b"x"}, 1, "seal key 1 to be 32 bytes, got 33"),
        ({1: ONE.decode()}, 1, "seal key 1 to be bytes, got str"),
        ({1: ONE, 2: ONE}, 2, "the same key twice"),
    ],
)
def test_keys_that_cannot_do_are_refused_with_what_was_expected(
    keys: dict[int, bytes],
    current: int,
    fault: str,
) -> None:
    with pytest.raises(ValueError, match=fault) as raised:
        KeyRing(keys, current)
    assert "\\x01" not in str(raised.value)


@pytest.mark.parametrize(("purpose", "bound_to"), [("", ROW), ("a\x00b", ROW), ("auth", b"")])
def test_a_seal_needs_a_purpose_and_something_to_bind_to(purpose: str, bound_to: bytes) -> None:
    with pytest.raises(ValueError, match="expected a purpose"):
        RING.seal(purpose, bound_to, AUTH)
