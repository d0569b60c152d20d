"""What came of a batch of attempts, written down in one transaction per push service: health first, then evidence and
ledger, so that no answer is believed that the guard would have doubted.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters.letter import Letter
from pushops.deadletters.store import parking as store
from pushops.deadletters.writer import park
from pushops.delivery import meaning, retry
from pushops.delivery.classify import Outcome, learn, snippet
from pushops.delivery.meaning import Attempt, Believed, Key, judge, key_of
from pushops.delivery.observing import Kind
from pushops.delivery.parking import dead
from pushops.delivery.retry import Again, End, Ended, Facts
from pushops.delivery.store import ledger
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import EvidenceOutcome

__all__ = ["Attempt", "Settled", "judge", "settle"]


@dataclass(frozen=True)
class Settled:
    """How many attempts ended how; ``lost``: rows that were no longer ours; ``to_resign``: origins and key ids whose
    tokens were refused; ``waits``: the push service is sent probes only from now on, ``held_lanes`` of it are;
    ``did``: what the evidence did to how many subscriptions; ``letters``: what ended unresolved, and is owed.
    """

    outcomes: Mapping[Outcome, int]
    lost: int
    to_resign: frozenset[tuple[str, str]]
    waits: bool
    held_lanes: frozenset[int]
    did: Mapping[EvidenceOutcome, int]
    letters: Sequence[Letter] = ()


def settle(rt: Runtime, service: str, token: UUID, attempts: Sequence[Attempt]) -> Settled:
    """Write down a batch of one push service. Rows that another worker owns by now are left to it."""
    believed, settled = meaning.settle_in_one(rt, lambda tx: _settle(tx, rt, service, token, attempts))
    rt.events.emit("send.settled", service=service, rows=len(attempts), lost=settled.lost, outcomes=settled.outcomes)
    meaning.tell(rt, service, attempts, believed.observed, settled.did)
    park(rt, settled.letters)
    return settled


def _settle(tx: Tx, rt: Runtime, service: str, token: UUID, attempts: Sequence[Attempt]) -> tuple[Believed, Settled]:
    believed = meaning.believe(tx, rt, service, attempts)
    others, letters = _others(tx, rt, token, attempts, believed)
    kept = _accepted(tx, token, attempts) | others
    did = meaning.apply(tx, rt, service, attempts, believed, kept)
    observed = believed.observed
    counted = Counter(attempt.verdict.outcome for attempt in attempts)
    to_resign = meaning.refused_tokens(attempts)
    lost = len(attempts) - len(kept)
    return believed, Settled(counted, lost, to_resign, observed.waits, observed.held_lanes, did, letters)


def _accepted(tx: Tx, token: UUID, attempts: Sequence[Attempt]) -> set[Key]:
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
    believed: Believed,
) -> tuple[set[Key], Sequence[Letter]]:
    """Rows that were ours, and the letters that those of them leave which ended unresolved."""
    others = [attempt for attempt in attempts if attempt.verdict.outcome is not Outcome.ACCEPTED]
    rows = [_row(tx, rt, attempt, believed) for attempt in others]
    kept = ledger.settle(tx, token, json.dumps(rows)) if rows else set()
    ended = {
        key: found
        for attempt, row in zip(others, rows, strict=True)
        if (key := key_of(attempt.row)) in kept and (found := dead(attempt, row["outcome"]))
    }
    return kept, store.owe(tx, ended) if ended else ()


def _row(tx: Tx, rt: Runtime, attempt: Attempt, believed: Believed) -> dict[str, Any]:
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
        "answer": verdict.outcome,
        "ambiguous": verdict.outcome is Outcome.AMBIGUOUS,
        "repeats": repeats,
        "suspect": meaning.kind(attempt) in SUSPECT,
        "granted_ttl": None,
    }
    match _decide(tx, rt, attempt, believed, repeats=repeats):
        case Ended(outcome, code):
            return common | {"outcome": outcome, "code": code, "spends": True, "wait": None, "next_attempt_at": None}
        case Again(at, spends, why):
            return common | {"outcome": None, "spends": spends, "wait": why, "next_attempt_at": at.isoformat()}


def _decide(tx: Tx, rt: Runtime, attempt: Attempt, believed: Believed, *, repeats: int) -> Ended | Again:
    row = attempt.row
    if key_of(row) in believed.blocked:
        return Ended(End.KEY_MISMATCH, attempt.verdict.code)
    facts = Facts(
        attempts=row.attempts,
        first_attempt_at=row.first_attempt_at,
        last_code=row.last_code,
        repeats=repeats,
        ambiguous=row.ambiguous,
        expires_at=row.expires_at,
        on_ambiguous=row.on_ambiguous,
        waits=believed.held(attempt),
        others_succeed=believed.observed.others_succeed,
        jitter=random.uniform(-1, 1),  # noqa: S311  (spreads retries, keeps no secret)
    )
    return retry.decide(attempt.verdict, attempt.answer, facts, rt.settings, tx.now)


SUSPECT: Final = frozenset({Kind.DENIED, Kind.FAULTY, Kind.MISMATCH})
