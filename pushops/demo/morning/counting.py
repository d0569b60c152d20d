"""What the push service says of the morning: every letter and every live message, as often as it took it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pushops.demo.campaign.subscribers import Subscriber
from pushops.demo.morning.bulletins import BULLETINS, DIGEST, Cast, Fate
from pushops.sandbox.push import PushService

ASKED_ABOUT: Final = 50  # letters whose time at the push service is looked at


@dataclass(frozen=True)
class Counted:
    """By row how often it was taken: ``letters`` of last night, by the name of their message, and ``live`` messages.

    ``copies`` of one message to one row, beyond the first; ``lasting``: the seconds for which some letters are kept.
    """

    letters: dict[str, dict[bytes, int]]
    live: dict[bytes, int]
    copies: int
    undecryptable: int
    lasting: Sequence[int]


def count(service: PushService, everyone: Sequence[Subscriber], cast: Sequence[Cast]) -> Counted:
    endpoints, hashes = [one.endpoint for one in everyone], [one.endpoint_hash for one in everyone]

    def taken(name: str | None = None) -> dict[bytes, int]:
        return dict(zip(hashes, service.accepted(endpoints, name), strict=True))

    letters = {one.name: taken(one.name) for one in BULLETINS}
    live = Counter(taken())
    for each in letters.values():
        live.subtract(each)
    totals = service.counts()
    return Counted(
        letters=letters,
        live=dict(live),
        copies=int(totals.get("doubled", 0)),
        undecryptable=int(totals.get("undecryptable", 0)),
        lasting=list(_lasting(service, cast, letters[DIGEST.name])),
    )


def _lasting(service: PushService, cast: Sequence[Cast], digest: dict[bytes, int]) -> Iterator[int]:
    asked = [one for one in cast if one.fate is Fate.FRESH and digest[one.hash]][:ASKED_ABOUT]
    for one in asked:
        for message in service.messages(one.subscriber.endpoint):
            if f'"id":"{DIGEST.name}"' in (message["text"] or ""):
                yield int(message["ttl"])
