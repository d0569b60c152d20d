"""Answers of a push service without one: settled as senders settle them, for tests of what is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from pushops.delivery import guard, observing
from pushops.delivery.observing import Kind, Observation, Observed
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding, apply_batch
from pushops.sweeps.sql import PLAN_INDEX
from tests.sweepdb import add_live

Pg = psycopg.Connection[Any]
PROMPT: Final = timedelta(seconds=10)

KINDS: Final = {
    Finding.ACCEPTED: Kind.ACCEPTED,
    Finding.GONE: Kind.TERMINAL,
    Finding.VOTE: Kind.TERMINAL,
    Finding.MISMATCH: Kind.MISMATCH,
    Finding.BAD_KEYS: Kind.OTHER,
    Finding.DEVICE_LIMIT: Kind.OTHER,
    Finding.NONE: Kind.FAULTY,
}


@dataclass(frozen=True)
class Settled:
    observed: Observed
    outcomes: list[EvidenceOutcome]


def subscribers(pg: Pg, count: int, service: str = "fcm", **columns: str) -> list[UUID]:
    """Live rows of a push service, proven long ago, each with its open period."""
    values = {"push_service": f"'{service}'", "state": "'active'", "last_success_at": "now() - interval '1 day'"}
    ids = add_live(pg, count, **values | {"registered_at": "now() - interval '9 days'"} | columns)
    pg.execute(
        "INSERT INTO subscription_period (endpoint_hash, push_service, began_at, reconnection)"
        " SELECT endpoint_hash, push_service, registered_at, false FROM push_subscription WHERE id = ANY(%s)",
        [ids],
    )
    return ids


def observe(
    rt: Runtime, lane: int, kind: Kind, times: int = 1, *, service: str = "fcm", code: str = "code", probe: bool = False
) -> Observed:
    """So many answers of a kind, in one batch."""
    seen = [Observation(lane, kind, answered=kind is not Kind.FAULTY, code=code)] * times
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        observed = observing.observe(tx, rt.settings, service, seen, probe=probe)
    observing.announce(rt, observed)
    return observed


def settle(
    rt: Runtime,
    lane: int,
    answers: Sequence[tuple[UUID, Finding]],
    *,
    service: str = "fcm",
    started: datetime | None = None,
    **evidence: Any,
) -> Settled:
    """One batch, in the order of completion: health first, then evidence; turned back where the guard opened on it."""
    with rt.db.transaction() as tx:
        began = started or tx.now
    seen = [
        Observation(lane, KINDS[what], answered=True, code=what, endpoint_hash=row.bytes[::-1]) for row, what in answers
    ]
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        observed = observing.observe(tx, rt.settings, service, seen)
        found = [Evidence(row, 1, finding, began, lane_id=lane, **evidence) for row, finding in answers]
        outcomes = apply_batch(tx, rt.settings, service, found, observed.guard_id)
    observing.announce(rt, observed)
    if observed.opened_guard is not None:
        assert guard.turn_back(rt, observed.opened_guard, PROMPT)
    return Settled(observed, outcomes)


def table(pg: Pg) -> dict[UUID, tuple[Any, ...]]:
    """What answers may change of each row, times of trying left out."""
    query = (
        "SELECT id, state, votes, first_vote_at, last_vote_at, end_reason, deleted_at, registration_no, send_block,"
        " endpoint IS NOT NULL FROM push_subscription"
    )
    return {row[0]: row[1:] for row in pg.execute(query).fetchall()}


def states(pg: Pg) -> dict[str, int]:
    return dict(pg.execute("SELECT state, count(*) FROM push_subscription GROUP BY 1").fetchall())


def evidence_states(pg: Pg) -> dict[str, int]:
    return dict(pg.execute("SELECT state, count(*) FROM push_evidence GROUP BY 1").fetchall())


def pages(recorded: Sequence[tuple[Any, str, Any]]) -> list[str]:
    """Names of the events that wake somebody."""
    return [name for level, name, _ in recorded if level == "page"]
