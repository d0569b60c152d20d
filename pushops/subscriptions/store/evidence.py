"""What a send result does to a row: every condition stands in the statement that acts on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, Event, moves

# The row is as the request knew it. A late answer to an old registration says nothing about the new one.
_SAME: Final[LiteralString] = """
       id = %(id)s::uuid AND registration_no = %(registration_no)s::bigint AND state = ANY(%(sources)s::text[])"""
# The place for every condition under which bad news is believed.
_BELIEVED: Final[LiteralString] = (
    _SAME + " AND (last_success_at IS NULL OR last_success_at <= %(started_at)s::timestamptz)"
)
# An answer whose request began before the last vote is that vote delivered again, or no later look than it was.
_SPACED: Final[LiteralString] = """
   AND (last_vote_at IS NULL
        OR last_vote_at <= now() - %(spacing)s::interval AND last_vote_at < %(started_at)s::timestamptz)"""
_MOVED: Final[LiteralString] = """
       state = (%(targets)s::text[])[array_position(%(sources)s::text[], state)],
       last_tried_at = greatest(last_tried_at, now())"""
_FAILED: Final[LiteralString] = ", last_failure_at = now(), last_status = %(status)s::integer"
_ENDED: Final[LiteralString] = """,
       previous_state = state, state_since = now(), revoked_at = now(), deleted_at = now(),
       end_reason = %(reason)s::text, user_agent = NULL, locale = NULL"""
_RETURNING: Final[LiteralString] = " RETURNING endpoint_hash, user_id, previous_state"

ACCEPT: Final[LiteralString] = (
    """
UPDATE {schema}.push_subscription
   SET previous_state = CASE WHEN state = 'active' THEN previous_state ELSE state END,
       state_since = CASE WHEN state = 'active' THEN state_since ELSE now() END,
       last_success_at = greatest(last_success_at, now()),
       votes = 0, first_vote_at = NULL, last_vote_at = NULL,"""
    + _MOVED
    + " WHERE "
    + _SAME
    + _RETURNING
)

# Revoking is the whole soft delete: the row leaves every send index in this statement.
REVOKE: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription SET " + _MOVED + _FAILED + _ENDED + " WHERE " + _BELIEVED + _RETURNING
)

# The last vote counts only if it is long enough after the first; until then it is as if it came too soon.
VOTE_OUT: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription SET votes = votes + 1, last_vote_at = now(),"
    + _MOVED
    + _FAILED
    + _ENDED
    + " WHERE "
    + _BELIEVED
    + _SPACED
    + " AND votes >= %(votes)s::integer - 1 AND first_vote_at <= now() - %(span)s::interval"
    + _RETURNING
)
VOTE: Final[LiteralString] = (
    "UPDATE {schema}.push_subscription SET votes = votes + 1,"
    " first_vote_at = coalesce(first_vote_at, now()), last_vote_at = now(),"
    + _MOVED
    + _FAILED
    + " WHERE "
    + _BELIEVED
    + _SPACED
    + " AND votes < %(votes)s::integer - 1"
    + _RETURNING
)

# The attempt settled, whatever it says of the lifecycle. What has ended is left as it was.
TRIED: Final[LiteralString] = """
UPDATE {schema}.push_subscription SET last_tried_at = greatest(last_tried_at, now())
 WHERE id = %(id)s::uuid AND registration_no = %(registration_no)s::bigint AND deleted_at IS NULL"""

LOOK: Final[LiteralString] = """
SELECT endpoint_hash, deleted_at IS NOT NULL AS ended,
       registration_no = %(registration_no)s::bigint
       AND (last_success_at IS NULL OR last_success_at <= %(started_at)s::timestamptz) AS current
  FROM {schema}.push_subscription WHERE id = %(id)s::uuid"""

_STATEMENTS: Final[Mapping[Event, LiteralString]] = {
    Event.ACCEPTED: ACCEPT,
    Event.GONE: REVOKE,
    Event.VOTE: VOTE,
    Event.VOTED_OUT: VOTE_OUT,
}


@dataclass(frozen=True)
class VoteRules:
    """When votes are believed: so many, each this long after the last, the last this long after the first."""

    votes: int
    spacing: timedelta
    span: timedelta


@dataclass(frozen=True)
class Affected:
    endpoint_hash: bytes
    user_id: str | None
    previous_state: str | None


@dataclass(frozen=True)
class Unaffected:
    endpoint_hash: bytes
    ended: bool
    current: bool


def apply(tx: Tx, event: Event, known: Mapping[str, Any], rules: VoteRules) -> Affected | None:
    """Apply one event to the row that ``known`` names: id, registration_no, started_at, status. None: it does not."""
    params = {**known, **vars(rules), **moves(event), "reason": END_REASON.get(event)}
    return tx.maybe(_STATEMENTS[event], params, Affected)


def tried(tx: Tx, known: Mapping[str, Any]) -> None:
    """Say that an attempt settled, and nothing else."""
    tx.run(TRIED, known)


def look(tx: Tx, known: Mapping[str, Any]) -> Unaffected | None:
    """Why an event did not apply."""
    return tx.maybe(LOOK, known, Unaffected)
