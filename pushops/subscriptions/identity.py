"""What a subscription is known by: the hash of its endpoint in the database, a keyed tag and the host in logs."""

import hashlib
import hmac
import re
from typing import Final

_TAG_DOMAIN: Final = b"pushops.endpoint-tag.v1\x00"
_USER_DOMAIN: Final = b"pushops.erased-user.v1\x00"
_TAG_BYTES: Final = 16

# Everything up to the last "@" may be a password, and a host is the most that a log may say.
_HOST: Final = re.compile(r"https://(?:[^/?#\\]*@)?([a-z0-9.-]{1,253})(?::[0-9]{1,5})?(?:[/?#]|\Z)", re.ASCII)


def endpoint_hash(endpoint: str) -> bytes:
    """Plain SHA-256 of the endpoint exactly as it came, 32 raw bytes.

    Total: text that no browser sends (lone surrogates) has a hash too, which simply matches no row.
    """
    return hashlib.sha256(endpoint.encode("utf-8", "surrogatepass")).digest()


def endpoint_tag(endpoint: str | bytes, *, key: bytes) -> str:
    """Keyed HMAC for logs, 32 hex digits, of an endpoint or of its hash: both give the same tag.

    A plain hash would let anyone who holds an endpoint find its log lines; tombstones only have the hash.
    """
    digest = endpoint_hash(endpoint) if isinstance(endpoint, str) else endpoint
    return hmac.digest(key, _TAG_DOMAIN + digest, "sha256")[:_TAG_BYTES].hex()


def user_hmac(user: str, *, key: bytes) -> bytes:
    """Keyed HMAC of a user id, 32 raw bytes: whether a user was erased can be asked, whose it is cannot."""
    return hmac.digest(key, _USER_DOMAIN + user.encode("utf-8", "surrogatepass"), "sha256")


def endpoint_host(endpoint: str) -> str:
    """The host of an endpoint for logs only, or "unreadable"; never anything else that stood in the URL."""
    found = _HOST.match(endpoint)
    return found[1] if found else "unreadable"
