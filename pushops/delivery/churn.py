"""Churn: how many left out of how many, by push service, by reason, and by the campaign that found out."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from pushops.db import Tx
from pushops.delivery.store import churn as store
from pushops.errors import RefusedError
from pushops.runtime import Runtime

COUNTING: Final = timedelta(minutes=2)  # the whole consent trail is read
NO_CAMPAIGN: Final = ""
REVOKED: Final = ("revoked", "voted_out")


class By(StrEnum):
    CAMPAIGN = "campaign"
    SERVICE = "service"
    REASON = "reason"


@dataclass(frozen=True)
class Churn:
    """``left`` out of ``out_of`` subscriptions (of a campaign: recipients, 0 where they are no longer known).

    ``parts``: by service, ``left`` by reason; by reason, by service; by campaign, what its answers did: ``revoked``,
    ``voted_out``, ``voted`` and ``blocked`` subscriptions, and answers that are ``pending`` behind a guard.
    """

    name: str
    out_of: int
    left: int
    parts: Mapping[str, int]

    @property
    def share(self) -> float | None:
        return self.left / self.out_of if self.out_of else None


def churn(rt: Runtime, by: By, since: datetime, until: datetime) -> list[Churn]:
    """Who left from ``since`` to before ``until``, most first. What the guard took back did not."""
    if since.tzinfo is None or until.tzinfo is None:
        raise RefusedError("expected since and until with a time zone, got a time without")
    with rt.db.transaction(statement_timeout=COUNTING) as tx:
        match by:
            case By.CAMPAIGN:
                found = _by_campaign(tx, since, until)
            case By.SERVICE | By.REASON:
                found = _by_end(tx, by, since, until)
            case _:
                assert_never(by)
    return sorted(found, key=lambda one: (-one.left, one.name))


def _by_end(tx: Tx, by: By, since: datetime, until: datetime) -> list[Churn]:
    lived = store.lived(tx, since, until)
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    if by is By.SERVICE:
        parts.update({service: Counter() for service in lived})
    for row in store.ends(tx, since, until):
        name, part = (row.push_service, row.reason) if by is By.SERVICE else (row.reason, row.push_service)
        parts[name][part] += row.rows
    total = sum(lived.values())
    return [
        Churn(name, lived.get(name, 0) if by is By.SERVICE else total, counts.total(), dict(counts))
        for name, counts in parts.items()
    ]


def _by_campaign(tx: Tx, since: datetime, until: datetime) -> list[Churn]:
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in store.found(tx, since, until):
        parts[row.campaign_id][row.outcome] += row.rows
    reached = store.reached(tx, [name for name in parts if name != NO_CAMPAIGN])
    return [
        Churn(name, reached.get(name, 0), sum(counts[outcome] for outcome in REVOKED), dict(counts))
        for name, counts in parts.items()
    ]
