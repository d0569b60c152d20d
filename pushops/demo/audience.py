"""Filling the table: tombstones long past their 90 days, scrubbed as the sweep leaves them, among live rows."""

import random
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from pushops.demo import store
from pushops.demo.browsers import Browser, new_point
from pushops.demo.stage import Scale
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.subscriptions.sealing import KeyRing

PATIENCE: Final = timedelta(minutes=10)  # staging is not what is timed
# End reason, the state it leads to, how many of a hundred.
ENDS: Final = (("gone", "revoked", 55), ("unsubscribed", "revoked", 20), ("aged_out", "expired", 25))
_BY_HUNDREDTH: Final = [(reason, state) for reason, state, share in ENDS for _ in range(share)]
_DAY: Final = timedelta(days=1)
_ORIGINS: Final = ("https://news.example", "https://shop.example")


def doomed(scale: Scale) -> range:
    """The numbers of the browsers whose rows are tombstones; the live ones come after them."""
    return range(scale.tombstones)


def fill(rt: Runtime, scale: Scale) -> None:
    """Write every row, in an order that mixes the living with the dead, and tell the planner."""
    rng = random.Random(90)  # noqa: S311  (the same audience every time)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.copy_in(tx, _rows(tx.now, keychain(rt.settings).ring, scale, rng))
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.analyze(tx)


def _rows(now: datetime, ring: KeyRing, scale: Scale, rng: random.Random) -> Iterator[store.Written]:
    point, living = new_point(), 0
    for n in doomed(scale):
        yield _tombstone(Browser(n), now, rng)
        due = (n + 1) * scale.live // scale.tombstones
        while living < due:
            if living % 100 == 0:
                point = new_point()
            yield _living(Browser(scale.tombstones + living), now, ring, point, rng)
            living += 1


def _tombstone(browser: Browser, now: datetime, rng: random.Random) -> store.Written:
    """Ended 91 to 400 days ago after a life of up to two years; three days later its credentials went."""
    reason, state = rng.choice(_BY_HUNDREDTH)
    ended = now - rng.uniform(91, 400) * _DAY
    began = ended - rng.uniform(0.1, 700) * _DAY
    life = (began, began, ended, ended, ended, ended + 3 * _DAY)
    return (
        *(browser.endpoint_hash, None, browser.service, None, None, None, browser.user, rng.choice(_ORIGINS)),
        *(state, "active", reason, *life),
    )


def _living(browser: Browser, now: datetime, ring: KeyRing, point: str, rng: random.Random) -> store.Written:
    began = now - rng.uniform(1, 700) * _DAY
    sealed = ring.seal(AUTH, browser.endpoint_hash, secrets.token_bytes(16))
    seen = max(began, now - rng.uniform(0, 20) * _DAY)
    return (
        *(browser.endpoint_hash, browser.endpoint, browser.service, point, sealed.blob, sealed.version),
        *(browser.user, rng.choice(_ORIGINS), rng.choice(("active", "active", "pending")), None, None),
        *(began, began, seen, None, None, None),
    )
