"""Base64 as browsers and their libraries send it: either alphabet, padded or not, and strict about all else.

Python's own decoders drop what they do not know, so that a key with a hole in it decodes to something.
"""

import base64
import binascii
from typing import Final

from pushops.subscriptions.rejection import Reason

_GROUP: Final = 4  # characters that carry three bytes
_MOST_PADDING: Final = 2


class Base64Error(ValueError):
    """The text is not base64 in one alphabet; ``reason`` says why. The message never holds the text."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def encode(raw: bytes) -> str:
    """Canonical base64url without padding (RFC 7515, section 2)."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Bytes of base64 in either alphabet, raising Base64Error.

    Refused: both alphabets in one text, any other character (white space included), padding that does not fill
    the last group, and spare bits that are not zero (RFC 4648, section 3.5: they hint at damage).
    """
    body = text.rstrip("=")
    padding = len(text) - len(body)
    if padding and (padding > _MOST_PADDING or len(text) % _GROUP):
        raise Base64Error(Reason.BAD_BASE64_PADDING)
    standard = body.replace("-", "+").replace("_", "/")
    if standard != body and ("+" in body or "/" in body):
        raise Base64Error(Reason.MIXED_BASE64_ALPHABET)
    return _decode_standard(standard)


def _decode_standard(body: str) -> bytes:
    """Decodes leniently and compares with what those bytes encode to: one check that finds every kind of damage."""
    try:
        raw = binascii.a2b_base64(body + "=" * (-len(body) % _GROUP))
    except ValueError:
        raise Base64Error(Reason.BAD_BASE64) from None
    if binascii.b2a_base64(raw, newline=False).rstrip(b"=") != body.encode("ascii"):
        raise Base64Error(Reason.BAD_BASE64)
    return raw
