"""The browsers behind the rows: each knows its endpoint, which a scrubbed tombstone does not, and can come back."""

import hashlib
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pushops.subscriptions import base64url

# Shares as in a mixed audience: service, where its endpoints begin, how many of a hundred.
SERVICES: Final = (
    ("fcm", "https://fcm.googleapis.com/fcm/send/", 62),
    ("apple", "https://web.push.apple.com/", 18),
    ("mozilla", "https://updates.push.services.mozilla.com/wpush/v2/", 14),
    ("wns", "https://wns2-par02p.notify.windows.com/w/?token=", 6),
)
_BY_HUNDREDTH: Final = [(name, begin) for name, begin, share in SERVICES for _ in range(share)]


@dataclass(frozen=True)
class Browser:
    """Number ``n`` of the audience: the same number is the same browser."""

    n: int

    @cached_property
    def _token(self) -> bytes:
        return hashlib.sha512(b"pushops demo %d" % self.n).digest()

    @property
    def service(self) -> str:
        return _BY_HUNDREDTH[self._token[0] * 100 // 256][0]

    @property
    def endpoint(self) -> str:
        return _BY_HUNDREDTH[self._token[0] * 100 // 256][1] + base64url.encode(self._token)

    @property
    def endpoint_hash(self) -> bytes:
        return hashlib.sha256(self.endpoint.encode()).digest()

    @property
    def user(self) -> str:
        return f"user-{self.n}"

    def subscribe(self) -> dict[str, object]:
        """What ``PushSubscription.toJSON()`` gives after a new permission: the old endpoint with fresh keys."""
        keys = {"p256dh": new_point(), "auth": base64url.encode(secrets.token_bytes(16))}
        return {"endpoint": self.endpoint, "expirationTime": None, "keys": keys}


def new_point() -> str:
    """The public half of a new P-256 key, as a browser sends it."""
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    return base64url.encode(public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))
