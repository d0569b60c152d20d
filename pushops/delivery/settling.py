"""What came of a batch of attempts, written down in one transaction per push service: health first, then evidence and
ledger, so that no answer is believed that the guard would have doubted.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import finishing, guard, observing, retry
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Lifecycle, Outcome, Retry, Table, Verdict, classify, learn, snippet
from pushops.delivery.observing import Kind, Observation, Observed
from pushops.delivery.preparing import Outgoing, host_of
from pushops.delivery.retry import Again, End, Ended, Facts
from pushops.delivery.store import lanes, ledger
from pushops.delivery.store.ledger import Claimed
from pushops.errors import ContendedError
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding, apply_batch
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.sweeps.sql import PLAN_INDEX

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
class Settled:
    """How many attempts ended how; ``lost``: rows that were no longer ours; ``to_resign``: origins and key ids whose
    tokens were refused; ``waits``: the push service is sent probes only from now on, ``held_lanes`` of it are;
    ``did``: what the evidence did to how many subscriptions.
    """

    outcomes: Mapping[Outcome, int]
    lost: int
    to_resign: frozenset[tuple[str, str]]
    waits: bool
    held_lanes: frozenset[int]
    did: Mapping[EvidenceOutcome, int]


def judge(table: Table, out: Outgoing, answer: Answer) -> Attempt:
    verdict = classify(answer, out.row.push_service, table, host=host_of(out.row.endpoint))
    return Attempt(out.row, answer, verdict, out.at, len(out.payload), out.probe)


def settle(rt: Runtime, service: str, token: UUID, attempts: Sequence[Attempt]) -> Settled:
    """Write down a batch of one push service. Rows that another worker owns by now are left to it."""
    for tries in range(TRIES):
        try:
            with rt.db.transaction(
                planner=PLAN_INDEX, lock_timeout=QUEUE, statement_timeout=QUEUE + rt.settings.statement_timeout
            ) as tx:
                observed, settled = _settle(tx, rt, service, token, attempts)
            break
        except ContendedError:
            if tries == TRIES - 1:
                raise
    observing.announce(rt, observed)
    _tell(rt, service, attempts, settled)
    if observed.opened_guard is not None:
        guard.turn_back(rt, observed.opened_guard, TURN_BACK)
    return settled


def _settle(tx: Tx, rt: Runtime, service: str, token: UUID, attempts: Sequence[Attempt]) -> tuple[Observed, Settled]:
    probe = any(attempt.probe for attempt in attempts)
    observed = observing.observe(tx, rt.settings, service, [_observation(a) for a in attempts], probe=probe)
    blocked = _mismatches(tx, rt, service, attempts, observed)
    kept = _accepted(tx, token, attempts) | _others(tx, rt, token, attempts, observed, blocked)
    rest = [a for a in attempts if _key(a.row) in kept and a.verdict.lifecycle is not Lifecycle.MISMATCH]
    did = Counter(apply_batch(tx, rt.settings, service, [_evidence(a) for a in rest], observed.guard_id))
    did[EvidenceOutcome.BLOCKED] += len(blocked)
    _after(tx, rt, service, attempts, observed)
    counted = Counter(attempt.verdict.outcome for attempt in attempts)
    refused = [a.row for a in attempts if a.verdict.retry is Retry.RESIGN]
    to_resign = frozenset((f"https://{host_of(row.endpoint)}", row.vapid_key_id or "") for row in refused)
    lost = len(attempts) - len(kept)
    return observed, Settled(counted, lost, to_resign, observed.waits, observed.held_lanes, did)


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


def _mismatches(
    tx: Tx, rt: Runtime, service: str, attempts: Sequence[Attempt], observed: Observed
) -> set[tuple[UUID, bytes]]:
    """The rows that their foreign key blocks, which a success of their siblings proves to be theirs alone."""
    found = [a for a in attempts if a.verdict.lifecycle is Lifecycle.MISMATCH and not _held(a, observed)]
    if not found:
        return set()
    outcomes = apply_batch(tx, rt.settings, service, [_evidence(a) for a in found], observed.guard_id)
    return {_key(a.row) for a, outcome in zip(found, outcomes, strict=True) if outcome is EvidenceOutcome.BLOCKED}


def _accepted(tx: Tx, token: UUID, attempts: Sequence[Attempt]) -> set[tuple[UUID, bytes]]:
    """The many: one statement with little to say."""
    done = [a for a in attempts if a.verdict.outcome is Outcome.ACCEPTED]
    if not done:
        return set()
    learnt = [learn(a.answer, a.verdict, a.payload_bytes, a.row.ttl) for a in done]
    ttls = [one.granted_ttl if one.clamped else None for one in learnt]
    return ledger.settle_accepted(tx, token, [a.row for a in done], [a.answer.status for a in done], ttls)


def _others(
    tx: Tx,
    rt: Runtime,
    token: UUID,
    attempts: Sequence[Attempt],
    observed: Observed,
    blocked: set[tuple[UUID, bytes]],
) -> set[tuple[UUID, bytes]]:
    rows = [
        _row(tx, rt, attempt, observed, blocked=_key(attempt.row) in blocked)
        for attempt in attempts
        if attempt.verdict.outcome is not Outcome.ACCEPTED
    ]
    return ledger.settle(tx, token, json.dumps(rows)) if rows else set()


def _row(tx: Tx, rt: Runtime, attempt: Attempt, observed: Observed, *, blocked: bool) -> dict[str, Any]:
    """What SETTLE writes of one attempt."""
    row, verdict = attempt.row, attempt.verdict
    text = snippet(attempt.answer, row.endpoint)
    same = verdict.code == row.last_code and text == row.last_snippet
    repeats = row.repeats + 1 if same else 0
    common = {
        "message_id": str(row.message_id),
        "endpoint_hash": rf"\x{row.endpoint_hash.hex()}",
        "code": verdict.code,
        "status": attempt.answer.status,
        "snippet": text,
        "ambiguous": verdict.outcome is Outcome.AMBIGUOUS,
        "repeats": repeats,
        "suspect": _kind(attempt) in SUSPECT,
        "granted_ttl": None,
    }
    match _decide(tx, rt, attempt, observed, repeats=repeats, blocked=blocked):
        case Ended(outcome, code):
            return common | {"outcome": outcome, "code": code, "spends": True, "wait": None, "next_attempt_at": None}
        case Again(at, spends, why):
            return common | {"outcome": None, "spends": spends, "wait": why, "next_attempt_at": at.isoformat()}


def _decide(tx: Tx, rt: Runtime, attempt: Attempt, observed: Observed, *, repeats: int, blocked: bool) -> Ended | Again:
    row = attempt.row
    if blocked:
        return Ended(End.KEY_MISMATCH, attempt.verdict.code)
    facts = Facts(
        attempts=row.attempts,
        first_attempt_at=row.first_attempt_at,
        last_code=row.last_code,
        repeats=repeats,
        ambiguous=row.ambiguous,
        expires_at=row.expires_at,
        on_ambiguous=row.on_ambiguous,
        waits=_held(attempt, observed),
        others_succeed=observed.others_succeed,
        jitter=random.uniform(-1, 1),  # noqa: S311  (spreads retries, keeps no secret)
    )
    return retry.decide(attempt.verdict, attempt.answer, facts, rt.settings, tx.now)


def _held(attempt: Attempt, observed: Observed) -> bool:
    """Whether the answer fell into a hold or an outage: then it cost the row nothing."""
    return observed.waits or attempt.row.lane_id in observed.held_lanes


SUSPECT: Final = frozenset({Kind.DENIED, Kind.FAULTY, Kind.MISMATCH})


def _kind(attempt: Attempt) -> Kind:
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


def _observation(attempt: Attempt) -> Observation:
    return Observation(
        attempt.row.lane_id,
        _kind(attempt),
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


def _key(row: Claimed) -> tuple[UUID, bytes]:
    return row.message_id, row.endpoint_hash


def _tell(rt: Runtime, service: str, attempts: Sequence[Attempt], settled: Settled) -> None:
    rt.events.emit("send.settled", service=service, rows=len(attempts), lost=settled.lost, outcomes=settled.outcomes)
    for attempt in attempts:
        if not attempt.verdict.known:
            rt.events.emit(
                "send.unknown_reason", service=service, status=attempt.answer.status, row=attempt.verdict.row
            )
        if attempt.answer.fault is Fault.TAMPERED:
            rt.events.emit("send.tampered", service=service)
    for outcome, reason in _ENDS.items():
        if settled.did[outcome]:
            rt.events.emit("subscription.ended", verb="evidence", reason=reason, rows=settled.did[outcome])
    if settled.did[EvidenceOutcome.BLOCKED]:
        rt.events.emit("subscription.blocked", service=service, rows=settled.did[EvidenceOutcome.BLOCKED])


_ENDS: Final = {
    EvidenceOutcome.REVOKED: END_REASON[Event.GONE],
    EvidenceOutcome.VOTED_OUT: END_REASON[Event.VOTED_OUT],
}
