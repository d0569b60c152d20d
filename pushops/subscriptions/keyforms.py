"""The forms that people keep keys in, and what they and their tools put around them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pushops.subscriptions import base64url

EXPECTED: Final = "expected a P-256 private key (PEM, DER, JWK, or 32 bytes as base64url, base64 or hex)"

_KEY_BYTES: Final = 32
_DER: Final = b"\x30"  # a sequence; also the digit 0, but no structure is all ASCII
# Either header may stand over either structure: some tools write PKCS#8 under "EC PRIVATE KEY", and libraries
# since stopped guessing. The structure says itself what it is, so only what stands between the lines counts.
_PEM: Final = re.compile(r"-----BEGIN (?:EC )?PRIVATE KEY-----([^-]*)-----END (?:EC )?PRIVATE KEY-----")
_HEX: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{64})")
# A JSON web key (RFC 7518, section 6.2), and what web-push and its ports print: the private half, then the public one.
_PRIVATE: Final = ("d", "privateKey", "private_key")
_PUBLIC: Final = ("publicKey", "public_key")


@dataclass(frozen=True, slots=True)
class Form:
    """A DER structure or a bare number; ``public`` is what stands beside it and nothing has compared with it yet."""

    raw: bytes = field(repr=False)
    public: bytes | None = None


def read_bytes(text: str) -> bytes:
    """A key of random bytes, from base64 in either alphabet or 64 hex digits; raises ValueError that shows nothing."""
    plain = _unwrapped(text)
    return bytes.fromhex(found[1]) if (found := _HEX.fullmatch(plain)) else base64url.decode(plain)


def read_form(text: str | bytes) -> Form:
    """What a private key is in, whatever wrapping it came in. Raises ValueError that says nothing of it."""
    if isinstance(text, bytes):
        if len(text) == _KEY_BYTES or (text.startswith(_DER) and not text.isascii()):
            return Form(text)
        text = text.decode("ascii", "replace")
    plain = _unwrapped(text)
    if plain.startswith("{"):
        return _read_json(plain)
    if found := _HEX.fullmatch(plain):
        return Form(bytes.fromhex(found[1]))
    return Form(_read_base64(plain, len(text)))


def _unwrapped(text: str) -> str:
    """Without what environment files, shells and editors put around and into it."""
    unfolded = text.removeprefix("\ufeff").replace("\\r", "").replace("\\n", "\n").strip()
    return unfolded.strip("\"'").strip()


def _read_base64(plain: str, length: int) -> bytes:
    found = _PEM.search(plain)
    if "-----" in plain and not found:
        raise ValueError(f"{EXPECTED}, got PEM of another kind")
    try:
        return base64url.decode("".join((found[1] if found else plain).split()))
    except base64url.Base64Error:
        raise ValueError(f"{EXPECTED}, got {length} characters that are not base64") from None


def _read_json(plain: str) -> Form:
    """A private half that lost its leading zeros is filled up where the public half stands beside it to be checked."""
    members = _members(plain)
    if members.get("kty", "EC") != "EC" or members.get("crv", "P-256") != "P-256":
        raise ValueError(f"{EXPECTED}, got a JSON web key of another kind")
    raw, public = _member(members, _PRIVATE), _public_half(members)
    if raw is None:
        raise ValueError(f"{EXPECTED}, got JSON without a private half ({', '.join(_PRIVATE)})")
    return Form(raw if public is None else raw.rjust(_KEY_BYTES, b"\x00"), public)


def _members(plain: str) -> Mapping[str, Any]:
    """Quotes may be escaped once more, where a shell or another file of settings stood between."""
    for text in (plain, plain.replace('\\"', '"')):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    raise ValueError(f"{EXPECTED}, got {len(plain)} characters that begin like JSON and are none")


def _public_half(members: Mapping[str, Any]) -> bytes | None:
    x, y = _member(members, ("x",)), _member(members, ("y",))
    if x is not None and y is not None:
        return b"\x04" + x.rjust(_KEY_BYTES, b"\x00") + y.rjust(_KEY_BYTES, b"\x00")
    return _member(members, _PUBLIC)


def _member(members: Mapping[str, Any], names: Sequence[str]) -> bytes | None:
    text = next((members[name] for name in names if isinstance(members.get(name), str)), None)
    try:
        return None if text is None else base64url.decode(text)
    except base64url.Base64Error:
        raise ValueError(f"{EXPECTED}, got JSON whose {' or '.join(names)} is not base64") from None
