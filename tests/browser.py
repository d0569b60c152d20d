"""What a browser gives to a site: subscriptions with keys of their own, and what may never be seen of them again."""

import base64
import itertools
import secrets
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_numbers = itertools.count(1)


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def new_point() -> bytes:
    """65 bytes of a public key on P-256."""
    return (
        ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    )


def new_endpoint(host: str = "fcm.googleapis.com/fcm/send") -> str:
    return f"https://{host}/{next(_numbers)}-{secrets.token_urlsafe(24)}"


def subscribe(endpoint: str | None = None, **members: Any) -> dict[str, Any]:
    """``PushSubscription.toJSON()``, with fresh keys also for an endpoint that had others."""
    keys = {"p256dh": encode(new_point()), "auth": encode(secrets.token_bytes(16))}
    return {"endpoint": endpoint or new_endpoint(), "expirationTime": None, "keys": keys} | members
