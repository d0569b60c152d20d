"""Taking back ends that evidence or ageing brought about: which, how many, and a bounded page of them at a time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import LIVE, UNDOABLE, Event, moves


@dataclass(frozen=True)
class Which:
    """Every filter that is given narrows; ``since`` and ``until`` are about the end, the second excluded."""

    run: UUID | None = None
    service: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None


# Inside the window, credentials still there, and never what a person ended.
_UNDOABLE: Final[LiteralString] = """
       s.deleted_at > now() - %(window)s::interval
   AND s.scrubbed_at IS NULL
   AND s.state = ANY(%(sources)s::text[])
   AND s.end_reason = ANY(%(undoable)s::text[])
   AND s.previous_state = ANY(%(live)s::text[])
   AND (%(run)s::uuid IS NULL OR s.end_run_id = %(run)s::uuid)
   AND (%(service)s::text IS NULL OR s.push_service = %(service)s::text)
   AND (%(reason)s::text IS NULL OR s.end_reason = %(reason)s::text)
   AND (%(since)s::timestamptz IS NULL OR s.revoked_at >= %(since)s::timestamptz)
   AND (%(until)s::timestamptz IS NULL OR s.revoked_at < %(until)s::timestamptz)"""

COUNT: Final[LiteralString] = (
    """
SELECT s.push_service, s.end_reason, count(*) AS rows, min(s.revoked_at) AS oldest, max(s.revoked_at) AS newest
  FROM {schema}.push_subscription AS s WHERE """
    + _UNDOABLE
    + """
 GROUP BY s.push_service, s.end_reason ORDER BY s.push_service, s.end_reason"""
)

PAGE: Final[LiteralString] = (
    """
SELECT s.deleted_at, s.id FROM {schema}.push_subscription AS s
 WHERE (s.deleted_at, s.id) > (%(after_at)s::timestamptz, %(after_id)s::uuid) AND """
    + _UNDOABLE
    + """
 ORDER BY s.deleted_at, s.id LIMIT %(limit)s::integer"""
)

LOCK: Final[LiteralString] = (
    """
SELECT s.id FROM {schema}.push_subscription AS s WHERE s.id = ANY(%(ids)s::uuid[]) AND """
    + _UNDOABLE
    + """
 ORDER BY s.id FOR UPDATE"""
)

# Evidence still under way belongs to what was found wrong: a new registration number keeps it out, and no vote stays.
UNDO: Final[LiteralString] = """
UPDATE {schema}.push_subscription AS s
   SET state = s.previous_state, previous_state = s.state, state_since = now(),
       registration_no = s.registration_no + 1,
       votes = 0, first_vote_at = NULL, last_vote_at = NULL,
       end_reason = NULL, end_run_id = NULL, revoked_at = NULL, deleted_at = NULL
 WHERE s.id = ANY(%(ids)s::uuid[])
RETURNING s.endpoint_hash, s.user_id, s.state"""


@dataclass(frozen=True)
class Group:
    push_service: str
    end_reason: str
    rows: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True)
class Key:
    deleted_at: datetime
    id: UUID


@dataclass(frozen=True)
class Restored:
    endpoint_hash: bytes
    user_id: str | None
    state: str


def count(tx: Tx, which: Which, window: timedelta) -> list[Group]:
    return tx.rows(COUNT, _params(which, window), Group)


def page(tx: Tx, which: Which, window: timedelta, after: Key, limit: int) -> list[Key]:
    """The next keys in the order of their ends."""
    params = _params(which, window) | {"after_at": after.deleted_at, "after_id": after.id, "limit": limit}
    return tx.rows(PAGE, params, Key)


def restore(tx: Tx, which: Which, window: timedelta, keys: list[Key]) -> list[Restored]:
    """Bring those back that may still be: the page was read without locks."""
    ids = tx.scalars(LOCK, _params(which, window) | {"ids": [key.id for key in keys]})
    return tx.rows(UNDO, {"ids": ids}, Restored)


def _params(which: Which, window: timedelta) -> dict[str, Any]:
    return {
        **vars(which),
        "window": window,
        "sources": moves(Event.UNDONE)["sources"],
        "undoable": list(UNDOABLE),
        "live": [str(state) for state in LIVE],
    }
