"""Ending rows by a verb: which rows is one statement that locks them in id order, the end is another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, UNDOABLE, Event, State, moves

# What ended already ends again only if evidence or ageing had ended it, so that undo leaves it alone; and by its
# person's word also if it was rotated, so that a rotation that is repeated hands nothing on. Erasing
# ends again what anything else had ended.
_ENDABLE: Final[LiteralString] = """
       state = ANY(%(sources)s::text[]) AND (end_reason IS NULL OR end_reason = ANY(%(endable)s::text[]))"""

LOCK_ENDPOINTS: Final[LiteralString] = (
    """
SELECT id FROM {schema}.push_subscription
 WHERE endpoint_hash = ANY(%(hashes)s::bytea[]) AND """
    + _ENDABLE
    + """
 ORDER BY id FOR UPDATE"""
)
# Two indexes hold a user's rows, the live ones and the tombstones; said in one condition, neither would be used.
LOCK_USER: Final[LiteralString] = (
    """
SELECT id FROM {schema}.push_subscription
 WHERE (user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL) AND """
    + _ENDABLE
    + """
 ORDER BY id FOR UPDATE"""
)
# All but the most recently seen; those that were never to be sent to count for nothing.
LOCK_SURPLUS: Final[LiteralString] = """
SELECT id FROM {schema}.push_subscription
 WHERE id IN (SELECT id FROM {schema}.push_subscription
               WHERE user_id = %(user)s::text AND deleted_at IS NULL AND send_block IS NULL
                 AND state IN ('pending', 'active')
               ORDER BY last_seen_at DESC, registered_at DESC, id DESC OFFSET %(limit)s::integer)
   AND user_id = %(user)s::text AND deleted_at IS NULL AND state = ANY(%(sources)s::text[])
 ORDER BY id FOR UPDATE"""

# The whole soft delete in one statement. The times of an earlier end stay: scrubbing and purging count from them.
END: Final[LiteralString] = """
UPDATE {schema}.push_subscription
   SET state = (%(targets)s::text[])[array_position(%(sources)s::text[], state)],
       previous_state = CASE WHEN deleted_at IS NULL THEN state ELSE previous_state END,
       state_since = CASE WHEN state = (%(targets)s::text[])[array_position(%(sources)s::text[], state)]
                          THEN state_since ELSE now() END,
       revoked_at = coalesce(revoked_at, now()),
       deleted_at = coalesce(deleted_at, now()),
       end_reason = %(reason)s::text,
       user_agent = NULL,
       locale = NULL
 WHERE id = ANY(%(ids)s::uuid[]) AND state = ANY(%(sources)s::text[])
RETURNING id, endpoint_hash, user_id, previous_state AS was"""

# Two registrations of one user must not both find room for the last place.
SERIALIZE_USER: Final[LiteralString] = """
SELECT pg_advisory_xact_lock(hashtextextended('{schema}.user:' || %(user)s::text, 0))"""


@dataclass(frozen=True)
class EndedRow:
    id: UUID
    endpoint_hash: bytes
    user_id: str | None
    was: State


def end_endpoints(tx: Tx, hashes: Sequence[bytes], event: Event) -> list[EndedRow]:
    return _end(tx, LOCK_ENDPOINTS, event, {"hashes": list(hashes)})


def end_user(tx: Tx, user: str, event: Event) -> list[EndedRow]:
    return _end(tx, LOCK_USER, event, {"user": user})


def end_surplus(tx: Tx, user: str, limit: int) -> list[EndedRow]:
    """Retire what a user has beyond ``limit`` live rows, least recently seen first."""
    return _end(tx, LOCK_SURPLUS, Event.RETIRED, {"user": user, "limit": limit})


def serialize_user(tx: Tx, user: str) -> None:
    """Until the transaction ends, no other that calls this for the same user goes on."""
    tx.scalar(SERIALIZE_USER, {"user": user})


def _endable(event: Event) -> Sequence[str]:
    if event is Event.ERASED:
        return [reason for ended_by, reason in END_REASON.items() if ended_by is not event]
    return (*UNDOABLE, END_REASON[Event.ROTATED_AWAY]) if event is Event.UNSUBSCRIBED else UNDOABLE


def _end(tx: Tx, lock: LiteralString, event: Event, which: dict[str, Any]) -> list[EndedRow]:
    edges: dict[str, Any] = {**moves(event), "endable": list(_endable(event))}
    ids = tx.scalars(lock, which | edges)
    return tx.rows(END, {"ids": ids, "reason": END_REASON[event], **edges}, EndedRow) if ids else []
