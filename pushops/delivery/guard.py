"""The guard against mass death: what its opening takes back, and what an operator makes of what it kept."""

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, assert_never
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.store import guard as store
from pushops.delivery.store import health as health_store
from pushops.delivery.store.guard import Applied, Guard, Listed, Pending
from pushops.errors import NotFoundError, StatementTimeoutError, TransientDatabaseError
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import apply_waiting
from pushops.subscriptions.finding import EvidenceOutcome
from pushops.subscriptions.store import auditing, periods
from pushops.subscriptions.work import in_transaction
from pushops.sweeps.sql import PLAN_INDEX

PAGE: Final = 500  # answers per transaction: settlers of the same push service wait for each
DISCARD_PAGE: Final = 5_000  # nothing but a word in each
TEND: Final = timedelta(seconds=5)
FOR_EVER: Final = timedelta(days=365)
ACTOR: Final = "guard"
BUSY: Final = (TransientDatabaseError, StatementTimeoutError)


class Judgement(StrEnum):
    """An operator's word on what a guard kept."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Judged:
    """``pending``: what waited, by finding; ``outcomes``: what believing it did, by name; ``done``: nothing is left."""

    guard_id: UUID
    push_service: str
    verdict: Judgement
    pending: tuple[Pending, ...]
    outcomes: dict[str, int] = field(default_factory=dict)
    done: bool = False
    dry_run: bool = True

    @property
    def answers(self) -> int:
        return sum(group.answers for group in self.pending)


def list_guards(rt: Runtime, *, closed: bool = False, limit: int = 100) -> list[Listed]:
    """Guards that are open or not settled, or all, newest first, with what waits for an operator."""
    with rt.db.transaction() as tx:
        return store.listed(tx, closed=closed, limit=limit)


def accept(rt: Runtime, service: str, *, reason: str, actor: str, dry_run: bool = True) -> Judged:
    """Close the guard of a push service and believe what it kept; by default only say what that is.

    Each answer is applied as of when it came, under the conditions of any other: a row that was proven, registered or
    ended since is left alone. What is interrupted is continued by beat. Raises NotFoundError.
    """
    return _judge(rt, service, Judgement.ACCEPTED, reason=reason, actor=actor, dry_run=dry_run)


def reject(rt: Runtime, service: str, *, reason: str, actor: str, dry_run: bool = True) -> Judged:
    """Close the guard of a push service and discard what it kept; by default only say what that is."""
    return _judge(rt, service, Judgement.REJECTED, reason=reason, actor=actor, dry_run=dry_run)


def tend(rt: Runtime, budget: timedelta = TEND) -> int:
    """Go on with what an interruption left: turning back, applying, discarding. Guards that need more time."""
    ends = time.monotonic() + budget.total_seconds()
    with rt.db.transaction() as tx:
        left = store.unsettled(tx)
    return sum(not _attempt(rt, guard.guard_id, ends) for guard in left)


def _attempt(rt: Runtime, guard_id: UUID, ends: float) -> bool:
    """One guard's trouble is no other's."""
    with suppress(*BUSY):
        return _continue(rt, guard_id, ends)
    return False


def turn_back(rt: Runtime, guard_id: UUID, budget: timedelta) -> bool:
    """Take back what was believed in the hour on which the guard opened; whether all of it is.

    Only what stands as the evidence made it. In transactions of a page each; safe to repeat and to interrupt, and where
    the database is busy it is left to beat.
    """
    with suppress(*BUSY):
        return _turn_back(rt, guard_id, time.monotonic() + budget.total_seconds())
    return False


def _turn_back(rt: Runtime, guard_id: UUID, ends: float) -> bool:
    rows = votes = 0
    while True:
        page = in_transaction(rt, None, lambda tx: _turn_page_back(tx, rt, guard_id), planner=PLAN_INDEX)
        rows, votes = rows + page.rows, votes + page.votes
        if page.last or time.monotonic() > ends:
            break
    if rows or votes:
        rt.events.emit("guard.turned_back", guard=guard_id, rows=rows, votes=votes)
    return page.last


@dataclass(frozen=True)
class _Page:
    """What a page gave back; ``last``: nothing is left."""

    rows: int = 0
    votes: int = 0
    last: bool = False


def _turn_page_back(tx: Tx, rt: Runtime, guard_id: UUID) -> _Page:
    guard = _locked(tx, guard_id)
    if guard is None or guard.turned_back:
        return _Page(last=True)
    page = store.applied(tx, guard, PAGE)
    if not page:
        store.set_turned_back(tx, guard_id)
        return _Page(last=True)
    ended, votes = store.restore(tx, guard, _newest(page), rt.settings.undo_window)
    periods.open_missing(tx, [row.endpoint_hash for row in ended], rt.settings.reconnection_window)
    entries: list[auditing.Entry] = [
        (row.endpoint_hash, row.user_id, {"state": row.state, "guard": str(guard_id)}) for row in (*ended, *votes)
    ]
    auditing.write(tx, "turn_back", ACTOR, entries)
    return _Page(len(ended), len(votes))


def _newest(page: list[Applied]) -> list[Applied]:
    """One of each subscription, the latest, which goes back first; what it was before, the next page sees."""
    found: dict[UUID, Applied] = {}
    for one in page:
        found.setdefault(one.subscription_id, one)
    return list(found.values())


def _locked(tx: Tx, guard_id: UUID) -> Guard | None:
    """The guard as it stands behind the push service's lock: whoever settles or judges waits for us, or did first."""
    guard = store.find(tx, guard_id)
    if guard is None:
        return None
    health_store.lock(tx, guard.push_service)
    return store.find(tx, guard_id)


def _judge(rt: Runtime, service: str, verdict: Judgement, *, reason: str, actor: str, dry_run: bool) -> Judged:
    def close(tx: Tx) -> Judged:
        health_store.lock(tx, service)
        guard = store.find_open(tx, service)
        if guard is None:
            raise NotFoundError(f"expected a push service whose guard is open, got {service}")
        found = Judged(guard.guard_id, service, verdict, tuple(store.pending(tx, guard)), dry_run=dry_run)
        if not dry_run:
            store.close(tx, guard.guard_id, verdict, actor, reason)
            detail = {"service": service, "guard": str(guard.guard_id), "reason": reason, "pending": found.answers}
            auditing.note(tx, f"guard_{verdict}", actor, detail)
        return found

    found = in_transaction(rt, None, close)
    if dry_run:
        return found
    rt.events.emit(
        "guard.closed", service=service, guard=found.guard_id, verdict=verdict, pending=found.answers, actor=actor
    )
    outcomes: Counter[EvidenceOutcome] = Counter()
    done = _continue(rt, found.guard_id, time.monotonic() + FOR_EVER.total_seconds(), outcomes)
    counts = {str(outcome): count for outcome, count in sorted(outcomes.items())}
    return Judged(found.guard_id, service, verdict, found.pending, counts, done, dry_run=False)


def _continue(rt: Runtime, guard_id: UUID, ends: float, outcomes: Counter[EvidenceOutcome] | None = None) -> bool:
    """Whatever is left of a guard; whether nothing is."""
    outcomes = Counter() if outcomes is None else outcomes
    if not _turn_back(rt, guard_id, ends):
        return False
    while True:
        step = in_transaction(rt, None, lambda tx: _settle_page(tx, rt, guard_id), planner=PLAN_INDEX)
        outcomes.update(step.outcomes)
        if step.settled is not None:
            _say_settled(rt, step.settled, outcomes)
        if step.stop or time.monotonic() > ends:
            return step.done


@dataclass(frozen=True)
class _Step:
    """``stop``: nothing more can be done now; ``done``: nothing more is to be; ``settled``: this page was the last."""

    stop: bool = False
    done: bool = False
    settled: Guard | None = None
    outcomes: Counter[EvidenceOutcome] = field(default_factory=Counter)


def _settle_page(tx: Tx, rt: Runtime, guard_id: UUID) -> _Step:
    """Apply or discard a page of what was judged. Behind another guard that opened since, it waits for that one too."""
    guard = _locked(tx, guard_id)
    if guard is None or guard.verdict is None:
        return _Step(stop=True, done=True)
    outcomes: Counter[EvidenceOutcome] = Counter()
    verdict = Judgement(guard.verdict)
    match verdict:
        case Judgement.ACCEPTED:
            if store.find_open(tx, guard.push_service) is not None:
                return _Step(stop=True)
            outcomes = apply_waiting(tx, rt.settings, guard.push_service, guard_id, PAGE)
            left = bool(outcomes)
        case Judgement.REJECTED:
            left = store.discard(tx, guard, DISCARD_PAGE) > 0
        case _:
            assert_never(verdict)
    if left:
        return _Step(outcomes=outcomes)
    return _Step(stop=True, done=True, settled=guard if store.set_settled(tx, guard_id) else None)


def _say_settled(rt: Runtime, guard: Guard, outcomes: Counter[EvidenceOutcome]) -> None:
    revoked = outcomes[EvidenceOutcome.REVOKED] + outcomes[EvidenceOutcome.VOTED_OUT]
    rt.events.emit(
        "guard.settled",
        service=guard.push_service,
        guard=guard.guard_id,
        verdict=guard.verdict,
        rows=outcomes.total(),
        revoked=revoked,
    )
