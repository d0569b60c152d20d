"""What came of a batch of replays, written down in one transaction per push service: believed as live answers are."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters.letter import RESOLVED, CloseReason, ReplayOutcome
from pushops.deadletters.replay.deciding import FAILS, FAILURES, Decision, Facts, Streaks, decide
from pushops.deadletters.store import replaying
from pushops.delivery import meaning
from pushops.delivery.classify import Outcome, snippet
from pushops.delivery.meaning import Attempt, Believed
from pushops.delivery.store.ledger import Claimed
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import EvidenceOutcome
from pushops.sweeps import store as sweeps_store

NO_STREAK: Final = Streaks()


@dataclass(slots=True)
class Opened(Claimed):
    """A letter with an attempt opened, and all that sending it takes. ``service``: the push service of its lane.

    ``verdict``: the gate that kept it from being opened after all; then nothing else of it is to be relied on.
    """

    dlq_id: UUID
    replay_key: UUID
    attempt: int
    replay_count: int
    on_in_doubt: str
    service: str
    verdict: str | None


@dataclass(frozen=True)
class Hand:
    """Whose letters these are: a token, the run if there is one, and by whom they are closed.

    ``why``: it is forced. ``closed``: they are closed already, and stay so whatever comes of it.
    """

    token: UUID
    by: str
    run_id: UUID | None = None
    why: str | None = None
    closed: bool = False


@dataclass(frozen=True)
class Settled:
    """``to_resign``: origins and key ids whose tokens were refused. ``stop``: why nothing more should be sent."""

    counted: Mapping[ReplayOutcome, int]
    to_resign: frozenset[tuple[str, str]]
    stop: str | None


@dataclass(frozen=True)
class _Done:
    believed: Believed
    kept: frozenset[UUID]
    counted: Counter[ReplayOutcome]
    in_row: int
    did: Mapping[EvidenceOutcome, int] = field(default_factory=dict)


def settle(rt: Runtime, hand: Hand, attempts: Sequence[Attempt], streak: Streaks) -> list[Settled]:
    """Write down answers in the order in which they came, push service by push service; ``streak``: of all of them.

    A letter that another holds by now keeps what the other did. Waits for a database that is away.
    """
    groups: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(_letter(attempt).service, []).append(attempt)
    last = next(reversed(groups), None)
    return [
        _settle_one(rt, hand, service, group, streak if service == last else NO_STREAK)
        for service, group in groups.items()
    ]


def _settle_one(rt: Runtime, hand: Hand, service: str, attempts: Sequence[Attempt], streak: Streaks) -> Settled:
    def once() -> _Done:
        return meaning.settle_in_one(rt, lambda tx: _settle(tx, rt, hand, service, attempts, streak))

    done = meaning.patiently(once)
    lost = len(attempts) - len(done.kept)
    rt.events.emit(
        "replay.settled", service=service, run=hand.run_id, rows=len(attempts), lost=lost, outcomes=done.counted
    )
    if lost:
        rt.events.emit("replay.lost", service=service, run=hand.run_id, rows=lost)
    meaning.tell(rt, service, attempts, done.believed.observed, done.did)
    stop = _stop(done, service, attempts, streak)
    return Settled(done.counted, meaning.refused_tokens(attempts), stop)


def _settle(tx: Tx, rt: Runtime, hand: Hand, service: str, attempts: Sequence[Attempt], streak: Streaks) -> _Done:
    believed = meaning.believe(tx, rt, service, attempts)
    counted: dict[UUID, ReplayOutcome] = {}
    if hand.closed:
        kept = _closed(tx, rt, hand, attempts, believed, counted)
    else:
        kept = _accepted(tx, hand, attempts, counted) | _others(tx, rt, hand, attempts, believed, counted)
    ours = {meaning.key_of(a.row) for a in attempts if _letter(a).dlq_id in kept}
    did = meaning.apply(tx, rt, service, attempts, believed, ours)
    outcomes = Counter(outcome for dlq_id, outcome in counted.items() if dlq_id in kept)
    return _Done(believed, frozenset(kept), outcomes, _count(tx, hand, outcomes, streak), did)


def _count(tx: Tx, hand: Hand, outcomes: Mapping[ReplayOutcome, int], streak: Streaks) -> int:
    """The run's row counts; how many failures were in a row, before a success as well as now."""
    if hand.run_id is None:
        return 0
    in_row = sweeps_store.add_outcomes(tx, hand.run_id, outcomes, streak=streak.lead)
    if streak.success:
        after = sweeps_store.add_outcomes(tx, hand.run_id, {}, streak=streak.tail, reset=True)
        return max(in_row, after) if streak.lead else after
    return in_row


def _accepted(tx: Tx, hand: Hand, attempts: Sequence[Attempt], counted: dict[UUID, ReplayOutcome]) -> set[UUID]:
    """The many: one statement with little to say."""
    done = [a for a in attempts if a.verdict.outcome is Outcome.ACCEPTED]
    if not done:
        return set()
    letters = [_letter(a) for a in done]
    counted.update((letter.dlq_id, ReplayOutcome.REPLAYED) for letter in letters)
    return replaying.settle_accepted(
        tx,
        hand.token,
        [letter.dlq_id for letter in letters],
        [letter.attempt for letter in letters],
        [a.answer.status for a in done],
        by=hand.by,
        reason=CloseReason.REPLAYED if hand.why is None else CloseReason.RESENT,
        why=hand.why,
    )


def _others(
    tx: Tx,
    rt: Runtime,
    hand: Hand,
    attempts: Sequence[Attempt],
    believed: Believed,
    counted: dict[UUID, ReplayOutcome],
) -> set[UUID]:
    others = [attempt for attempt in attempts if attempt.verdict.outcome is not Outcome.ACCEPTED]
    rows = _decided(tx, rt, others, believed, counted)
    return replaying.settle(tx, hand.token, rows, by=hand.by) if rows else set()


def _closed(
    tx: Tx,
    rt: Runtime,
    hand: Hand,
    attempts: Sequence[Attempt],
    believed: Believed,
    counted: dict[UUID, ReplayOutcome],
) -> set[UUID]:
    """Letters that were closed before: what is decided of parked ones is only counted."""
    return replaying.settle_closed(tx, _decided(tx, rt, attempts, believed, counted), by=hand.by, why=hand.why)


def _decided(
    tx: Tx, rt: Runtime, attempts: Sequence[Attempt], believed: Believed, counted: dict[UUID, ReplayOutcome]
) -> list[dict[str, Any]]:
    """What becomes of each, as SETTLE's rows; counted on the way."""
    rows = []
    for attempt in attempts:
        decision = decide(attempt.verdict, attempt.answer, _facts(attempt, believed), rt.settings, tx.now)
        counted[_letter(attempt).dlq_id] = decision.counted
        rows.append(_row(tx, attempt, decision))
    return rows


def _facts(attempt: Attempt, believed: Believed) -> Facts:
    letter = _letter(attempt)
    return Facts(
        replay_count=letter.replay_count,
        on_in_doubt=letter.on_in_doubt,
        held=believed.held(attempt),
        doubted=believed.observed.guard_open,
        blocked=meaning.key_of(letter) in believed.blocked,
        jitter=random.uniform(-1, 1),  # noqa: S311  (spreads retries, keeps no secret)
    )


def _row(tx: Tx, attempt: Attempt, decision: Decision) -> dict[str, Any]:
    """What SETTLE writes of one attempt."""
    letter, status = _letter(attempt), attempt.answer.status
    ends = decision.reason is not None
    return {
        "dlq_id": str(letter.dlq_id),
        "attempt": letter.attempt,
        "outcome": attempt.verdict.outcome,
        "status": status,
        "code": attempt.verdict.code,
        "snippet": snippet(attempt.answer, letter.endpoint),
        "state": "discarded" if ends else "parked",
        "close_reason": decision.reason,
        "poison": decision.poison,
        "spends": decision.spends,
        "in_doubt": decision.in_doubt,
        "of_letter": decision.spends and status not in RESOLVED,
        "next_replay_at": None if ends or decision.wait is None else (tx.now + decision.wait).isoformat(),
    }


def _stop(done: _Done, service: str, attempts: Sequence[Attempt], streak: Streaks) -> str | None:
    """Why the run should stop, by these answers; None where it may go on."""
    observed = done.believed.observed
    if observed.waits:
        return f"{service} is unhealthy: {observed.code or 'by other answers'}"
    if observed.held_lanes:
        return f"{service} refuses our key or configuration: a lane of it is held"
    in_row = max(done.in_row, streak.longest)
    if in_row >= FAILURES:
        codes = [a.verdict.code for a in attempts if a.verdict.outcome in FAILS]
        return f"{in_row} failures in a row" + (f", the last {codes[-1]}" if codes else "")
    return None


def _letter(attempt: Attempt) -> Opened:
    assert isinstance(attempt.row, Opened)  # noqa: S101  (we made it)
    return attempt.row
