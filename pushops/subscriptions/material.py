"""Key material at the door: base64 text that must be a P-256 point or an auth secret, and nothing near it."""

from dataclasses import dataclass
from typing import Final

from pushops.subscriptions.base64url import Base64Error, decode
from pushops.subscriptions.rejection import Reason, describe, rejection, text_of

_POINT_BYTES: Final = 65
_AUTH_BYTES: Final = 16  # RFC 8291, section 3.2
# The longest of them has 88 characters: what is longer is not worth decoding.
_MAX_TEXT: Final = 128
# P-256 (SEC 2, section 2.4.2): y^2 = x^3 - 3x + b over the field of this order; its cofactor is 1.
_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_UNCOMPRESSED: Final = 4  # the first byte; no hybrid form (6, 7) is one (SEC 1, section 2.3.4)


@dataclass(frozen=True, slots=True)
class _Point:
    field: str
    bad_length: Reason
    bad_point: Reason


P256DH: Final = _Point("keys.p256dh", Reason.BAD_P256DH_LENGTH, Reason.BAD_P256DH_POINT)
APPLICATION_SERVER_KEY: Final = _Point(
    "applicationServerKey",
    Reason.BAD_APPLICATION_SERVER_KEY_LENGTH,
    Reason.BAD_APPLICATION_SERVER_KEY_POINT,
)


def read_point(kind: _Point, value: object) -> bytes:
    """65 bytes of an uncompressed point that lies on P-256, from base64, raising RejectionError."""
    return check_point(kind, _read_base64(kind.field, kind.bad_length, value))


def check_point(kind: _Point, raw: bytes) -> bytes:
    """The same bytes if they are a point; length and prefix alone would let ECDH fail at the first send."""
    if len(raw) != _POINT_BYTES:
        raise rejection(kind.field, kind.bad_length, "65 bytes", f"{len(raw)} bytes")
    if not is_point(raw):
        raise rejection(kind.field, kind.bad_point, "an uncompressed point on P-256", "65 bytes that are none")
    return raw


def is_point(raw: bytes) -> bool:
    """Whether 65 bytes are an uncompressed point. Public values: four times as fast as building a key of them."""
    x, y = int.from_bytes(raw[1:33]), int.from_bytes(raw[33:])
    return raw[0] == _UNCOMPRESSED and x < _FIELD and y < _FIELD and (y * y - (x * x - 3) * x - _B) % _FIELD == 0


def read_auth(value: object) -> bytes:
    """16 bytes of auth secret, raising RejectionError. Encryption takes any length; no browser decrypts it then."""
    raw = _read_base64("keys.auth", Reason.BAD_AUTH_LENGTH, value)
    if len(raw) != _AUTH_BYTES:
        raise rejection("keys.auth", Reason.BAD_AUTH_LENGTH, "16 bytes", f"{len(raw)} bytes")
    return raw


def _read_base64(field: str, too_long: Reason, value: object) -> bytes:
    text = text_of(value)
    if text is None:
        raise rejection(field, Reason.NOT_A_STRING, "a base64url string", describe(value))
    if len(text) > _MAX_TEXT:
        raise rejection(field, too_long, f"at most {_MAX_TEXT} characters", describe(text))
    try:
        return decode(text)
    except Base64Error as error:
        raise rejection(field, error.reason, "base64 in one alphabet, padded or not", describe(text)) from None
