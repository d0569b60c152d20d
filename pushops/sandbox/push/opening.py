"""Opening a message as the browser would: RFC 8291 over RFC 8188, one record."""

import http_ece
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec


def open_message(body: bytes, private: ec.EllipticCurvePrivateKey, auth: bytes) -> bytes | None:
    """The plaintext, or None for what a browser could not read either."""
    try:
        plain: bytes = http_ece.decrypt(body, private_key=private, auth_secret=auth, version="aes128gcm")
    except (http_ece.ECEException, ValueError, IndexError, InvalidTag):
        return None
    return plain
