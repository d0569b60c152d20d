"""Keys that an operator makes and configures: seal and log keys, and VAPID key pairs in every form people keep them."""

import secrets
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_private_key

from pushops.subscriptions import base64url
from pushops.subscriptions.keyforms import EXPECTED, read_form

_KEY_BYTES: Final = 32
_POINT_BYTES: Final = 65
_ECDSA: Final = ec.ECDSA(SHA256())


@dataclass(frozen=True, slots=True)
class VapidKey:
    """A VAPID key pair (RFC 8292); equal by its public half, 65 raw bytes."""

    public: bytes
    private: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @property
    def public_text(self) -> str:
        """What a browser takes as ``applicationServerKey``."""
        return base64url.encode(self.public)

    @property
    def private_text(self) -> str:
        """The secret: 32 bytes as base64url, as the libraries for web push exchange it."""
        return base64url.encode(self.private.private_numbers().private_value.to_bytes(_KEY_BYTES, "big"))


def generate_seal_key() -> str:
    """32 random bytes as base64url."""
    return base64url.encode(secrets.token_bytes(_KEY_BYTES))


def generate_log_key() -> str:
    """32 random bytes as base64url."""
    return base64url.encode(secrets.token_bytes(_KEY_BYTES))


def generate_vapid_key() -> VapidKey:
    return _vapid_key(ec.generate_private_key(ec.SECP256R1()))


def load_vapid_key(text: str | bytes, public: bytes | None = None) -> VapidKey:
    r"""A key pair that signs and verifies, from any form that people keep one in.

    PEM (either header, one line, CRLF, literal ``\n``), DER, 32 bytes as base64url, base64 or hex, a JSON web key, or
    the JSON that web-push prints; in quotes or not.

    ``public`` is the key that clients subscribe with, where it is configured too: 65 bytes. Raises ValueError that
    says what was expected and never what was given.
    """
    form = read_form(text)
    key = _vapid_key(_load_private(form.raw))
    if {public or key.public, form.public or key.public} != {key.public}:
        raise ValueError("expected the configured VAPID public key to belong to the private key, got another")
    check_round_trip(key)
    return key


def _vapid_key(private: ec.EllipticCurvePrivateKey) -> VapidKey:
    return VapidKey(private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint), private)


def _load_private(raw: bytes) -> ec.EllipticCurvePrivateKey:
    if len(raw) == _KEY_BYTES:
        return _from_scalar(raw)
    if len(raw) == _POINT_BYTES:
        raise ValueError(f"{EXPECTED}, got 65 bytes, the length of a public key")
    try:
        private = load_der_private_key(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{EXPECTED}, got {len(raw)} bytes that are none or are encrypted") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise ValueError(f"{EXPECTED}, got a private key of another kind")  # noqa: TRY004  # the value is wrong, not its type
    return private


def _from_scalar(raw: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(raw, "big"), ec.SECP256R1())
    except ValueError:
        raise ValueError(f"{EXPECTED}, got a number outside the group") from None


def check_round_trip(key: VapidKey) -> None:
    """Signs and verifies once, raising ValueError: what cannot fails at the start, not once for every message."""
    challenge = secrets.token_bytes(_KEY_BYTES)
    verifier = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key.public)
    try:
        verifier.verify(key.private.sign(challenge, _ECDSA), challenge, _ECDSA)
    except InvalidSignature:
        raise ValueError("expected the VAPID key to verify its own signature, got one that does not") from None
