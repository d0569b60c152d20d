"""What send results do to rows, a batch at a time: every condition stands in the statement that acts on it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, Event, moves

_ANSWERS: Final[LiteralString] = """
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[], %(started)s::timestamptz[], %(statuses)s::integer[],
              %(ats)s::timestamptz[]) AS r (id, registration_no, started_at, status, at)"""
# The row is as the request knew it. A late answer to an old registration says nothing about the new one.
_SAME: Final[LiteralString] = """
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.state = ANY(%(sources)s::text[])"""
# The place for every condition under which bad news is believed: never while the guard of its push service is open.
_BELIEVED: Final[LiteralString] = (
    _SAME
    + """
   AND (s.last_success_at IS NULL OR s.last_success_at <= r.started_at)
   AND s.push_service NOT IN (SELECT g.push_service FROM {schema}.push_guard AS g WHERE g.closed_at IS NULL)"""
)
# An answer whose request began before the last vote is that vote delivered again, or no later look than it was.
_SPACED: Final[LiteralString] = """
   AND (s.last_vote_at IS NULL
        OR s.last_vote_at <= r.at - %(spacing)s::interval AND s.last_vote_at < r.started_at)"""
_MOVED: Final[LiteralString] = """
       state = (%(targets)s::text[])[array_position(%(sources)s::text[], s.state)],
       last_tried_at = greatest(s.last_tried_at, r.at)"""
_FAILED: Final[LiteralString] = ", last_failure_at = greatest(s.last_failure_at, r.at), last_status = r.status"
_ENDED: Final[LiteralString] = """,
       previous_state = s.state, state_since = now(), revoked_at = now(), deleted_at = now(),
       end_reason = %(reason)s::text, user_agent = NULL, locale = NULL"""

# Nothing is returned: where as many rows moved as were meant, there is nothing to read.
ACCEPT: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s
   SET state = (%(targets)s::text[])[array_position(%(sources)s::text[], s.state)],
       previous_state = CASE WHEN s.state = 'active' THEN s.previous_state ELSE s.state END,
       state_since = CASE WHEN s.state = 'active' THEN s.state_since ELSE now() END,
       last_success_at = greatest(s.last_success_at, now()), last_tried_at = greatest(s.last_tried_at, now()),
       votes = 0, first_vote_at = NULL, last_vote_at = NULL
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[]) AS r (id, registration_no)
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.state = ANY(%(sources)s::text[])"""

# Revoking is the whole soft delete: the row leaves every send index in this statement.
REVOKE: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription AS s SET " + _MOVED + _FAILED + _ENDED + _ANSWERS + _BELIEVED + " RETURNING s.id"
)
# The last vote counts only if it is long enough after the first; until then it is as if it came too soon.
VOTE_OUT: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription AS s SET votes = s.votes + 1, last_vote_at = r.at,"
    + _MOVED
    + _FAILED
    + _ENDED
    + _ANSWERS
    + _BELIEVED
    + _SPACED
    + " AND s.votes >= %(votes)s::integer - 1 AND s.first_vote_at <= r.at - %(span)s::interval RETURNING s.id"
)
VOTE: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription AS s SET votes = s.votes + 1,"
    " first_vote_at = coalesce(s.first_vote_at, r.at), last_vote_at = r.at,"
    + _MOVED
    + _FAILED
    + _ANSWERS
    + _BELIEVED
    + _SPACED
    + " AND s.votes < %(votes)s::integer - 1 RETURNING s.id"
)

# A key that another row of the same host and key had a success with, lately: then it is this row's own that is foreign.
BLOCK_FOREIGN: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s
   SET send_block = 'key_mismatch', blocked_at = now(), last_tried_at = greatest(s.last_tried_at, now())
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[], %(started)s::timestamptz[], %(lanes)s::integer[])
       AS r (id, registration_no, started_at, lane_id)
  JOIN {schema}.push_lane AS l ON l.lane_id = r.lane_id AND l.hold_id IS NULL
   AND l.last_success_at > now() - %(proof)s::interval
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.deleted_at IS NULL AND s.send_block IS NULL
   AND (s.last_success_at IS NULL OR s.last_success_at <= r.started_at)
   AND l.last_success_at IS DISTINCT FROM s.last_success_at
RETURNING s.id"""
BLOCK_BROKEN: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s
   SET send_block = 'bad_keys', blocked_at = now(), last_tried_at = greatest(s.last_tried_at, now())
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[]) AS r (id, registration_no)
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.deleted_at IS NULL
   AND s.send_block IS DISTINCT FROM 'bad_keys'
RETURNING s.id"""
LEARN: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s
   SET max_payload = least(s.max_payload, r.max_payload), last_tried_at = greatest(s.last_tried_at, now())
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[], %(limits)s::integer[])
       AS r (id, registration_no, max_payload)
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.deleted_at IS NULL
RETURNING s.id"""

# The attempt settled, whatever it says of the lifecycle. What has ended is left as it was.
TRIED: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s SET last_tried_at = greatest(s.last_tried_at, now())
  FROM unnest(%(ids)s::uuid[], %(registrations)s::bigint[]) AS r (id, registration_no)
 WHERE s.id = r.id AND s.registration_no = r.registration_no AND s.deleted_at IS NULL"""

# In id order, as everybody takes rows; what stands before is what the evidence keeps.
LOOK: Final[LiteralString] = """
SELECT id, endpoint_hash, user_id, registration_no, state, votes, first_vote_at, last_vote_at, last_success_at,
       send_block, deleted_at IS NOT NULL AS ended
  FROM {schema}.push_subscription WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE"""

PLACE: Final[LiteralString] = """
SELECT push_service, endpoint_hash FROM {schema}.push_subscription WHERE id = %(id)s::uuid"""
ENSURE: Final[LiteralString] = """
INSERT INTO {schema}.push_provider (push_service) VALUES (%(service)s::text) ON CONFLICT DO NOTHING"""
# Whoever opens or closes the guard waits until what was believed under this look is written, and the reverse.
STANDING: Final[LiteralString] = """
SELECT guard_id, unhealthy_why FROM {schema}.push_provider WHERE push_service = %(service)s::text FOR SHARE"""

# The same answer twice, or another 410 about the same registration, would wait beside its like and say nothing more.
RECORD: Final[LiteralString] = """
INSERT INTO {schema}.push_evidence
       (push_service, lane_id, subscription_id, endpoint_hash, registration_no, message_id, campaign_id, finding,
        status, code, started_at, state, outcome, guard_id, was_state, was_votes, was_first_vote_at, was_last_vote_at)
SELECT %(service)s::text, r.lane_id, r.subscription_id, r.endpoint_hash, r.registration_no, r.message_id, r.campaign_id,
       r.finding, r.status, r.code, r.started_at, r.state, r.outcome, r.guard_id, r.was_state, r.was_votes,
       r.was_first_vote_at, r.was_last_vote_at
  FROM json_to_recordset(%(rows)s::json) AS r
       (lane_id integer, subscription_id uuid, endpoint_hash bytea, registration_no bigint, message_id uuid,
        campaign_id text, finding text, status integer, code text, started_at timestamptz, state text, outcome text,
        guard_id uuid, was_state text, was_votes integer, was_first_vote_at timestamptz, was_last_vote_at timestamptz)
 WHERE r.state <> 'pending'
    OR NOT EXISTS (SELECT FROM {schema}.push_evidence AS e
                    WHERE e.subscription_id = r.subscription_id AND e.state = 'pending'
                      AND e.registration_no = r.registration_no AND e.finding = r.finding
                      AND (r.finding = 'gone' OR e.started_at = r.started_at))"""

# A success proves the row, whatever waited to be judged. Nothing waits where no guard is unsettled.
DISCARD: Final[LiteralString] = """
UPDATE {schema}.push_evidence SET state = 'discarded', outcome = 'proven'
 WHERE subscription_id = ANY(%(ids)s::uuid[]) AND state = 'pending'
   AND EXISTS (SELECT FROM {schema}.push_guard WHERE settled_at IS NULL)"""

WAITING: Final[LiteralString] = """
SELECT evidence_id, at, lane_id, subscription_id, registration_no, message_id, campaign_id, finding, status, code,
       started_at
  FROM {schema}.push_evidence
 WHERE push_service = %(service)s::text AND state = 'pending' AND guard_id = %(guard)s::uuid
 ORDER BY evidence_id LIMIT %(limit)s::integer"""
JUDGED: Final[LiteralString] = """
UPDATE {schema}.push_evidence AS e
   SET state = r.state, outcome = r.outcome, was_state = r.was_state, was_votes = r.was_votes,
       was_first_vote_at = r.was_first_vote_at, was_last_vote_at = r.was_last_vote_at
  FROM json_to_recordset(%(rows)s::json) AS r
       (evidence_id uuid, state text, outcome text, was_state text, was_votes integer,
        was_first_vote_at timestamptz, was_last_vote_at timestamptz)
 WHERE e.evidence_id = r.evidence_id AND e.state = 'pending'"""


@dataclass(frozen=True)
class VoteRules:
    """When votes are believed: so many, each this long after the last, the last this long after the first."""

    votes: int
    spacing: timedelta
    span: timedelta


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether bad news of a push service is to be believed."""

    guard_id: UUID | None = None
    unhealthy_why: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    push_service: str
    endpoint_hash: bytes


@dataclass(frozen=True, slots=True)
class Looked:
    """A row as it stood before."""

    id: UUID
    endpoint_hash: bytes
    user_id: str | None
    registration_no: int
    state: str
    votes: int
    first_vote_at: datetime | None
    last_vote_at: datetime | None
    last_success_at: datetime | None
    send_block: str | None
    ended: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    evidence_id: UUID
    at: datetime
    lane_id: int | None
    subscription_id: UUID
    registration_no: int
    message_id: UUID | None
    campaign_id: str | None
    finding: str
    status: int | None
    code: str | None
    started_at: datetime


@dataclass(slots=True)
class Answers:
    """Answers as the statements take them: columns of one length, each subscription at most once."""

    ids: list[UUID]
    registrations: list[int]
    started: list[datetime]
    statuses: list[int | None]
    ats: list[datetime]
    lanes: list[int | None]
    limits: list[int | None]

    def params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Answers.__slots__}


def standing(tx: Tx, service: str) -> Standing:
    found = tx.maybe(STANDING, {"service": service}, Standing)
    if found is None:  # or its first settler has not committed yet: inserting waits for that
        tx.run(ENSURE, {"service": service})
        found = tx.one(STANDING, {"service": service}, Standing)
    return found


def place(tx: Tx, subscription_id: UUID) -> Place | None:
    return tx.maybe(PLACE, {"id": subscription_id}, Place)


def accept(tx: Tx, ids: Sequence[UUID], registrations: Sequence[int]) -> int:
    """Prove rows; how many were. Each at most once, in id order."""
    return tx.run(ACCEPT, {"ids": ids, "registrations": registrations, **moves(Event.ACCEPTED)})


def revoke(tx: Tx, answers: Answers) -> set[UUID]:
    return set(tx.scalars(REVOKE, {**answers.params(), **moves(Event.GONE), "reason": END_REASON[Event.GONE]}))


def vote(tx: Tx, answers: Answers, rules: VoteRules) -> tuple[set[UUID], set[UUID]]:
    """The rows that had their last vote, and those that have one more."""
    values = {**answers.params(), **vars(rules)}
    reason = END_REASON[Event.VOTED_OUT]
    out = set(tx.scalars(VOTE_OUT, {**values, **moves(Event.VOTED_OUT), "reason": reason}))
    return out, set(tx.scalars(VOTE, {**values, **moves(Event.VOTE)}))


def block_foreign(tx: Tx, answers: Answers, proof: timedelta) -> set[UUID]:
    return set(tx.scalars(BLOCK_FOREIGN, {**answers.params(), "proof": proof}))


def block_broken(tx: Tx, answers: Answers) -> set[UUID]:
    return set(tx.scalars(BLOCK_BROKEN, answers.params()))


def learn(tx: Tx, answers: Answers) -> set[UUID]:
    return set(tx.scalars(LEARN, answers.params()))


def tried(tx: Tx, ids: Sequence[UUID], registrations: Sequence[int]) -> None:
    """Say that attempts settled, and nothing else."""
    tx.run(TRIED, {"ids": ids, "registrations": registrations})


def look(tx: Tx, ids: Collection[UUID]) -> dict[UUID, Looked]:
    """Lock rows and say how they stand."""
    return {row.id: row for row in tx.rows(LOOK, {"ids": list(ids)}, Looked)}


def record(tx: Tx, service: str, rows: str) -> None:
    """Keep answers, a JSON list of objects with RECORD's columns."""
    tx.run(RECORD, {"service": service, "rows": rows})


def discard(tx: Tx, ids: Sequence[UUID]) -> int:
    return tx.run(DISCARD, {"ids": ids})


def waiting(tx: Tx, service: str, guard: UUID, limit: int) -> list[Waiting]:
    return tx.rows(WAITING, {"service": service, "guard": guard, "limit": limit}, Waiting)


def judged(tx: Tx, rows: str) -> None:
    tx.run(JUDGED, {"rows": rows})
