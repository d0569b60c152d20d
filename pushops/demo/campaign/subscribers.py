"""Who the campaign goes to: browsers that the sandbox's push service issued, and can decrypt for."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from pushops.demo.browsers import SERVICES
from pushops.demo.campaign import store
from pushops.demo.campaign.judging import EARLY, LATE
from pushops.demo.stage import Scale
from pushops.runtime import Runtime
from pushops.sandbox.push import PushService
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import AUTH, Keychain, keychain

PATIENCE: Final = timedelta(minutes=2)
# Of ten browsers: whom the first minute of the outage sends to, and whom the rest of it does.
_TAGS: Final = (EARLY, LATE, LATE, LATE)
_OF: Final = 10


@dataclass(frozen=True)
class Subscriber:
    """One browser. ``tags``: which messages of the outage are for it."""

    service: str
    subscription: dict[str, Any] = field(repr=False)
    tags: Sequence[str]

    @property
    def endpoint(self) -> str:
        return str(self.subscription["endpoint"])

    @cached_property
    def endpoint_hash(self) -> bytes:
        return hashlib.sha256(self.endpoint.encode()).digest()

    @property
    def user(self) -> str:
        return f"reader-{self.endpoint_hash.hex()[:16]}"


def issue(rt: Runtime, service: PushService, scale: Scale) -> list[Subscriber]:
    """New browsers, in the vendors' usual shares, that subscribed with our VAPID key."""
    key = base64url.encode(next(iter(keychain(rt.settings).vapid.values())).public)
    found = []
    for vendor, _, share in SERVICES:
        made = service.issue(vendor, scale.subscribers * share // 100, key)
        found += [Subscriber(vendor, one, tags=_TAGS[n % _OF : n % _OF + 1]) for n, one in enumerate(made)]
    return found


def register(rt: Runtime, subscribers: list[Subscriber]) -> None:
    """Write their rows in bulk, sealed as registration seals them, and a period of consent for each."""
    chain = keychain(rt.settings)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.copy_in(tx, (_row(one, tx.now, chain) for one in subscribers))
        store.open_periods(tx)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.analyze(tx)


def _row(one: Subscriber, now: datetime, chain: Keychain) -> store.Written:
    keys = one.subscription["keys"]
    sealed = chain.ring.seal(AUTH, one.endpoint_hash, base64url.decode(keys["auth"]))
    began = now - timedelta(days=3)
    return (
        *(one.endpoint_hash, one.endpoint, one.service, keys["p256dh"], sealed.blob, sealed.version),
        *(chain.vapid_id, one.user, store.ORIGIN, list(one.tags), "pending", began, began, began),
    )


def hashes(subscribers: list[Subscriber], endpoints: list[str]) -> frozenset[bytes]:
    """The rows of these endpoints."""
    wanted = frozenset(endpoints)
    return frozenset(one.endpoint_hash for one in subscribers if one.endpoint in wanted)


def by_service(subscribers: list[Subscriber]) -> Iterator[tuple[str, int]]:
    for vendor, _, _ in SERVICES:
        yield vendor, sum(one.service == vendor for one in subscribers)
