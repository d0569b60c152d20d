"""The only door for send results: what one answer of a push service does to the lifecycle of its row."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, assert_never
from uuid import UUID

from pushops.db import Tx
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.subscriptions.store import auditing, periods
from pushops.subscriptions.store import evidence as store
from pushops.subscriptions.store.evidence import Affected, Unaffected, VoteRules
from pushops.subscriptions.work import Conn, in_transaction

ACTOR: Final = "push-service"


class Finding(StrEnum):
    """What an answer says about the subscription; a classifier decides, this module applies."""

    ACCEPTED = "accepted"
    GONE = "gone"
    VOTE = "vote"
    NONE = "none"


class EvidenceOutcome(StrEnum):
    ACTIVATED = "activated"  # a success: active, votes cleared
    REVOKED = "revoked"
    VOTED = "voted"
    VOTED_OUT = "voted_out"  # the vote that revoked
    TOO_SOON = "too_soon"  # a vote that does not count
    SUPERSEDED = "superseded"  # registered again, or a success, since the request began
    ALREADY_ENDED = "already_ended"
    UNKNOWN = "unknown"  # no such row: purged
    NOTHING = "nothing"  # only that it was tried


@dataclass(frozen=True)
class Evidence:
    """One answer. ``registration_no`` and ``started_at`` (database time) are those of the claim that sent it."""

    subscription_id: UUID
    registration_no: int
    finding: Finding
    started_at: datetime
    status: int | None = None
    campaign_id: str | None = None


def record_evidence(rt: Runtime, evidence: Evidence, *, conn: Conn | None = None) -> EvidenceOutcome:
    """Apply an answer if the row is still the one that it is about; says what it did. Doubled, it does nothing more.

    Whatever it says, ``last_tried_at`` is written: what was tried in vain ages sooner than what was never tried.
    """
    if evidence.finding is Finding.NONE:
        in_transaction(rt, conn, lambda tx: store.tried(tx, _known(evidence)))
        return EvidenceOutcome.NOTHING
    rules = vote_rules(rt)
    outcome, endpoint_hash = in_transaction(rt, conn, lambda tx: _record(tx, evidence, rules))
    _announce(rt, evidence, outcome, endpoint_hash)
    return outcome


def vote_rules(rt: Runtime) -> VoteRules:
    settings = rt.settings
    return VoteRules(settings.votes, settings.window("vote_min_gap"), settings.window("vote_min_span"))


def _known(evidence: Evidence) -> dict[str, Any]:
    return {
        "id": evidence.subscription_id,
        "registration_no": evidence.registration_no,
        "started_at": evidence.started_at,
        "status": evidence.status,
    }


def _record(tx: Tx, evidence: Evidence, rules: VoteRules) -> tuple[EvidenceOutcome, bytes | None]:
    known = _known(evidence)
    for event in _events(evidence.finding):
        affected = store.apply(tx, event, known, rules)
        if affected is not None:
            _follow(tx, event, affected, evidence)
            return _APPLIED[event], affected.endpoint_hash
    found = store.look(tx, known)
    outcome = _why_not(found)
    if outcome is EvidenceOutcome.TOO_SOON:
        store.tried(tx, known)
    return outcome, None if found is None else found.endpoint_hash


def _events(finding: Finding) -> tuple[Event, ...]:
    """The events that a finding may be, the first that applies being it."""
    match finding:
        case Finding.ACCEPTED:
            return (Event.ACCEPTED,)
        case Finding.GONE:
            return (Event.GONE,)
        case Finding.VOTE:
            return (Event.VOTED_OUT, Event.VOTE)
        case Finding.NONE:
            return ()
        case _:
            assert_never(finding)


_APPLIED: Final = {
    Event.ACCEPTED: EvidenceOutcome.ACTIVATED,
    Event.GONE: EvidenceOutcome.REVOKED,
    Event.VOTE: EvidenceOutcome.VOTED,
    Event.VOTED_OUT: EvidenceOutcome.VOTED_OUT,
}


def _follow(tx: Tx, event: Event, affected: Affected, evidence: Evidence) -> None:
    """A success leaves no trail, since there are millions; an end closes the period and names its campaign."""
    if event is Event.ACCEPTED:
        return
    detail: dict[str, Any] = {"event": event, "status": evidence.status, "campaign": evidence.campaign_id}
    if event in END_REASON:
        detail |= {"reason": END_REASON[event], "was": affected.previous_state}
        periods.close(tx, [affected.endpoint_hash], END_REASON[event], evidence.campaign_id)
    auditing.write(tx, "evidence", ACTOR, [(affected.endpoint_hash, affected.user_id, detail)])


def _why_not(found: Unaffected | None) -> EvidenceOutcome:
    if found is None:
        return EvidenceOutcome.UNKNOWN
    if found.ended:
        return EvidenceOutcome.ALREADY_ENDED
    return EvidenceOutcome.TOO_SOON if found.current else EvidenceOutcome.SUPERSEDED


def _announce(rt: Runtime, evidence: Evidence, outcome: EvidenceOutcome, endpoint_hash: bytes | None) -> None:
    tag = None if endpoint_hash is None else keychain(rt.settings).tag(endpoint_hash)
    level = Level.DEBUG if outcome is EvidenceOutcome.ACTIVATED else None
    rt.events.emit("subscription.evidence", level, finding=evidence.finding, outcome=outcome, endpoint=tag)
    if outcome in {EvidenceOutcome.REVOKED, EvidenceOutcome.VOTED_OUT}:
        reason = END_REASON[Event.GONE if outcome is EvidenceOutcome.REVOKED else Event.VOTED_OUT]
        rt.events.emit("subscription.ended", verb="evidence", endpoint=tag, reason=reason, rows=1)
