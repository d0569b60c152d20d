"""Keys that an operator makes and configures: seal and log keys, and VAPID key pairs in every form people keep them."""

import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_private_key

from pushops.subscriptions import base64url

_KEY_BYTES: Final = 32
_POINT_BYTES: Final = 65
_ECDSA: Final = ec.ECDSA(SHA256())
# Either header may stand over either structure: some tools write PKCS#8 under "EC PRIVATE KEY", and libraries
# since stopped guessing. The structure says itself what it is, so only what stands between the lines counts.
_PEM: Final = re.compile(r"-----BEGIN (?:EC )?PRIVATE KEY-----([^-]*)-----END (?:EC )?PRIVATE KEY-----")
_EXPECTED: Final = "expected a P-256 private key (PEM, DER, or 32 bytes as base64url)"


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
    r"""A key pair that signs and verifies, from PEM (either header, one line, literal ``\n``), DER or raw base64url.

    ``public`` is the key that clients subscribe with, where it is configured too: 65 bytes. Raises ValueError that
    says what was expected and never what was given.
    """
    key = _vapid_key(_load_private(text))
    if public is not None and public != key.public:
        raise ValueError("expected the configured VAPID public key to belong to the private key, got another")
    check_round_trip(key)
    return key


def _vapid_key(private: ec.EllipticCurvePrivateKey) -> VapidKey:
    return VapidKey(private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint), private)


def _load_private(text: str | bytes) -> ec.EllipticCurvePrivateKey:
    raw = _structure(text)
    if len(raw) == _KEY_BYTES:
        return _from_scalar(raw)
    if len(raw) == _POINT_BYTES:
        raise ValueError(f"{_EXPECTED}, got 65 bytes, the length of a public key")
    try:
        private = load_der_private_key(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{_EXPECTED}, got {len(raw)} bytes that are none or are encrypted") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise ValueError(f"{_EXPECTED}, got a private key of another kind")  # noqa: TRY004  # the value is wrong, not its type
    return private


def _structure(text: str | bytes) -> bytes:
    """The DER structure or the 32 bytes of a key in whatever wrapping it came."""
    if isinstance(text, bytes):
        if text.startswith(b"\x30") or len(text) == _KEY_BYTES:
            return text
        text = text.decode("ascii", "replace")
    unfolded = text.replace("\\r", "").replace("\\n", "\n").strip().strip("\"'")
    found = _PEM.search(unfolded)
    if "-----" in unfolded and not found:
        raise ValueError(f"{_EXPECTED}, got PEM of another kind")
    body = "".join((found[1] if found else unfolded).split())
    try:
        return base64url.decode(body)
    except base64url.Base64Error:
        raise ValueError(f"{_EXPECTED}, got {len(text)} characters that are not base64") from None


def _from_scalar(raw: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(raw, "big"), ec.SECP256R1())
    except ValueError:
        raise ValueError(f"{_EXPECTED}, got a number outside the group") from None


def check_round_trip(key: VapidKey) -> None:
    """Signs and verifies once, raising ValueError: what cannot fails at the start, not once for every message."""
    challenge = secrets.token_bytes(_KEY_BYTES)
    verifier = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key.public)
    try:
        verifier.verify(key.private.sign(challenge, _ECDSA), challenge, _ECDSA)
    except InvalidSignature:
        raise ValueError("expected the VAPID key to verify its own signature, got one that does not") from None
