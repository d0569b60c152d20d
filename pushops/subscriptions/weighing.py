"""Bad news, a round at a time: believed, doubted or kept for an operator, by conditions that the statements check."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.finding import Evidence, EvidenceOutcome, EvidenceState, Finding
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.subscriptions.store import auditing, periods
from pushops.subscriptions.store import evidence as store
from pushops.subscriptions.store.evidence import Answers, Looked, Standing, VoteRules

ACTOR: Final = "push-service"
PROOF: Final = timedelta(hours=1)  # a sibling's success within it proves that our key is good there
FAULTS: Final = "faults"  # why a push service is unhealthy where its guard has nothing to do with it

_EVENTS: Final = {
    EvidenceOutcome.REVOKED: Event.GONE,
    EvidenceOutcome.VOTED: Event.VOTE,
    EvidenceOutcome.VOTED_OUT: Event.VOTED_OUT,
}
APPLIED: Final = frozenset({*_EVENTS, EvidenceOutcome.BLOCKED})
# What is written of these is that the attempt settled.
_TRIED: Final = frozenset(
    {EvidenceOutcome.TOO_SOON, EvidenceOutcome.DOUBTED, EvidenceOutcome.PENDING, EvidenceOutcome.COUNTED}
)
_KEPT: Final = frozenset({Finding.GONE, Finding.VOTE, Finding.MISMATCH, Finding.BAD_KEYS})


@dataclass(frozen=True, slots=True)
class Weighed:
    """``was``: the row before; None where there is none."""

    evidence: Evidence
    outcome: EvidenceOutcome
    was: Looked | None

    @property
    def kept(self) -> bool:
        return self.was is not None and self.evidence.finding in _KEPT

    @property
    def state(self) -> EvidenceState:
        if self.outcome in APPLIED:
            return EvidenceState.APPLIED
        return EvidenceState.PENDING if self.outcome is EvidenceOutcome.PENDING else EvidenceState.NOTHING


def rounds(found: Iterable[Evidence]) -> list[list[Evidence]]:
    """In each round a subscription stands at most once, so that of two answers the later sees what the earlier did."""
    made: list[list[Evidence]] = []
    seen: dict[UUID, int] = {}
    for evidence in found:
        number = seen.get(evidence.subscription_id, 0)
        seen[evidence.subscription_id] = number + 1
        if number == len(made):
            made.append([])
        made[number].append(evidence)
    return made


def weigh(tx: Tx, rules: VoteRules, standing: Standing, found: Sequence[Evidence]) -> list[Weighed]:
    """Apply one round; what each did, in its order. Rows are locked in id order first."""
    was = store.look(tx, [evidence.subscription_id for evidence in found])
    outcomes = _act(tx, rules, standing, [evidence for evidence in found if evidence.subscription_id in was])
    weighed = [
        Weighed(evidence, outcomes.get(evidence.subscription_id) or _why_not(evidence, row, standing), row)
        for evidence in found
        for row in [was.get(evidence.subscription_id)]
    ]
    _tried(tx, weighed)
    _follow(tx, weighed)
    return weighed


def _act(tx: Tx, rules: VoteRules, standing: Standing, found: Sequence[Evidence]) -> dict[UUID, EvidenceOutcome]:
    """What moved rows did, by subscription: a statement or two for each kind of finding that there is."""
    done: dict[UUID, EvidenceOutcome] = {}
    if standing.guard_id is None:
        done |= _each(tx, found, Finding.GONE, store.revoke, EvidenceOutcome.REVOKED)
        if standing.unhealthy_why is None:
            done |= _vote(tx, rules, found)
            done |= _each(tx, found, Finding.MISMATCH, _block_foreign, EvidenceOutcome.BLOCKED)
    done |= _each(tx, found, Finding.BAD_KEYS, store.block_broken, EvidenceOutcome.BLOCKED)
    return done | _each(tx, found, Finding.DEVICE_LIMIT, store.learn, EvidenceOutcome.LEARNT)


def _each(
    tx: Tx,
    found: Sequence[Evidence],
    finding: Finding,
    act: Callable[[Tx, Answers], set[UUID]],
    outcome: EvidenceOutcome,
) -> dict[UUID, EvidenceOutcome]:
    chosen = [evidence for evidence in found if evidence.finding is finding]
    return dict.fromkeys(act(tx, answers(tx, chosen)), outcome) if chosen else {}


def _vote(tx: Tx, rules: VoteRules, found: Sequence[Evidence]) -> dict[UUID, EvidenceOutcome]:
    votes = [evidence for evidence in found if evidence.finding is Finding.VOTE]
    if not votes:
        return {}
    out, more = store.vote(tx, answers(tx, votes), rules)
    return dict.fromkeys(out, EvidenceOutcome.VOTED_OUT) | dict.fromkeys(more, EvidenceOutcome.VOTED)


def _block_foreign(tx: Tx, found: Answers) -> set[UUID]:
    return store.block_foreign(tx, found, PROOF)


def answers(tx: Tx, found: Iterable[Evidence]) -> Answers:
    """In id order, as everybody takes rows."""
    made = sorted(found, key=lambda evidence: evidence.subscription_id)
    return Answers(
        ids=[evidence.subscription_id for evidence in made],
        registrations=[evidence.registration_no for evidence in made],
        started=[evidence.started_at for evidence in made],
        statuses=[evidence.status for evidence in made],
        ats=[evidence.at or tx.now for evidence in made],
        lanes=[evidence.lane_id for evidence in made],
        limits=[evidence.max_payload for evidence in made],
    )


def _why_not(evidence: Evidence, row: Looked | None, standing: Standing) -> EvidenceOutcome:  # noqa: PLR0911  (one reason a line)
    if row is None:
        return EvidenceOutcome.UNKNOWN
    if row.ended:
        return EvidenceOutcome.ALREADY_ENDED
    late = row.last_success_at is not None and row.last_success_at > evidence.started_at
    if row.registration_no != evidence.registration_no or (late and evidence.finding is not Finding.BAD_KEYS):
        return EvidenceOutcome.SUPERSEDED
    if evidence.finding is Finding.MISMATCH:
        return EvidenceOutcome.BLOCKED if row.send_block == "key_mismatch" else EvidenceOutcome.COUNTED
    if evidence.finding is Finding.BAD_KEYS:
        return EvidenceOutcome.BLOCKED
    if evidence.finding is Finding.VOTE and standing.unhealthy_why == FAULTS:
        return EvidenceOutcome.DOUBTED
    return EvidenceOutcome.TOO_SOON if standing.guard_id is None else EvidenceOutcome.PENDING


def _tried(tx: Tx, weighed: Sequence[Weighed]) -> None:
    found = answers(tx, (one.evidence for one in weighed if one.outcome in _TRIED))
    if found.ids:
        store.tried(tx, found.ids, found.registrations)


def _follow(tx: Tx, weighed: Sequence[Weighed]) -> None:
    """An end closes its period and names its campaign; each is audited."""
    ended: dict[tuple[str, str | None], list[bytes]] = {}
    entries: list[auditing.Entry] = []
    for one in weighed:
        event = _EVENTS.get(one.outcome)
        if event is None or one.was is None:
            continue
        reason = END_REASON.get(event)
        detail: dict[str, Any] = {"event": event, "status": one.evidence.status, "campaign": one.evidence.campaign_id}
        if reason is not None:
            detail |= {"reason": reason, "was": one.was.state}
            ended.setdefault((reason, one.evidence.campaign_id), []).append(one.was.endpoint_hash)
        entries.append((one.was.endpoint_hash, one.was.user_id, detail))
    for (reason, campaign), hashes in ended.items():
        periods.close(tx, hashes, reason, campaign)
    auditing.write(tx, "evidence", ACTOR, entries)
