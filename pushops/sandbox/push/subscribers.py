"""Making subscribers without remembering them: a token says, under a MAC, which key pair it belongs to.

So a hundred thousand cost the service no memory, and the process that issues need not be the one that serves.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pushops.sandbox.push.vendors import CORE_BYTES, ISSUED_HOST, Vendor, core_of, decode, encode, path_of, vendor_of

_MAC_BYTES: Final = 12
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # FIPS 186-4, D.1.2.3
# Key pairs that subscribers share unless told otherwise: deriving one costs 20 microseconds, a row of JSON two.
POOL: Final = 64
BROWSERS: Final = 0xFFFFFFFF  # the index that says: a browser holds the private key
UNBOUND: Final = bytes(8)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What a token says: a number of its own, which key pair, and the fingerprint of the key it was asked for with."""

    serial: int
    key: int
    fingerprint: bytes
    core: bytes


class Subscribers:
    """Everything that follows from one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.private_key = lru_cache(maxsize=1024)(self._private_key)
        self._p256dh = lru_cache(maxsize=POOL)(self._public_text)

    def issue(
        self,
        vendor: Vendor,
        count: int,
        application_server_key: str | None = None,
        *,
        distinct_keys: bool = False,
        host: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Subscriptions as a browser's ``toJSON()`` gives them, bound to the VAPID public key if one is named."""
        bound = UNBOUND if application_server_key is None else fingerprint(decode(application_server_key))
        first, keys = secrets.randbits(63), secrets.randbits(31) | POOL
        for number in range(count):
            key = (keys + number) % BROWSERS if distinct_keys else number % POOL
            yield self._subscription(vendor, self.core(first + number, key, bound), key, host)

    def core(self, serial: int, key: int, bound: bytes) -> bytes:
        """What a token says, with its MAC: 32 bytes."""
        body = serial.to_bytes(8, "big") + key.to_bytes(4, "big") + bound
        return body + self._derive(b"mac", body)[:_MAC_BYTES]

    def find(self, host: str, path: str) -> Subscriber | None:
        """The subscriber of an endpoint; None for one that was not issued under this secret, to the byte."""
        vendor = vendor_of(host)
        core = core_of(vendor, path) if vendor else None
        if core is None or not hmac.compare_digest(core[-_MAC_BYTES:], self._derive(b"mac", core[:-_MAC_BYTES])[:12]):
            return None
        serial, key = int.from_bytes(core[:8], "big"), int.from_bytes(core[8:12], "big")
        return Subscriber(serial, key, core[12 : CORE_BYTES - _MAC_BYTES], core)

    def find_url(self, endpoint: str) -> Subscriber | None:
        parts = urlsplit(endpoint)
        return self.find(parts.netloc, parts.path + (f"?{parts.query}" if parts.query else ""))

    def auth(self, core: bytes) -> bytes:
        """The 16-byte authentication secret of a subscriber, RFC 8291 section 3.2."""
        return self._derive(b"auth", core)[:16]

    def _subscription(self, vendor: Vendor, core: bytes, key: int, host: str | None) -> dict[str, Any]:
        p256dh = self._p256dh(key) if key < POOL else self._public_text(key)
        return {
            "endpoint": f"https://{host or ISSUED_HOST[vendor]}{path_of(vendor, core)}",
            "expirationTime": None,
            "keys": {"p256dh": p256dh, "auth": encode(self.auth(core))},
        }

    def _public_text(self, index: int) -> str:
        public = self._private_key(index).public_key()
        return encode(public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    def _private_key(self, index: int) -> ec.EllipticCurvePrivateKey:
        wide = hmac.digest(self._secret, b"key" + index.to_bytes(4, "big"), "sha512")
        return ec.derive_private_key(int.from_bytes(wide, "big") % (_ORDER - 1) + 1, ec.SECP256R1())

    def _derive(self, purpose: bytes, value: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + value, "sha256")


def fingerprint(public_key: bytes) -> bytes:
    """How a token names the VAPID key that it was asked for with."""
    return hashlib.sha256(public_key).digest()[:8]
