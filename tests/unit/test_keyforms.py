"""A key loads from whatever form and wrapping it is kept in, and no error says anything of it."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from pushops.subscriptions import base64url
from pushops.subscriptions.keyforms import read_bytes
from pushops.subscriptions.keys import load_vapid_key
from tests.unit.test_keys import standard_base64, swap_header

ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
Key = ec.EllipticCurvePrivateKey


def scalar(key: Key) -> bytes:
    return key.private_numbers().private_value.to_bytes(32, "big")


def pem(key: Key, form: PrivateFormat) -> str:
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


def der(key: Key, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.DER, form, NoEncryption())


def number(value: int) -> str:
    return base64url.encode(value.to_bytes(32, "big"))


def stripped(value: int) -> str:
    """Without leading zero bytes, as tools write it that think in numbers."""
    return base64url.encode(value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))


def jwk(key: Key, spell: Callable[[int], str] = number, **more: Any) -> str:
    point = key.public_key().public_numbers()
    members = {"kty": "EC", "crv": "P-256", "x": spell(point.x), "y": spell(point.y)}
    return json.dumps({**members, "d": spell(key.private_numbers().private_value), **more})


def web_push(key: Key, spell: Callable[[int], str] = number) -> str:
    """What `web-push generate-vapid-keys --json` prints."""
    return json.dumps({"publicKey": public_of(key), "privateKey": spell(key.private_numbers().private_value)}, indent=2)


def public_of(key: Key) -> str:
    return load_vapid_key(scalar(key)).public_text


FORMS: Final[dict[str, Callable[[Key], str | bytes]]] = {
    "raw bytes": scalar,
    "base64url": lambda key: base64url.encode(scalar(key)),
    "base64": lambda key: standard_base64(scalar(key)),
    "hex": lambda key: scalar(key).hex(),
    "HEX": lambda key: scalar(key).hex().upper(),
    "0x": lambda key: f"0x{scalar(key).hex()}",
    "PKCS#8": lambda key: pem(key, PrivateFormat.PKCS8),
    "SEC1": lambda key: pem(key, PrivateFormat.TraditionalOpenSSL),
    "PKCS#8 under the EC header": lambda key: swap_header(pem(key, PrivateFormat.PKCS8)),
    "SEC1 under the other header": lambda key: swap_header(pem(key, PrivateFormat.TraditionalOpenSSL)),
    "PKCS#8 DER": lambda key: der(key, PrivateFormat.PKCS8),
    "SEC1 DER": lambda key: der(key, PrivateFormat.TraditionalOpenSSL),
    "PKCS#8 DER in base64": lambda key: standard_base64(der(key, PrivateFormat.PKCS8)),
    "SEC1 DER in base64url": lambda key: base64url.encode(der(key, PrivateFormat.TraditionalOpenSSL)),
    "JWK": jwk,
    "JWK with more members": lambda key: jwk(key, kid="2026-03", use="sig"),
    "JWK without leading zeros": lambda key: jwk(key, stripped),
    "web-push": web_push,
    "web-push without leading zeros": lambda key: web_push(key, stripped),
}
WRAPPINGS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "line end": lambda text: text + "\n",
    "CRLF": lambda text: text.replace("\n", "\r\n") + "\r\n",
    "double quotes": lambda text: f'"{text}"',
    "single quotes": lambda text: f"'{text}'",
    "quotes and a line end": lambda text: f'"{text}\n"\n',
    "literal line ends": lambda text: text.replace("\n", "\\n"),
    "literal CRLF in quotes": lambda text: '"{}"'.format(text.replace("\n", "\\r\\n")),
    "blanks around": lambda text: f"  {text}\t",
    "byte order mark": lambda text: f"\ufeff{text}",
}

keys = st.one_of(
    st.integers(1, ORDER - 1),
    st.integers(1, 2**240),  # leading zero bytes
    st.sampled_from([1, ORDER - 1, int.from_bytes(b"0" * 32), int.from_bytes(b"{" * 32)]),
).map(lambda value: ec.derive_private_key(value, ec.SECP256R1()))


@pytest.mark.parametrize("form", FORMS)
@given(key=keys, wrapping=st.sampled_from(sorted(WRAPPINGS)), as_bytes=st.booleans())
def test_a_key_loads_from_every_form_in_every_wrapping(form: str, key: Key, wrapping: str, as_bytes: bool) -> None:
    text = FORMS[form](key)
    if isinstance(text, str):
        text = WRAPPINGS[wrapping](text)
        text = text.encode("utf-8") if as_bytes and text.isascii() else text
    assert load_vapid_key(text).private_text == base64url.encode(scalar(key))


@given(keys, st.booleans())
def test_json_with_escaped_quotes_is_read(key: Key, of_web_push: bool) -> None:
    text = (web_push if of_web_push else jwk)(key).replace("\n", "").replace('"', '\\"')
    assert load_vapid_key(f'"{text}"').private_text == base64url.encode(scalar(key))


@pytest.mark.parametrize("make", [jwk, web_push])
def test_halves_that_do_not_belong_together_are_refused(make: Callable[[Key], str]) -> None:
    mine, other = (json.loads(make(ec.generate_private_key(ec.SECP256R1()))) for _ in range(2))
    mixed = {**other, **{name: mine[name] for name in ("d", "privateKey") if name in mine}}
    with pytest.raises(ValueError, match="to belong to the private key"):
        load_vapid_key(json.dumps(mixed))


WRONG: Final = {
    "of another curve": lambda text: text.replace("P-256", "P-384"),
    "of another kind": lambda text: text.replace('"EC"', '"OKP"'),
    "without a private half": lambda text: text.replace('"d"', '"e"'),
    "not base64": lambda text: text.replace('"d": "', '"d": "!'),
    "cut": lambda text: text[:-1],
    "a list": lambda text: f"[{text}]",
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_json_web_key_that_cannot_do_is_refused_without_being_repeated(change: Callable[[str], str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(ValueError, match="expected a P-256 private key") as raised:
        load_vapid_key(change(jwk(key)))
    assert base64url.encode(scalar(key)) not in str(raised.value)


@given(st.text(max_size=200) | st.binary(max_size=200).filter(lambda raw: len(raw) != 32))
def test_anything_else_is_a_value_error_that_shows_nothing(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="expected") as raised:
        load_vapid_key(text)
    shown = text if isinstance(text, str) else text.decode("latin-1")
    assert len(shown) < 12 or shown not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@given(st.binary(min_size=32, max_size=32), st.sampled_from(sorted(WRAPPINGS)))
def test_a_key_of_random_bytes_is_read_from_base64_and_hex(raw: bytes, wrapping: str) -> None:
    for text in (base64url.encode(raw), standard_base64(raw), raw.hex(), raw.hex().upper()):
        assert read_bytes(WRAPPINGS[wrapping](text)) == raw
