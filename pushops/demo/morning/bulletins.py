"""What was sent last night and came to nothing, and what will become of whose letter: all of it known beforehand."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from pushops.deadletters.letter import ErrorClass
from pushops.demo.campaign.judging import Rows
from pushops.demo.campaign.subscribers import Subscriber

SENT_AGO: Final = timedelta(hours=9)
DAY: Final = timedelta(days=1)


class Fate(StrEnum):
    """What a letter will meet. The order is that in which a replay's gates look."""

    CODE = "code"  # stale within minutes
    SALE = "sale"  # stale since the night
    REVOKED = "revoked"  # its push service said 410 during the campaign
    LEFT = "left"  # its person unsubscribes this morning
    REPLAYED = "replayed"  # sent again already, before the table was restored
    DOUBT = "doubt"  # its last attempt may have been taken
    POISON = "poison"
    FRESH = "fresh"


@dataclass(frozen=True)
class Failure:
    """How the attempts at a message ended. ``status`` None: there was no answer."""

    error_class: ErrorClass
    code: str
    status: int | None
    snippet: str
    attempts: int


OVERLOADED: Final = Failure(ErrorClass.EXHAUSTED, "http_503", 503, "Service Unavailable", 10)
SILENT: Final = Failure(ErrorClass.EXHAUSTED, "ambiguous_timeout", None, "", 10)
TOO_LARGE: Final = Failure(ErrorClass.POISON, "payload_too_large", 413, "Payload Too Large", 1)


@dataclass(frozen=True)
class Bulletin:
    """A message of last night; its name is its campaign's, too, and the id in its payload."""

    name: str
    ttl: timedelta


CODES: Final = Bulletin("login-codes", timedelta(minutes=10))
SALE: Final = Bulletin("flash-sale", timedelta(hours=4))
DIGEST: Final = Bulletin("digest", DAY)
WEATHER: Final = Bulletin("weather", DAY)
CATALOGUE: Final = Bulletin("catalogue", DAY)
BULLETINS: Final = (CODES, SALE, DIGEST, WEATHER, CATALOGUE)

CAME_OF: Final[Mapping[Fate, tuple[Bulletin, Failure]]] = {
    Fate.CODE: (CODES, OVERLOADED),
    Fate.SALE: (SALE, OVERLOADED),
    Fate.REVOKED: (DIGEST, OVERLOADED),
    Fate.LEFT: (DIGEST, OVERLOADED),
    Fate.REPLAYED: (WEATHER, OVERLOADED),
    Fate.DOUBT: (DIGEST, SILENT),
    Fate.POISON: (CATALOGUE, TOO_LARGE),
    Fate.FRESH: (DIGEST, OVERLOADED),
}
STALE: Final = (Fate.CODE, Fate.SALE)
GONE: Final = (Fate.REVOKED, Fate.LEFT)
# Of all letters. Two thirds are stale, half of them codes; who was revoked by the campaign is known already.
SHARES: Final[Mapping[Fate, float]] = {
    Fate.LEFT: 0.006,
    Fate.REPLAYED: 0.02,
    Fate.DOUBT: 0.015,
    Fate.POISON: 0.025,
}
STALE_SHARE: Final = 2 / 3


@dataclass(frozen=True)
class Cast:
    """A letter that will be there, and what becomes of it."""

    subscriber: Subscriber
    fate: Fate

    @property
    def hash(self) -> bytes:
        return self.subscriber.endpoint_hash

    @property
    def bulletin(self) -> Bulletin:
        return CAME_OF[self.fate][0]

    @property
    def failure(self) -> Failure:
        return CAME_OF[self.fate][1]


def cast(everyone: Sequence[Subscriber], *, revoked: Rows, shy: Rows, taken: Rows) -> list[Cast]:
    """One letter for everybody but those ``taken``, who have one; mixed, as an outage strikes.

    ``shy``: whom the push service does not know at the moment. A replay would find that out, so they get what is stale.
    """
    rng = random.Random(5)  # noqa: S311  (who got what)
    found = [Cast(one, Fate.REVOKED) for one in everyone if one.endpoint_hash in revoked - taken]
    rest = [one for one in everyone if one.endpoint_hash not in revoked | taken]
    rng.shuffle(rest)
    rest.sort(key=lambda one: one.endpoint_hash in shy)  # stable: they come last, and are stale
    total = len(found) + len(rest)
    for fate, share in SHARES.items():
        found += [Cast(rest.pop(0), fate) for _ in range(round(total * share))]
    fresh = max(0, total - len(found) - round(total * STALE_SHARE))
    found += [Cast(one, Fate.FRESH) for one in rest[:fresh]]
    found += [Cast(one, Fate.CODE if n % 2 else Fate.SALE) for n, one in enumerate(rest[fresh:])]
    rng.shuffle(found)
    return found
