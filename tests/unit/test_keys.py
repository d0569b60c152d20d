"""Keys that operators make, and VAPID keys in every form that people keep them in."""

import base64
import re
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from py_vapid import Vapid02

from pushops.subscriptions.keys import (
    VapidKey,
    check_round_trip,
    generate_log_key,
    generate_seal_key,
    generate_vapid_key,
    load_vapid_key,
)

KEY = generate_vapid_key()
PKCS8 = KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
SEC1 = KEY.private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
PKCS8_DER = KEY.private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
SEC1_DER = KEY.private.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
# The block that `openssl ecparam -genkey` writes first.
EC_PARAMETERS = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"


def swap_header(pem: str) -> str:
    if "EC PRIVATE" in pem:
        return pem.replace("EC PRIVATE", "PRIVATE")
    return pem.replace("PRIVATE KEY", "EC PRIVATE KEY")


def standard_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def url_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(KEY.private_text, id="B39-raw-base64url"),
        pytest.param(KEY.private_text + "=", id="B39-raw-padded"),
        pytest.param(f" {KEY.private_text}\n", id="B39-raw-with-a-line-end"),
        pytest.param(f'"{KEY.private_text}"', id="B39-raw-in-quotes"),
        pytest.param(
            standard_base64(KEY.private.private_numbers().private_value.to_bytes(32, "big")), id="B39-raw-standard"
        ),
        pytest.param(PKCS8, id="B39-pkcs8"),
        pytest.param(SEC1, id="B39-sec1"),
        pytest.param(swap_header(PKCS8), id="B39-pkcs8-under-the-ec-header"),
        pytest.param(swap_header(SEC1), id="B39-sec1-under-the-pkcs8-header"),
        pytest.param(PKCS8.replace("\n", "\\n"), id="B39-literal-line-ends"),
        pytest.param(SEC1.replace("\n", "\\r\\n"), id="B39-literal-crlf"),
        pytest.param(PKCS8.replace("\n", "\r\n"), id="B39-crlf"),
        pytest.param(PKCS8.replace("\n", ""), id="B39-one-line"),
        pytest.param(SEC1.replace("\n", " "), id="B39-one-line-with-spaces"),
        pytest.param(f'"{PKCS8}"', id="B39-pem-in-quotes"),
        pytest.param(EC_PARAMETERS + SEC1, id="B39-after-ec-parameters"),
        pytest.param(standard_base64(PKCS8_DER), id="B39-der-as-base64"),
        pytest.param(url_base64(SEC1_DER), id="B39-sec1-der-as-base64url"),
        pytest.param(PKCS8_DER, id="B39-der-bytes"),
        pytest.param(SEC1_DER, id="B39-sec1-der-bytes"),
        pytest.param(PKCS8.encode(), id="B39-pem-bytes"),
    ],
)
def test_a_vapid_key_loads_from_every_form_it_is_kept_in(text: str | bytes) -> None:
    loaded = load_vapid_key(text, public=KEY.public)
    assert loaded == KEY
    assert loaded.private_text == KEY.private_text


def other_curve() -> str:
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def rsa_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def ed25519_key() -> str:
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def encrypted_key() -> str:
    return KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")).decode()


def public_pem() -> str:
    return KEY.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def encrypted_under_a_plain_header() -> str:
    return encrypted_key().replace("ENCRYPTED ", "")


@pytest.mark.parametrize(
    "make",
    [
        other_curve,
        rsa_key,
        ed25519_key,
        encrypted_key,
        encrypted_under_a_plain_header,
        public_pem,
        lambda: KEY.public_text,
        lambda: KEY.private_text[:-2],
        lambda: PKCS8[: len(PKCS8) // 2],
        lambda: PKCS8.replace("MIGH", "MI\u2026H"),
        lambda: url_base64(bytes(32)),
        lambda: url_base64(b"\xff" * 32),
        lambda: "",
        lambda: "changeme",
        lambda: "\u00fc" * 43,
        lambda: b"\x30\x82",
        lambda: PKCS8_DER.replace(KEY.public, generate_vapid_key().public),
        lambda: SEC1_DER.replace(KEY.public, generate_vapid_key().public),
        lambda: b"\xff\xfe",
    ],
)
def test_what_is_no_vapid_key_is_refused_without_being_repeated(make: Callable[[], str | bytes]) -> None:
    text = make()
    with pytest.raises(ValueError, match="expected a P-256 private key") as raised:
        load_vapid_key(text)
    shown = str(raised.value)
    pieces = re.findall(r"[A-Za-z0-9_-]{12,}", text) if isinstance(text, str) else []
    assert not [piece for piece in pieces if piece in shown]
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_public_key_that_belongs_to_another_is_refused() -> None:
    with pytest.raises(ValueError, match="to belong to the private key"):
        load_vapid_key(KEY.private_text, public=generate_vapid_key().public)


def test_a_pair_whose_halves_do_not_belong_together_is_found_by_using_it() -> None:
    check_round_trip(KEY)
    with pytest.raises(ValueError, match="to verify its own signature"):
        check_round_trip(VapidKey(generate_vapid_key().public, KEY.private))


def test_a_loaded_key_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[VapidKey] = []
    monkeypatch.setattr("pushops.subscriptions.keys.check_round_trip", used.append)
    assert used == [load_vapid_key(KEY.private_text)]


def test_the_private_half_is_not_shown() -> None:
    assert KEY.private_text not in repr(KEY)
    assert "private" not in repr(KEY)


def test_the_public_half_is_a_point_as_browsers_take_it() -> None:
    assert len(KEY.public) == 65
    assert KEY.public[0] == 4
    assert re.fullmatch(r"[A-Za-z0-9_-]{87}", KEY.public_text)


def test_the_signing_library_takes_the_private_text() -> None:
    assert Vapid02.from_string(KEY.private_text).public_key.public_numbers() == (
        KEY.private.public_key().public_numbers()
    )


@pytest.mark.parametrize("generate", [generate_seal_key, generate_log_key])
def test_generated_keys_are_32_fresh_bytes_as_base64url(generate: Callable[[], str]) -> None:
    first, second = generate(), generate()
    assert first != second
    assert len(base64.urlsafe_b64decode(first + "=")) == 32
    assert "=" not in first
