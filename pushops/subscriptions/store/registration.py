"""The upsert: a row for each endpoint, made or brought back by one statement."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, INITIAL, UNDOABLE, Event, State, moves


@dataclass(frozen=True)
class Registration:
    """A row to write. ``vapid_key_id`` None means that the client did not say; ``created_at`` None means now.

    ``keep_tags``: ``tags`` yield to those that the row has, unless another user takes it over.
    """

    endpoint_hash: bytes
    endpoint: str = field(repr=False)
    push_service: str
    p256dh: str = field(repr=False)
    auth_sealed: bytes = field(repr=False)
    auth_key_version: int
    content_encoding: str
    vapid_key_id: str | None = None
    expiration_time: datetime | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    keep_tags: bool = True
    user_agent: str | None = None
    locale: str | None = None
    origin: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class Ownership:
    """What becomes of a row's owner, and of a row that its person had ended.

    ``keep_owner`` keeps the owner where none is given; ``inherited`` says that the given owner came with a rotated
    endpoint, and so yields to one who registered since. ``revive`` False leaves alone what a person unsubscribed.
    """

    keep_owner: bool = False
    inherited: bool = False
    revive: bool = True


@dataclass(frozen=True)
class Registered:
    id: UUID
    endpoint_hash: bytes
    state: State
    registration_no: int
    user_id: str | None
    send_block: str | None
    expired: bool
    vapid_key_id: str | None
    vapid_key_assumed: bool


# An ended row's owner is kept only where no person ended it: who unsubscribed is not signed in again by a stranger.
_OWNER: Final[LiteralString] = """
  CASE WHEN EXCLUDED.user_id IS NOT NULL AND NOT %(inherited)s::boolean THEN EXCLUDED.user_id
       WHEN (%(keep_owner)s::boolean OR %(inherited)s::boolean)
            AND s.user_id IS NOT NULL AND (s.end_reason IS NULL OR s.end_reason = ANY(%(undoable)s::text[]))
       THEN s.user_id
       ELSE EXCLUDED.user_id END"""
# A client that does not say which key it used keeps the one that its endpoint is known by.
_KEY: Final[LiteralString] = """
  CASE WHEN EXCLUDED.vapid_key_assumed THEN coalesce(s.vapid_key_id, EXCLUDED.vapid_key_id)
       ELSE EXCLUDED.vapid_key_id END"""
_TARGET: Final[LiteralString] = "(%(targets)s::text[])[array_position(%(sources)s::text[], s.state)]"

_CONFLICT_UNTIL_TAGS: Final[LiteralString] = (
    """
    ON CONFLICT (endpoint_hash) DO UPDATE
   SET endpoint = EXCLUDED.endpoint,
       push_service = EXCLUDED.push_service,
       p256dh = EXCLUDED.p256dh,
       auth_sealed = EXCLUDED.auth_sealed,
       auth_key_version = EXCLUDED.auth_key_version,
       content_encoding = EXCLUDED.content_encoding,
       vapid_key_id = """
    + _KEY
    + """,
       vapid_key_assumed =
         EXCLUDED.vapid_key_assumed AND (s.vapid_key_assumed OR s.vapid_key_id IS NULL),
       send_block =
         CASE WHEN s.send_block = 'key_mismatch' AND s.vapid_key_id IS NOT DISTINCT FROM """
    + _KEY
    + """
              THEN s.send_block END,
       expiration_time = EXCLUDED.expiration_time,
       user_id = """
    + _OWNER
    + """,
       tags =
         CASE WHEN """
)
_CONFLICT_AFTER_TAGS: Final[LiteralString] = (
    """
              AND (s.user_id IS NULL OR s.user_id IS NOT DISTINCT FROM """
    + _OWNER
    + """)
              THEN s.tags ELSE EXCLUDED.tags END,
       user_agent = coalesce(EXCLUDED.user_agent, s.user_agent),
       locale = coalesce(EXCLUDED.locale, s.locale),
       origin = coalesce(EXCLUDED.origin, s.origin),
       previous_state = CASE WHEN s.state = """
    + _TARGET
    + """ THEN s.previous_state ELSE s.state END,
       state_since = CASE WHEN s.state = """
    + _TARGET
    + """ THEN s.state_since ELSE now() END,
       state = """
    + _TARGET
    + """,
       registration_no = s.registration_no + 1,
       created_at = least(s.created_at, EXCLUDED.created_at),
       registered_at = now(),
       last_seen_at = now(),
       votes = 0, first_vote_at = NULL, last_vote_at = NULL,
       end_reason = NULL, end_run_id = NULL, revoked_at = NULL, deleted_at = NULL, scrubbed_at = NULL
 WHERE %(revive)s::boolean OR s.end_reason IS DISTINCT FROM %(left)s::text
RETURNING s.id, s.endpoint_hash, s.state, s.registration_no, s.user_id, s.send_block,
          coalesce(s.expiration_time <= now(), false) AS expired, s.vapid_key_id, s.vapid_key_assumed"""
)


# Text that is completed by where the rows come from, and by what says of a known row that it keeps its tags.
def inserting(rows: LiteralString) -> LiteralString:
    """Rows of a FROM item ``rows AS r``, in hash order, since what is not there yet has no id to order by."""
    return (
        """
INSERT INTO {schema}.push_subscription AS s
       (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, content_encoding,
        vapid_key_id, vapid_key_assumed, expiration_time, user_id, tags, user_agent, locale, origin, state, created_at)
SELECT r.endpoint_hash, r.endpoint, r.push_service, r.p256dh, r.auth_sealed, r.auth_key_version, r.content_encoding,
       coalesce(r.vapid_key_id, %(current_key)s::text), r.vapid_key_id IS NULL, r.expiration_time, r.user_id, r.tags,
       r.user_agent, r.locale, r.origin, %(initial)s::text, coalesce(r.created_at, now())
  FROM """
        + rows
        + """
 ORDER BY r.endpoint_hash"""
    )


def upserting(rows: LiteralString, keep_tags: LiteralString) -> LiteralString:
    """One statement whatever was there: never a look first.

    Both keys change together. registration_no 1 is a row that this statement made.
    """
    return inserting(rows) + _CONFLICT_UNTIL_TAGS + keep_tags + _CONFLICT_AFTER_TAGS


UPSERT: Final[LiteralString] = upserting(
    """json_to_recordset(%(rows)s::json) AS r
       (endpoint_hash bytea, endpoint text, push_service text, p256dh text, auth_sealed bytea, auth_key_version integer,
        content_encoding text, vapid_key_id text, expiration_time timestamptz, user_id text, tags text[],
        user_agent text, locale text, origin text, created_at timestamptz)""",
    "s.endpoint_hash = ANY(%(keep_tags)s::bytea[])",
)


def upsert(
    tx: Tx, rows: Sequence[Registration], ownership: Ownership, current_key: str | None
) -> dict[bytes, Registered]:
    """Write registrations of different endpoints and return what each became, by endpoint hash.

    Without ``revive`` those that a person had unsubscribed are left as they are, and out.
    """
    params = {
        "rows": json.dumps([_record(row) for row in rows]),
        "keep_tags": [row.endpoint_hash for row in rows if row.keep_tags],
        **parameters(ownership, current_key),
    }
    return {row.endpoint_hash: row for row in tx.rows(UPSERT, params, Registered)}


def parameters(ownership: Ownership, current_key: str | None) -> dict[str, object]:
    """Those of every statement that ``upserting`` completes."""
    registered = moves(Event.REGISTERED)
    return {
        "current_key": current_key,
        "initial": INITIAL,
        "keep_owner": ownership.keep_owner,
        "inherited": ownership.inherited,
        "revive": ownership.revive,
        "left": END_REASON[Event.UNSUBSCRIBED],
        "undoable": list(UNDOABLE),
        "sources": registered["sources"],
        "targets": registered["targets"],
    }


def _record(row: Registration) -> dict[str, object]:
    return {
        **vars(row),
        "endpoint_hash": rf"\x{row.endpoint_hash.hex()}",
        "auth_sealed": rf"\x{row.auth_sealed.hex()}",
        "expiration_time": row.expiration_time and row.expiration_time.isoformat(),
        "created_at": row.created_at and row.created_at.isoformat(),
    }
