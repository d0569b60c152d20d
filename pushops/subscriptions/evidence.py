"""The only door for send results: what answers of a push service do to the lifecycle of their rows."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.finding import Evidence, EvidenceOutcome, Finding
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.subscriptions.store import evidence as store
from pushops.subscriptions.store.evidence import Standing, VoteRules, Waiting
from pushops.subscriptions.weighing import Weighed, rounds, weigh
from pushops.subscriptions.work import Conn, in_transaction

__all__ = ["Evidence", "EvidenceOutcome", "Finding", "apply_batch", "apply_waiting", "record_evidence", "vote_rules"]

_QUIET: Final = frozenset({Finding.ACCEPTED, Finding.NONE})


def record_evidence(rt: Runtime, evidence: Evidence, *, conn: Conn | None = None) -> EvidenceOutcome:
    """Apply an answer if the row is still the one that it is about; says what it did. Doubled, it does nothing more.

    Whatever it says, ``last_tried_at`` is written: what was tried in vain ages sooner than what was never tried. While
    the guard of its push service is open, bad news is kept for an operator to judge.
    """

    def work(tx: Tx) -> tuple[EvidenceOutcome, bytes | None]:
        place = store.place(tx, evidence.subscription_id)
        if place is None:
            return (EvidenceOutcome.NOTHING if evidence.finding is Finding.NONE else EvidenceOutcome.UNKNOWN), None
        return apply_batch(tx, rt.settings, place.push_service, [evidence], None)[0], place.endpoint_hash

    outcome, endpoint_hash = in_transaction(rt, conn, work)
    _announce(rt, evidence, outcome, endpoint_hash)
    return outcome


def apply_batch(
    tx: Tx, settings: Settings, service: str, findings: Sequence[Evidence], guard_id: UUID | None
) -> list[EvidenceOutcome]:
    """Apply answers of one push service in a few statements; what each did, in their order. Safe to repeat.

    Successes come first, since a row that took a message lives. ``guard_id``, or a guard that is open without the
    caller's knowing, makes what would end rows wait. Takes the lock of the push service before that of any row.
    """
    bad = [evidence for evidence in findings if evidence.finding not in _QUIET]
    standing = store.standing(tx, service) if bad else Standing()
    if guard_id is not None:
        standing = Standing(guard_id, standing.unhealthy_why)
    done = _accept(tx, [evidence for evidence in findings if evidence.finding is Finding.ACCEPTED])
    _tried(tx, [evidence for evidence in findings if evidence.finding is Finding.NONE])
    for turn in rounds(bad):
        weighed = weigh(tx, vote_rules(settings), standing, turn)
        _record(tx, service, weighed, standing.guard_id)
        done |= {id(one.evidence): one.outcome for one in weighed}
    return [done.get(id(evidence), EvidenceOutcome.NOTHING) for evidence in findings]


def apply_waiting(tx: Tx, settings: Settings, service: str, guard_id: UUID, limit: int) -> Counter[EvidenceOutcome]:
    """Believe a page of what waited for an operator, each answer as of when it came; empty where nothing waits.

    The caller holds the push service's row, and has seen that no guard of it is open.
    """
    waiting = store.waiting(tx, service, guard_id, limit)
    found = [_revived(kept) for kept in waiting]
    ids = {id(evidence): str(kept.evidence_id) for evidence, kept in zip(found, waiting, strict=True)}
    outcomes: Counter[EvidenceOutcome] = Counter()
    for turn in rounds(found):
        weighed = weigh(tx, vote_rules(settings), Standing(), turn)
        store.judged(tx, json.dumps([{"evidence_id": ids[id(one.evidence)]} | _result(one) for one in weighed]))
        outcomes.update(one.outcome for one in weighed)
    return outcomes


def vote_rules(settings: Settings) -> VoteRules:
    return VoteRules(settings.votes, settings.window("vote_min_gap"), settings.window("vote_min_span"))


def _accept(tx: Tx, found: Sequence[Evidence]) -> dict[int, EvidenceOutcome]:
    """Successes, of which there are millions: nothing is read unless fewer rows moved than were meant."""
    if not found:
        return {}
    known = dict(sorted((evidence.subscription_id, evidence.registration_no) for evidence in found))
    ids = list(known)
    moved = store.accept(tx, ids, list(known.values()))
    store.discard(tx, ids)
    if moved == len(found):
        return {id(evidence): EvidenceOutcome.ACTIVATED for evidence in found}
    rows = store.look(tx, ids)
    return {id(evidence): _success(rows.get(evidence.subscription_id), evidence) for evidence in found}


def _success(row: store.Looked | None, evidence: Evidence) -> EvidenceOutcome:
    if row is None:
        return EvidenceOutcome.UNKNOWN
    if row.ended:
        return EvidenceOutcome.ALREADY_ENDED
    same = row.registration_no == evidence.registration_no
    return EvidenceOutcome.ACTIVATED if same else EvidenceOutcome.SUPERSEDED


def _tried(tx: Tx, found: Sequence[Evidence]) -> None:
    if found:
        known = dict(sorted((evidence.subscription_id, evidence.registration_no) for evidence in found))
        store.tried(tx, list(known), list(known.values()))


def _record(tx: Tx, service: str, weighed: Sequence[Weighed], guard_id: UUID | None) -> None:
    rows = [_kept(one) | _result(one) | {"guard_id": _text(guard_id)} for one in weighed if one.kept]
    if rows:
        store.record(tx, service, json.dumps(rows))


def _kept(one: Weighed) -> dict[str, Any]:
    """What was said, as RECORD takes it."""
    evidence = one.evidence
    return {
        "lane_id": evidence.lane_id,
        "subscription_id": str(evidence.subscription_id),
        "endpoint_hash": rf"\x{one.was.endpoint_hash.hex()}" if one.was else None,
        "registration_no": evidence.registration_no,
        "message_id": _text(evidence.message_id),
        "campaign_id": evidence.campaign_id,
        "finding": evidence.finding,
        "status": evidence.status,
        "code": evidence.code,
        "started_at": _text(evidence.started_at),
    }


def _result(one: Weighed) -> dict[str, Any]:
    """What it did, and what stood before."""
    was = one.was
    return {
        "state": one.state,
        "outcome": one.outcome,
        "was_state": was and was.state,
        "was_votes": was and was.votes,
        "was_first_vote_at": _text(was and was.first_vote_at),
        "was_last_vote_at": _text(was and was.last_vote_at),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _revived(kept: Waiting) -> Evidence:
    """What was kept, as the answer that it was."""
    return Evidence(
        subscription_id=kept.subscription_id,
        registration_no=kept.registration_no,
        finding=Finding(kept.finding),
        started_at=kept.started_at,
        status=kept.status,
        campaign_id=kept.campaign_id,
        message_id=kept.message_id,
        lane_id=kept.lane_id,
        code=kept.code,
        at=kept.at,
    )


def _announce(rt: Runtime, evidence: Evidence, outcome: EvidenceOutcome, endpoint_hash: bytes | None) -> None:
    if evidence.finding is Finding.NONE:
        return
    tag = None if endpoint_hash is None else keychain(rt.settings).tag(endpoint_hash)
    level = Level.DEBUG if outcome is EvidenceOutcome.ACTIVATED else None
    rt.events.emit("subscription.evidence", level, finding=evidence.finding, outcome=outcome, endpoint=tag)
    if outcome in {EvidenceOutcome.REVOKED, EvidenceOutcome.VOTED_OUT}:
        reason = END_REASON[Event.GONE if outcome is EvidenceOutcome.REVOKED else Event.VOTED_OUT]
        rt.events.emit("subscription.ended", verb="evidence", endpoint=tag, reason=reason, rows=1)
