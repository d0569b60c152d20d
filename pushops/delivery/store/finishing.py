"""The end of messages: recipients that nobody sends to any more, and messages whose recipients all have an end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

# Whose time to be looked at has come; one that is being looked at is left to whoever does.
NEXT: Final[LiteralString] = """
SELECT message_id FROM {schema}.push_message
 WHERE state IN ('sending', 'cancelling') AND look_at <= now()
 ORDER BY look_at, message_id LIMIT 1 FOR UPDATE SKIP LOCKED"""
LOCK: Final[LiteralString] = """
SELECT message_id, coalesce(finish_cursor, ''::bytea) AS cursor, cancelled_at IS NOT NULL AS cancelled,
       coalesce(expires_at <= now(), false) AS expired
  FROM {schema}.push_message
 WHERE message_id = %(message_id)s::uuid AND state IN ('sending', 'cancelling')
   FOR UPDATE SKIP LOCKED"""

# Rows go out in the order of their hashes, so that those that have ended are mostly the first ones: nothing before the
# cursor is read again, and the look is over at the first row that has no end.
FIND_OPEN: Final[LiteralString] = """
WITH page AS (
  SELECT endpoint_hash, state FROM {schema}.push_dispatch
   WHERE message_id = %(message_id)s::uuid AND endpoint_hash >= %(cursor)s::bytea
   ORDER BY endpoint_hash LIMIT %(limit)s::integer)
SELECT endpoint_hash FROM page WHERE state <> 'ended' LIMIT 1"""
PAGE_END: Final[LiteralString] = """
SELECT endpoint_hash FROM {schema}.push_dispatch
 WHERE message_id = %(message_id)s::uuid AND endpoint_hash >= %(cursor)s::bytea
 ORDER BY endpoint_hash OFFSET %(limit)s::integer - 1 LIMIT 1"""

# Ends what is neither claimed nor about to be. Without a reason of its own a row's end is named by what it waited for
# last: its endpoint's throttle, a hold or an outage, somebody's pause; else it has simply expired. Open is the first
# row of the page that had no end and is not among those that were given one.
END_PAGE: Final[LiteralString] = """
WITH page AS MATERIALIZED (
  SELECT endpoint_hash, state FROM {schema}.push_dispatch
   WHERE message_id = %(message_id)s::uuid AND endpoint_hash >= %(cursor)s::bytea
   ORDER BY endpoint_hash LIMIT %(limit)s::integer),
free AS MATERIALIZED (
  SELECT d.endpoint_hash, d.state, d.wait, d.lane_id FROM {schema}.push_dispatch AS d
   WHERE d.message_id = %(message_id)s::uuid AND d.state IN ('due', 'paused')
     AND d.endpoint_hash >= %(cursor)s::bytea
     AND d.endpoint_hash <= (SELECT endpoint_hash FROM page ORDER BY endpoint_hash DESC LIMIT 1)
   ORDER BY d.endpoint_hash LIMIT %(limit)s::integer FOR UPDATE OF d SKIP LOCKED),
judged AS (
  SELECT f.endpoint_hash,
         CASE WHEN %(reason)s::text IS NOT NULL THEN %(reason)s::text
              WHEN f.state = 'paused' THEN 'paused'
              WHEN f.wait IN ('throttled', 'held', 'paused') THEN f.wait
              WHEN l.hold_id IS NOT NULL OR p.unhealthy_at IS NOT NULL THEN 'held'
              WHEN EXISTS (SELECT FROM {schema}.push_pause AS x
                            WHERE x.kind = 'provider' AND x.name = l.push_service
                               OR x.kind = 'key' AND x.name = l.vapid_key_id) THEN 'paused'
              ELSE 'expired' END AS outcome
    FROM free AS f
    LEFT JOIN {schema}.push_lane AS l USING (lane_id)
    LEFT JOIN {schema}.push_provider AS p ON p.push_service = l.push_service),
ended AS (
  UPDATE {schema}.push_dispatch AS d SET state = 'ended', outcome = j.outcome, ended_at = now()
    FROM judged AS j
   WHERE d.message_id = %(message_id)s::uuid AND d.endpoint_hash = j.endpoint_hash
  RETURNING d.endpoint_hash)
SELECT (SELECT count(*)::integer FROM page) AS read, (SELECT count(*)::integer FROM ended) AS ended,
       (SELECT endpoint_hash FROM page ORDER BY endpoint_hash DESC LIMIT 1) AS last,
       (SELECT o.endpoint_hash
          FROM (SELECT endpoint_hash FROM page WHERE state <> 'ended' UNION ALL SELECT endpoint_hash FROM ended) AS o
         GROUP BY o.endpoint_hash HAVING count(*) = 1 ORDER BY o.endpoint_hash LIMIT 1) AS open"""

# A message that is retried for hours is not looked at every few seconds: the older it is, the longer between.
LOOK_AGAIN: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET finish_cursor = %(cursor)s::bytea,
       look_at = CASE WHEN cancelled_at IS NOT NULL OR expires_at <= now() THEN now() + %(soon)s::interval
                      ELSE least(expires_at, now() + least(%(longest)s::interval,
                                 greatest(%(soon)s::interval, (now() - first_dispatched_at) / 10))) END
 WHERE message_id = %(message_id)s::uuid"""
GO_ON: Final[LiteralString] = """
UPDATE {schema}.push_message SET finish_cursor = %(cursor)s::bytea, look_at = now()
 WHERE message_id = %(message_id)s::uuid"""
CLOSE: Final[LiteralString] = """
UPDATE {schema}.push_message SET state = 'closed', closed_at = now(), look_at = NULL, finish_cursor = NULL
 WHERE message_id = %(message_id)s::uuid"""

# Rows that had ended are due again: the message is not over.
REOPEN: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET state = 'sending', closed_at = NULL, finish_cursor = NULL, look_at = now() + %(soon)s::interval
 WHERE message_id = ANY (%(message_ids)s::uuid[]) AND state IN ('sending', 'closed') AND cancelled_at IS NULL"""


@dataclass(frozen=True)
class OpenMessage:
    """A message that is locked to be looked at; before ``cursor`` all its rows have ended."""

    message_id: UUID
    cursor: bytes
    cancelled: bool
    expired: bool


@dataclass(frozen=True)
class Ended:
    """A page: rows read and ended, its last hash, and the first that has no end since somebody has it."""

    read: int
    ended: int
    last: bytes | None
    open: bytes | None


def next_one(tx: Tx) -> UUID | None:
    found: UUID | None = tx.scalar(NEXT, {})
    return found


def lock(tx: Tx, message_id: UUID) -> OpenMessage | None:
    return tx.maybe(LOCK, {"message_id": message_id}, OpenMessage)


def find_open(tx: Tx, message_id: UUID, cursor: bytes, limit: int) -> bytes | None:
    """The first row without an end, from the cursor, on a page of ``limit``."""
    found: bytes | None = tx.scalar(FIND_OPEN, {"message_id": message_id, "cursor": cursor, "limit": limit})
    return found


def page_end(tx: Tx, message_id: UUID, cursor: bytes, limit: int) -> bytes | None:
    """The last row of a page of ``limit``; None where fewer are left."""
    found: bytes | None = tx.scalar(PAGE_END, {"message_id": message_id, "cursor": cursor, "limit": limit})
    return found


def end_page(tx: Tx, message_id: UUID, cursor: bytes, limit: int, reason: str | None) -> Ended:
    values = {"message_id": message_id, "cursor": cursor, "limit": limit, "reason": reason}
    return tx.one(END_PAGE, values, Ended)


def look_again(tx: Tx, message_id: UUID, cursor: bytes, *, soon: timedelta, longest: timedelta) -> None:
    tx.run(LOOK_AGAIN, {"message_id": message_id, "cursor": cursor, "soon": soon, "longest": longest})


def go_on(tx: Tx, message_id: UUID, cursor: bytes) -> None:
    tx.run(GO_ON, {"message_id": message_id, "cursor": cursor})


def close(tx: Tx, message_id: UUID) -> None:
    tx.run(CLOSE, {"message_id": message_id})


def reopen(tx: Tx, message_ids: Sequence[UUID], soon: timedelta) -> int:
    return tx.run(REOPEN, {"message_ids": list(message_ids), "soon": soon})
