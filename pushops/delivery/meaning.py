"""What answers mean, whoever sent: for the push service and our keys, for the subscriptions, for what waits there."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import finishing, guard, observing, retry
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Lifecycle, Outcome, Retry, Table, Verdict, classify, learn
from pushops.delivery.observing import Kind, Observation, Observed
from pushops.delivery.preparing import Outgoing, host_of
from pushops.delivery.store import lanes, ledger
from pushops.delivery.store.ledger import Claimed
from pushops.errors import ContendedError, TransientDatabaseError
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding, apply_batch
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.sweeps.sql import PLAN_INDEX

T = TypeVar("T")
Key = tuple[UUID, bytes]

SETTLE_TRIES: Final = 15  # about twenty seconds: a restarted PostgreSQL is back by then, and the leases still hold
TRIES: Final = 5  # a deadlock's loser begins again; the winner has gone on by then
SLOW_SHARE: Final = 0.2  # of a batch that was throttled: then it is the push service, no longer one endpoint
SLOW_LEAST: Final = 3
TURN_BACK: Final = timedelta(seconds=5)
QUEUE: Final = timedelta(seconds=10)  # settlers of one push service wait for each other: what was sent must be settled


@dataclass(frozen=True, slots=True)
class Attempt:
    """One row's answer, judged. ``started_at``: the database's time of its claim; ``payload_bytes``: of plaintext."""

    row: Claimed
    answer: Answer
    verdict: Verdict
    started_at: datetime
    payload_bytes: int
    probe: bool = False


@dataclass(frozen=True)
class Believed:
    """What a batch of answers made so; ``blocked``: rows that their foreign key blocks."""

    observed: Observed
    blocked: Collection[Key]

    def held(self, attempt: Attempt) -> bool:
        """Whether the answer fell into a hold or an outage: then it cost the row nothing."""
        return self.observed.waits or attempt.row.lane_id in self.observed.held_lanes


def judge(table: Table, out: Outgoing, answer: Answer) -> Attempt:
    verdict = classify(answer, out.row.push_service, table, host=host_of(out.row.endpoint))
    return Attempt(out.row, answer, verdict, out.at, len(out.payload), out.probe)


def key_of(row: Claimed) -> Key:
    return row.message_id, row.endpoint_hash


def settle_in_one(rt: Runtime, work: Callable[[Tx], T]) -> T:
    """One transaction that begins again where it was a deadlock's loser, and waits for other settlers."""
    for tries in range(TRIES):
        try:
            with rt.db.transaction(
                planner=PLAN_INDEX, lock_timeout=QUEUE, statement_timeout=QUEUE + rt.settings.statement_timeout
            ) as tx:
                return work(tx)
        except ContendedError:
            if tries == TRIES - 1:
                raise
    raise AssertionError("expected the last try to return or to raise")


def patiently(settle: Callable[[], T]) -> T:
    """A database that is away for a moment must not make ambiguous what was answered."""
    for tries in range(SETTLE_TRIES - 1):
        try:
            return settle()
        except TransientDatabaseError:
            time.sleep(min(2.0, 0.1 * 2**tries))
    return settle()


def believe(tx: Tx, rt: Runtime, service: str, attempts: Sequence[Attempt]) -> Believed:
    """Health first: no answer is believed that the guard would have doubted. Call it first in the transaction."""
    probe = any(attempt.probe for attempt in attempts)
    observed = observing.observe(tx, rt.settings, service, [_observation(a) for a in attempts], probe=probe)
    return Believed(observed, _mismatches(tx, rt, service, attempts, Believed(observed, ())))


def apply(
    tx: Tx, rt: Runtime, service: str, attempts: Sequence[Attempt], believed: Believed, kept: Collection[Key]
) -> Counter[EvidenceOutcome]:
    """What it means for subscriptions, by the rows that are still ours (``kept``), and for what waits beside them."""
    rest = [a for a in attempts if key_of(a.row) in kept and a.verdict.lifecycle is not Lifecycle.MISMATCH]
    did = Counter(apply_batch(tx, rt.settings, service, [_evidence(a) for a in rest], believed.observed.guard_id))
    did[EvidenceOutcome.BLOCKED] += len(believed.blocked)
    _after(tx, rt, service, attempts, believed.observed)
    return did


def tell(
    rt: Runtime,
    service: str,
    attempts: Sequence[Attempt],
    observed: Observed,
    did: Mapping[EvidenceOutcome, int],
) -> None:
    """Say what became so, after the commit; and turn back what a guard's opening makes doubtful."""
    observing.announce(rt, observed)
    for attempt in attempts:
        if not attempt.verdict.known:
            rt.events.emit(
                "send.unknown_reason", service=service, status=attempt.answer.status, row=attempt.verdict.row
            )
        if attempt.answer.fault is Fault.TAMPERED:
            rt.events.emit("send.tampered", service=service)
    for outcome, reason in _ENDS.items():
        if did.get(outcome):
            rt.events.emit("subscription.ended", verb="evidence", reason=reason, rows=did[outcome])
    if did.get(EvidenceOutcome.BLOCKED):
        rt.events.emit("subscription.blocked", service=service, rows=did[EvidenceOutcome.BLOCKED])
    if observed.opened_guard is not None:
        guard.turn_back(rt, observed.opened_guard, TURN_BACK)


_ENDS: Final = {
    EvidenceOutcome.REVOKED: END_REASON[Event.GONE],
    EvidenceOutcome.VOTED_OUT: END_REASON[Event.VOTED_OUT],
}


def refused_tokens(attempts: Sequence[Attempt]) -> frozenset[tuple[str, str]]:
    """Origins and key ids whose tokens were refused."""
    refused = [a.row for a in attempts if a.verdict.retry is Retry.RESIGN]
    return frozenset((f"https://{host_of(row.endpoint)}", row.vapid_key_id or "") for row in refused)


def kind(attempt: Attempt) -> Kind:
    """What an answer says of whoever gave it."""
    verdict = attempt.verdict
    if verdict.lifecycle in (Lifecycle.VOTE, Lifecycle.REVOKE):
        return Kind.TERMINAL
    if verdict.lifecycle is Lifecycle.MISMATCH:
        return Kind.MISMATCH
    if verdict.retry in (Retry.HOLD, Retry.RESIGN):
        return Kind.DENIED
    return _KINDS.get(verdict.outcome, Kind.OTHER)


_KINDS: Final = {
    Outcome.ACCEPTED: Kind.ACCEPTED,
    Outcome.THROTTLED: Kind.THROTTLED,
    Outcome.UNAVAILABLE: Kind.FAULTY,
    Outcome.UNREACHABLE: Kind.FAULTY,
    Outcome.AMBIGUOUS: Kind.FAULTY,
}


def _mismatches(tx: Tx, rt: Runtime, service: str, attempts: Sequence[Attempt], believed: Believed) -> set[Key]:
    """The rows that their foreign key blocks, which a success of their siblings proves to be theirs alone."""
    found = [a for a in attempts if a.verdict.lifecycle is Lifecycle.MISMATCH and not believed.held(a)]
    if not found:
        return set()
    outcomes = apply_batch(tx, rt.settings, service, [_evidence(a) for a in found], believed.observed.guard_id)
    return {key_of(a.row) for a, outcome in zip(found, outcomes, strict=True) if outcome is EvidenceOutcome.BLOCKED}


def _after(tx: Tx, rt: Runtime, service: str, attempts: Sequence[Attempt], observed: Observed) -> None:
    """What else the answers mean: a pace to take, an endpoint to leave alone, attempts to give back."""
    throttled = [a for a in attempts if a.verdict.outcome is Outcome.THROTTLED]
    if len(throttled) >= max(SLOW_LEAST, SLOW_SHARE * len(attempts)):
        lanes.slow(tx, service)
    if throttled:
        untils = [tx.now + retry.wait_of(a.answer, a.verdict, rt.settings, tx.now) for a in throttled]
        ledger.throttle(tx, [a.row.endpoint_hash for a in throttled], untils)
    if observed.opened_holds or observed.became_unhealthy:
        troubled = sorted(set(observed.held_lanes) | {a.row.lane_id for a in attempts if observed.waits})
        ledger.give_back(tx, troubled, rt.settings.unhealthy_window)
    if observed.lifted:
        messages = [one.message_id for one in observed.lifted]
        ledger.reopen(tx, messages, [one.endpoint_hash for one in observed.lifted])
        finishing.reopen(tx, sorted(set(messages)))


def _observation(attempt: Attempt) -> Observation:
    return Observation(
        attempt.row.lane_id,
        kind(attempt),
        answered=attempt.answer.status is not None,
        code=attempt.verdict.code,
        endpoint_hash=attempt.row.endpoint_hash,
    )


_FINDINGS: Final = {
    Lifecycle.SUCCESS: Finding.ACCEPTED,
    Lifecycle.REVOKE: Finding.GONE,
    Lifecycle.VOTE: Finding.VOTE,
    Lifecycle.MISMATCH: Finding.MISMATCH,
    Lifecycle.BAD_KEYS: Finding.BAD_KEYS,
    Lifecycle.DEVICE_LIMIT: Finding.DEVICE_LIMIT,
    Lifecycle.NONE: Finding.NONE,
}


def _evidence(attempt: Attempt) -> Evidence:
    row = attempt.row
    return Evidence(
        subscription_id=row.subscription_id,
        registration_no=row.registration_no,
        finding=_FINDINGS[attempt.verdict.lifecycle],
        started_at=attempt.started_at,
        status=attempt.answer.status,
        campaign_id=row.campaign_id,
        message_id=row.message_id,
        lane_id=row.lane_id,
        code=attempt.verdict.code,
        max_payload=_max_payload(attempt),
    )


def _max_payload(attempt: Attempt) -> int | None:
    if attempt.verdict.lifecycle is not Lifecycle.DEVICE_LIMIT:
        return None
    return learn(attempt.answer, attempt.verdict, attempt.payload_bytes).max_payload
