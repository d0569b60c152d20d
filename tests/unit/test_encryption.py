"""What is encrypted is decrypted by the browser's side, fits, and fails in one way."""

import base64

import http_ece
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from pushops.delivery.encryption import BadKeysError, PayloadTooLargeError, encrypt
from pushops.delivery.message import PAYLOAD_MAX
from pushops.subscriptions.base64url import decode, encode

# RFC 8291, appendix A.
PLAINTEXT = b"When I grow up, I want to be a watermelon"
SENDER_PRIVATE = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
RECEIVER_PUBLIC = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
RECEIVER_PRIVATE = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
BODY = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz"
    "AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


def private_key(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(decode(text), "big"), ec.SECP256R1())


RECEIVER = private_key(RECEIVER_PRIVATE)


def decrypted(body: bytes) -> bytes:
    found: bytes = http_ece.decrypt(body, private_key=RECEIVER, auth_secret=decode(AUTH), version="aes128gcm")
    return found


def test_the_library_makes_the_vector_of_rfc_8291() -> None:
    made = http_ece.encrypt(
        PLAINTEXT,
        salt=decode(SALT),
        private_key=private_key(SENDER_PRIVATE),
        dh=decode(RECEIVER_PUBLIC),
        auth_secret=decode(AUTH),
        version="aes128gcm",
    )
    assert made == decode(BODY)
    assert decrypted(decode(BODY)) == PLAINTEXT


@settings(max_examples=20)
@given(st.binary(min_size=1, max_size=PAYLOAD_MAX))
def test_what_we_encrypt_is_decrypted_by_the_receiver(payload: bytes) -> None:
    assert decrypted(encrypt(RECEIVER_PUBLIC, decode(AUTH), payload)) == payload


def test_no_two_bodies_share_a_salt_or_a_key() -> None:
    bodies = [encrypt(RECEIVER_PUBLIC, decode(AUTH), PLAINTEXT) for _ in range(3)]
    assert len({body[:16] for body in bodies}) == len({body[21:86] for body in bodies}) == 3


def test_the_longest_payload_makes_4096_bytes_in_one_record() -> None:
    body = encrypt(RECEIVER_PUBLIC, decode(AUTH), b"x" * 3_993)
    assert len(body) == 4_096
    assert body[16:20] == (4_096).to_bytes(4, "big")


@pytest.mark.parametrize("length", [0, 3_994, 4_080, 100_000])
def test_a_payload_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(PayloadTooLargeError, match=str(length) if length else "none"):
        encrypt(RECEIVER_PUBLIC, decode(AUTH), b"x" * length)


@settings(max_examples=200)
@given(st.one_of(st.text(), st.binary(max_size=70).map(encode)), st.binary(max_size=20))
def test_what_is_not_a_point_and_a_secret_is_bad_keys_whatever_it_is(p256dh: str, auth: bytes) -> None:
    with pytest.raises(BadKeysError, match=r"^expected keys that encrypt, got \w+$"):
        encrypt(p256dh, auth, PLAINTEXT)


OFF_CURVE = encode(b"\x04" + b"\x01" * 64)
COMPRESSED = encode(RECEIVER.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint))


@pytest.mark.parametrize("p256dh", ["", "A", "not base64!", OFF_CURVE, COMPRESSED, RECEIVER_PUBLIC[:-4], "é"])
def test_a_key_that_is_no_point_is_a_bad_key(p256dh: str) -> None:
    with pytest.raises(BadKeysError):
        encrypt(p256dh, decode(AUTH), PLAINTEXT)


@pytest.mark.parametrize("length", [0, 8, 15, 17, 32])
def test_a_secret_of_another_length_is_a_bad_key(length: int) -> None:
    with pytest.raises(BadKeysError):
        encrypt(RECEIVER_PUBLIC, b"a" * length, PLAINTEXT)


@pytest.mark.parametrize("keys", [(None, b"a" * 16), (RECEIVER_PUBLIC, None), (17, b"a" * 16)])
def test_what_is_no_key_at_all_is_a_bad_key(keys: tuple[str, bytes]) -> None:
    with pytest.raises(BadKeysError):
        encrypt(*keys, PLAINTEXT)


def test_a_padded_key_in_the_other_alphabet_encrypts() -> None:
    standard = base64.b64encode(decode(RECEIVER_PUBLIC)).decode()
    assert decrypted(encrypt(standard, decode(AUTH), PLAINTEXT)) == PLAINTEXT
