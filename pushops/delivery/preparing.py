"""From a claimed row to a request: unsealed, encrypted, signed. What cannot be made is an answer of its own."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.encryption import BadKeysError, PayloadTooLargeError, encrypt
from pushops.delivery.store.ledger import Claimed
from pushops.delivery.transport import Request
from pushops.delivery.vapid import Tokens, UnknownVapidKeyError, VapidSigningError
from pushops.errors import PushopsError
from pushops.subscriptions.keychain import AUTH, Keychain
from pushops.subscriptions.sealing import TamperedSealError, UnknownSealKeyError

SECOND: Final = timedelta(seconds=1)
WNS: Final = "wns"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A claimed row with its plaintext, claimed ``at`` by the database's clock and ``since`` by the monotonic one."""

    row: Claimed
    payload: bytes = field(repr=False)
    at: datetime
    since: float
    probe: bool = False

    @property
    def now(self) -> datetime:
        """The time by the database's clock."""
        return self.at + timedelta(seconds=time.monotonic() - self.since)


def prepare(chain: Keychain, tokens: Tokens, out: Outgoing) -> Request[Outgoing] | Answer:
    """The request, or the fault that stands for its answer.

    The TTL sent is what remains of the message's own, at least a second.
    """
    row = out.row
    now = out.now
    if row.max_payload is not None and len(out.payload) > row.max_payload:
        return Answer(None, Fault.DEVICE_LIMIT)
    host = host_of(row.endpoint)
    try:
        auth = chain.ring.open(AUTH, row.endpoint_hash, row.auth_key_version, row.auth_sealed)
        body = encrypt(row.p256dh, auth, out.payload)
        token = tokens.header(row.vapid_key_id or "", f"https://{host}", now)
    except tuple(_FAULTS) as error:
        return Answer(None, _FAULTS[type(error)])
    return Request(row.endpoint, host, _headers(row, token, now), body, out)


# A payload that is too large was rendered: pre-flight saw to the message's own.
_FAULTS: Final[Mapping[type[PushopsError], Fault]] = {
    UnknownSealKeyError: Fault.NO_DATA_KEY,
    TamperedSealError: Fault.TAMPERED,
    BadKeysError: Fault.BAD_KEYS,
    PayloadTooLargeError: Fault.RENDER,
    UnknownVapidKeyError: Fault.VAPID,
    VapidSigningError: Fault.VAPID,
}


def host_of(endpoint: str) -> str:
    """The authority, which intake holds to a host with no port but 443."""
    return endpoint.split("/", 3)[2].split("?", 1)[0].removesuffix(":443")


def _headers(row: Claimed, token: str, now: datetime) -> Mapping[str, str]:
    ttl = max(1, (row.expires_at - now) // SECOND)
    headers = {
        "Authorization": token,
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(min(ttl, row.ttl)),
        "Urgency": row.urgency,
    }
    if row.topic is not None:
        headers["Topic"] = row.topic
    if row.push_service == WNS:  # a TTL of 0 would want no-cache; ours is at least 1
        headers["X-WNS-Cache-Policy"] = "cache"
    return headers
