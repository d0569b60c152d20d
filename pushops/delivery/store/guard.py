"""The guard's rows, and what becomes of evidence where it opened, was accepted or was rejected."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.health import GUARD_WINDOW
from pushops.subscriptions.lifecycle import LIVE, Event, moves

OPEN: Final[LiteralString] = """
WITH opened AS (
  INSERT INTO {schema}.push_guard (push_service, window_from, why, detail)
  SELECT push_service, greatest(now() - %(hour)s::interval, counted_from), %(why)s::text, %(detail)s::jsonb
    FROM {schema}.push_provider WHERE push_service = %(service)s::text
  RETURNING guard_id, push_service, window_from),
doubted AS (
  UPDATE {schema}.push_answer AS a SET guarded = true
    FROM opened AS o WHERE a.push_service = o.push_service AND a.minute >= o.window_from - interval '1 minute'),
named AS (
  UPDATE {schema}.push_provider AS p SET guard_id = o.guard_id
    FROM opened AS o WHERE p.push_service = o.push_service)
SELECT guard_id FROM opened"""

# Counting begins anew, so that what was judged opens nothing again; and what waited for the guard goes on.
CLOSE: Final[LiteralString] = """
WITH closed AS (
  UPDATE {schema}.push_guard
     SET closed_at = now(), closed_by = %(actor)s::text, verdict = %(verdict)s::text, reason = %(reason)s::text,
         turned_back = turned_back OR %(verdict)s::text = 'accepted'
   WHERE guard_id = %(guard)s::uuid AND closed_at IS NULL
  RETURNING guard_id, push_service)
UPDATE {schema}.push_provider AS p
   SET guard_id = NULL, streak = 0, counted_from = clock_timestamp(),
       healthy_from = CASE WHEN p.unhealthy_why = 'guard' THEN clock_timestamp() ELSE p.healthy_from END,
       unhealthy_at = CASE WHEN p.unhealthy_why = 'guard' THEN NULL ELSE p.unhealthy_at END,
       unhealthy_code = CASE WHEN p.unhealthy_why = 'guard' THEN NULL ELSE p.unhealthy_code END,
       unhealthy_why = CASE WHEN p.unhealthy_why = 'guard' THEN NULL ELSE p.unhealthy_why END
  FROM closed AS c WHERE p.push_service = c.push_service"""

_GUARD: Final[LiteralString] = """
SELECT guard_id, push_service, window_from, verdict, turned_back FROM {schema}.push_guard"""
FIND: Final[LiteralString] = _GUARD + " WHERE guard_id = %(guard)s::uuid"
FIND_OPEN: Final[LiteralString] = _GUARD + " WHERE push_service = %(service)s::text AND closed_at IS NULL"
# In the order of their opening, which is that of their evidence.
UNSETTLED: Final[LiteralString] = (
    _GUARD
    + """
 WHERE settled_at IS NULL AND (NOT turned_back OR closed_at IS NOT NULL) ORDER BY guard_id"""
)
TURNED_BACK: Final[LiteralString] = """
UPDATE {schema}.push_guard SET turned_back = true WHERE guard_id = %(guard)s::uuid AND NOT turned_back"""
SETTLED: Final[LiteralString] = """
UPDATE {schema}.push_guard SET settled_at = now() WHERE guard_id = %(guard)s::uuid AND settled_at IS NULL"""

# What was applied in the guard's hour, the newest first, so that of two that changed one row the later goes back first.
# A minute more: evidence is dated by the beginning of its transaction, and may have waited for its turn. What an
# operator accepted from a guard before this one stands, and so does what was believed since this one was closed.
APPLIED: Final[LiteralString] = """
SELECT evidence_id, subscription_id FROM {schema}.push_evidence
 WHERE push_service = %(service)s::text AND state = 'applied' AND finding IN ('gone', 'vote') AND guard_id IS NULL
   AND at >= %(since)s::timestamptz - interval '1 minute'
   AND at < coalesce((SELECT closed_at FROM {schema}.push_guard WHERE guard_id = %(guard)s::uuid), 'infinity')
 ORDER BY at DESC, evidence_id DESC LIMIT %(limit)s::integer"""
LOCK_ROWS: Final[LiteralString] = """
SELECT id FROM {schema}.push_subscription WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE"""

# Only where the row still is exactly what the evidence made of it, credentials and all. Its registration stays the one
# that the evidence is about, which may be accepted yet. The page is read first, by its ids and nothing else.
_PAGE: Final[LiteralString] = """
WITH e AS MATERIALIZED (
  SELECT evidence_id, at, state, outcome, subscription_id, registration_no, was_state, was_votes, was_first_vote_at,
         was_last_vote_at
    FROM {schema}.push_evidence WHERE evidence_id = ANY(%(evidence)s::uuid[]))"""
_MADE: Final[LiteralString] = """
  FROM e
 WHERE e.state = 'applied' AND s.id = e.subscription_id AND s.registration_no = e.registration_no
   AND s.scrubbed_at IS NULL"""
RESTORE_ENDED: Final[LiteralString] = (
    _PAGE
    + """
UPDATE {schema}.push_subscription AS s
   SET state = e.was_state, previous_state = s.state, state_since = now(),
       votes = e.was_votes, first_vote_at = e.was_first_vote_at, last_vote_at = e.was_last_vote_at,
       end_reason = NULL, end_run_id = NULL, revoked_at = NULL, deleted_at = NULL"""
    + _MADE
    + """
   AND s.state = ANY(%(sources)s::text[]) AND e.was_state = ANY(%(live)s::text[])
   AND e.outcome IN ('revoked', 'voted_out') AND s.revoked_at = e.at AND s.end_reason IN ('gone', 'voted_out')
   AND s.deleted_at > now() - %(window)s::interval
RETURNING e.evidence_id, s.endpoint_hash, s.user_id, s.state"""
)
RESTORE_VOTES: Final[LiteralString] = (
    _PAGE
    + """
UPDATE {schema}.push_subscription AS s
   SET votes = e.was_votes, first_vote_at = e.was_first_vote_at, last_vote_at = e.was_last_vote_at"""
    + _MADE
    + """
   AND s.deleted_at IS NULL AND e.outcome = 'voted' AND s.votes = e.was_votes + 1 AND s.last_vote_at = e.at
RETURNING e.evidence_id, s.endpoint_hash, s.user_id, s.state"""
)
# What nothing could be taken back of has been overtaken: the row was registered anew, proven, or ended by its person.
DOUBT: Final[LiteralString] = """
UPDATE {schema}.push_evidence
   SET state = CASE WHEN evidence_id = ANY(%(restored)s::uuid[]) THEN 'pending' ELSE 'discarded' END,
       outcome = CASE WHEN evidence_id = ANY(%(restored)s::uuid[]) THEN 'turned_back' ELSE 'superseded' END,
       guard_id = %(guard)s::uuid
 WHERE evidence_id = ANY(%(evidence)s::uuid[]) AND state = 'applied'"""

PENDING: Final[LiteralString] = """
SELECT finding, count(*) AS answers, count(DISTINCT subscription_id) AS subscriptions
  FROM {schema}.push_evidence
 WHERE push_service = %(service)s::text AND state = 'pending' AND guard_id = %(guard)s::uuid
 GROUP BY finding ORDER BY finding"""
DISCARD: Final[LiteralString] = """
WITH page AS (
  SELECT evidence_id FROM {schema}.push_evidence
   WHERE push_service = %(service)s::text AND state = 'pending' AND guard_id = %(guard)s::uuid
   ORDER BY evidence_id LIMIT %(limit)s::integer)
UPDATE {schema}.push_evidence AS e SET state = 'discarded', outcome = 'rejected'
  FROM page AS p WHERE e.evidence_id = p.evidence_id"""

LIST: Final[LiteralString] = """
SELECT g.guard_id, g.push_service, g.opened_at, g.window_from, g.why, g.detail, g.turned_back, g.closed_at, g.closed_by,
       g.verdict, g.reason, g.settled_at,
       (SELECT count(*) FROM {schema}.push_evidence AS e
         WHERE e.push_service = g.push_service AND e.state = 'pending' AND e.guard_id = g.guard_id) AS pending
  FROM {schema}.push_guard AS g
 WHERE g.closed_at IS NULL OR g.settled_at IS NULL OR %(closed)s::boolean
 ORDER BY g.guard_id DESC LIMIT %(limit)s::integer"""


@dataclass(frozen=True, slots=True)
class Guard:
    guard_id: UUID
    push_service: str
    window_from: datetime
    verdict: str | None
    turned_back: bool


@dataclass(frozen=True)
class Listed:
    """``pending``: answers that wait for an operator's word, or to be settled by it."""

    guard_id: UUID
    push_service: str
    opened_at: datetime
    window_from: datetime
    why: str
    detail: dict[str, Any]
    turned_back: bool
    closed_at: datetime | None
    closed_by: str | None
    verdict: str | None
    reason: str | None
    settled_at: datetime | None
    pending: int


@dataclass(frozen=True, slots=True)
class Applied:
    evidence_id: UUID
    subscription_id: UUID


@dataclass(frozen=True, slots=True)
class Restored:
    evidence_id: UUID
    endpoint_hash: bytes
    user_id: str | None
    state: str


@dataclass(frozen=True)
class Pending:
    finding: str
    answers: int
    subscriptions: int


def open_guard(tx: Tx, service: str, why: str, detail: Mapping[str, Any]) -> UUID:
    """Open it; the caller holds the provider's row, and has seen that none is open."""
    found: UUID = tx.scalar(OPEN, {"service": service, "why": why, "detail": json.dumps(detail), "hour": GUARD_WINDOW})
    return found


def close(tx: Tx, guard: UUID, verdict: str, actor: str, reason: str) -> bool:
    return tx.run(CLOSE, {"guard": guard, "verdict": verdict, "actor": actor, "reason": reason}) == 1


def find(tx: Tx, guard: UUID) -> Guard | None:
    return tx.maybe(FIND, {"guard": guard}, Guard)


def find_open(tx: Tx, service: str) -> Guard | None:
    return tx.maybe(FIND_OPEN, {"service": service}, Guard)


def unsettled(tx: Tx) -> list[Guard]:
    """Guards of which something is left to do."""
    return tx.rows(UNSETTLED, {}, Guard)


def set_turned_back(tx: Tx, guard: UUID) -> None:
    tx.run(TURNED_BACK, {"guard": guard})


def set_settled(tx: Tx, guard: UUID) -> bool:
    return tx.run(SETTLED, {"guard": guard}) == 1


def applied(tx: Tx, guard: Guard, limit: int) -> list[Applied]:
    values = {"service": guard.push_service, "guard": guard.guard_id, "since": guard.window_from, "limit": limit}
    return tx.rows(APPLIED, values, Applied)


def restore(tx: Tx, guard: Guard, page: Sequence[Applied], window: timedelta) -> tuple[list[Restored], list[Restored]]:
    """Take back what a page of evidence did, at most one of each subscription: the ends, and the votes."""
    tx.scalars(LOCK_ROWS, {"ids": [one.subscription_id for one in page]})
    evidence = [one.evidence_id for one in page]
    values = {
        "evidence": evidence,
        "window": window,
        "sources": moves(Event.TURNED_BACK)["sources"],
        "live": [str(state) for state in LIVE],
    }
    ended = tx.rows(RESTORE_ENDED, values, Restored)
    votes = tx.rows(RESTORE_VOTES, values, Restored)
    restored = [row.evidence_id for row in (*ended, *votes)]
    tx.run(DOUBT, {"guard": guard.guard_id, "evidence": evidence, "restored": restored})
    return ended, votes


def pending(tx: Tx, guard: Guard) -> list[Pending]:
    return tx.rows(PENDING, {"service": guard.push_service, "guard": guard.guard_id}, Pending)


def discard(tx: Tx, guard: Guard, limit: int) -> int:
    return tx.run(DISCARD, {"service": guard.push_service, "guard": guard.guard_id, "limit": limit})


def listed(tx: Tx, *, closed: bool, limit: int) -> list[Listed]:
    return tx.rows(LIST, {"closed": closed, "limit": limit}, Listed)
