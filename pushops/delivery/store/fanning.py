"""Fan-out: a message's recipients into the ledger, a page at a time, from a cursor in the message's own row."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.message import Audience

# Whoever has the row locked is at work; a message that somebody else works on is left to them.
LOCK: Final[LiteralString] = """
SELECT message_id, ttl, urgency, coalesce(cursor, ''::bytea) AS cursor, first_dispatched_at, expires_at,
       to_user, to_tags, to_ids, to_service, to_origin, to_locale, to_key
  FROM {schema}.push_message
 WHERE message_id = %(message_id)s::uuid AND state IN ('waiting', 'fanning_out')
   AND coalesce(not_before, created_at) <= now()
   FOR UPDATE SKIP LOCKED"""

# The message's time begins with its first page, and is never begun again.
BEGIN: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET state = 'fanning_out', first_dispatched_at = now(), expires_at = now() + ttl * interval '1 second'
 WHERE message_id = %(message_id)s::uuid AND first_dispatched_at IS NULL"""

# One page in hash order: a hash order mixes old rows with new ones, so that whatever hour of answers the guard looks
# at is a fair sample of a push service's subscriptions. Read are those that have a credential and no block; who is
# meant by the message is decided on the page, which so is bounded whatever the audience.
_READ: Final[LiteralString] = """
    SELECT s.id, s.endpoint_hash, s.user_id, s.owner_no, s.push_service, coalesce(s.vapid_key_id, '') AS vapid_key_id,
           split_part(split_part(split_part(s.endpoint, '/', 3), '?', 1), ':', 1) AS host,
           s.endpoint IS NOT NULL
           AND (s.state IN ('pending', 'active')
                OR s.state = 'stale' AND coalesce(s.last_tried_at < now() - interval '7 days', true))
           AND (%(user)s::text IS NULL OR s.user_id = %(user)s::text)
           AND (%(tags)s::text[] IS NULL OR s.tags && %(tags)s::text[])
           AND (%(service)s::text IS NULL OR s.push_service = %(service)s::text)
           AND (%(origin)s::text IS NULL OR s.origin = %(origin)s::text)
           AND (%(locale)s::text IS NULL OR s.locale = %(locale)s::text)
           AND (%(key)s::text IS NULL OR s.vapid_key_id = %(key)s::text) AS meant"""
_OF_ALL: Final[LiteralString] = (
    "page AS MATERIALIZED ("
    + _READ
    + """
      FROM {schema}.push_subscription AS s
     WHERE s.endpoint_hash > %(cursor)s::bytea AND s.deleted_at IS NULL AND s.send_block IS NULL
     ORDER BY s.endpoint_hash LIMIT %(limit)s::integer)"""
)
# Users and ids have indexes of their own; what these find is few, and only then put in order.
_OF_USER: Final[LiteralString] = (
    "found AS MATERIALIZED ("
    + _READ
    + """
      FROM {schema}.push_subscription AS s
     WHERE s.user_id = %(user)s::text AND s.deleted_at IS NULL AND s.send_block IS NULL),
page AS MATERIALIZED (
    SELECT * FROM found WHERE endpoint_hash > %(cursor)s::bytea ORDER BY endpoint_hash LIMIT %(limit)s::integer)"""
)
_OF_IDS: Final[LiteralString] = (
    "found AS MATERIALIZED ("
    + _READ
    + """
      FROM {schema}.push_subscription AS s
     WHERE s.id = ANY (%(ids)s::uuid[]) AND s.deleted_at IS NULL AND s.send_block IS NULL),
page AS MATERIALIZED (
    SELECT * FROM found WHERE endpoint_hash > %(cursor)s::bytea ORDER BY endpoint_hash LIMIT %(limit)s::integer)"""
)

# Nothing is written where a recipient's lane is missing: the lanes are made first, then the page is read again.
_INTO_LEDGER: Final[LiteralString] = """,
placed AS MATERIALIZED (
  SELECT p.*, l.lane_id FROM page AS p
    LEFT JOIN {schema}.push_lane AS l ON l.host = p.host AND l.vapid_key_id = p.vapid_key_id
   WHERE p.meant),
made AS (
  INSERT INTO {schema}.push_dispatch
         (message_id, endpoint_hash, subscription_id, user_id, owner_no, lane_id, priority, next_attempt_at, expires_at)
  SELECT %(message_id)s::uuid, endpoint_hash, id, user_id, owner_no, lane_id, %(priority)s::smallint,
         %(first_dispatched_at)s::timestamptz, %(expires_at)s::timestamptz
    FROM placed WHERE NOT EXISTS (SELECT FROM placed WHERE lane_id IS NULL)
   ORDER BY endpoint_hash
  ON CONFLICT (message_id, endpoint_hash) DO NOTHING
  RETURNING 1)
SELECT (SELECT count(*)::integer FROM page) AS read,
       (SELECT count(*)::integer FROM made) AS made,
       (SELECT count(*)::integer FROM placed WHERE lane_id IS NULL) AS homeless,
       (SELECT endpoint_hash FROM page ORDER BY endpoint_hash DESC LIMIT 1) AS last"""
_LANES: Final[LiteralString] = """
INSERT INTO {schema}.push_lane (push_service, host, vapid_key_id)
SELECT min(push_service), host, vapid_key_id FROM page WHERE meant GROUP BY host, vapid_key_id
 ORDER BY host, vapid_key_id
ON CONFLICT (host, vapid_key_id) DO NOTHING"""
# How many of a page a message is for, by push service: what a dry run adds up.
_BY_SERVICE: Final[LiteralString] = """
SELECT (SELECT count(*)::integer FROM page) AS read,
       (SELECT endpoint_hash FROM page ORDER BY endpoint_hash DESC LIMIT 1) AS last,
       (SELECT coalesce(jsonb_object_agg(g.push_service, g.rows), '{}')
          FROM (SELECT push_service, count(*)::integer AS rows FROM page WHERE meant GROUP BY push_service) AS g)
       AS services"""

FAN_OUT: Final[LiteralString] = "WITH " + _OF_ALL + _INTO_LEDGER
FAN_OUT_USER: Final[LiteralString] = "WITH " + _OF_USER + _INTO_LEDGER
FAN_OUT_IDS: Final[LiteralString] = "WITH " + _OF_IDS + _INTO_LEDGER
MAKE_LANES: Final[LiteralString] = "WITH " + _OF_ALL + _LANES
MAKE_LANES_USER: Final[LiteralString] = "WITH " + _OF_USER + _LANES
MAKE_LANES_IDS: Final[LiteralString] = "WITH " + _OF_IDS + _LANES

COUNT: Final[LiteralString] = "WITH " + _OF_ALL + _BY_SERVICE
COUNT_USER: Final[LiteralString] = "WITH " + _OF_USER + _BY_SERVICE
COUNT_IDS: Final[LiteralString] = "WITH " + _OF_IDS + _BY_SERVICE

ADVANCE: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET cursor = coalesce(%(last)s::bytea, cursor), recipients = recipients + %(made)s::bigint,
       state = CASE WHEN %(done)s::boolean THEN 'sending' ELSE state END,
       fanned_out_at = CASE WHEN %(done)s::boolean THEN now() END,
       look_at = CASE WHEN %(done)s::boolean THEN now() + %(look_after)s::interval END
 WHERE message_id = %(message_id)s::uuid"""

# Those in hand are locked, and need no doorbell.
DUE: Final[LiteralString] = """
SELECT message_id FROM {schema}.push_message
 WHERE state IN ('waiting', 'fanning_out') AND coalesce(not_before, created_at) <= now()
 ORDER BY coalesce(not_before, created_at), message_id LIMIT %(limit)s::integer
   FOR UPDATE SKIP LOCKED"""


@dataclass(frozen=True)
class MessageRun:
    """A message that fans out, locked; ``cursor`` is the last hash that was read."""

    message_id: UUID
    ttl: int
    urgency: str
    cursor: bytes
    first_dispatched_at: datetime | None
    expires_at: datetime | None
    to_user: str | None
    to_tags: list[str] | None
    to_ids: list[UUID] | None
    to_service: str | None
    to_origin: str | None
    to_locale: str | None
    to_key: str | None

    @property
    def audience(self) -> Audience:
        return Audience(
            user=self.to_user,
            tags=None if self.to_tags is None else tuple(self.to_tags),
            ids=None if self.to_ids is None else tuple(self.to_ids),
            service=self.to_service,
            origin=self.to_origin,
            locale=self.to_locale,
            key=self.to_key,
        )


@dataclass(frozen=True)
class Placed:
    """A page: rows read, recipients written, recipients whose lane is missing, and the last hash."""

    read: int
    made: int
    homeless: int
    last: bytes | None


@dataclass(frozen=True)
class Counted:
    read: int
    last: bytes | None
    services: Mapping[str, int]


@dataclass(frozen=True)
class Page:
    """Whom to read: of whom, after which hash, how many."""

    audience: Audience
    cursor: bytes
    limit: int

    @property
    def values(self) -> dict[str, Any]:
        of = self.audience
        return {
            "user": of.user,
            "tags": None if of.tags is None else list(of.tags),
            "ids": None if of.ids is None else list(of.ids),
            "service": of.service,
            "origin": of.origin,
            "locale": of.locale,
            "key": of.key,
            "cursor": self.cursor,
            "limit": self.limit,
        }

    def choose(self, everybody: LiteralString, user: LiteralString, ids: LiteralString) -> LiteralString:
        """Ids are the fewest, then a user's rows; both conditions hold whichever is walked."""
        if self.audience.ids is not None:
            return ids
        return everybody if self.audience.user is None else user


def lock(tx: Tx, message_id: UUID) -> MessageRun | None:
    """The message, if it may fan out now and nobody else is at it."""
    return tx.maybe(LOCK, {"message_id": message_id}, MessageRun)


def begin(tx: Tx, message_id: UUID) -> None:
    tx.run(BEGIN, {"message_id": message_id})


def place(tx: Tx, message_id: UUID, page: Page, *, priority: int, begun: datetime, expires_at: datetime) -> Placed:
    values = {"message_id": message_id, "priority": priority, "first_dispatched_at": begun, "expires_at": expires_at}
    return tx.one(page.choose(FAN_OUT, FAN_OUT_USER, FAN_OUT_IDS), values | page.values, Placed)


def make_lanes(tx: Tx, page: Page) -> int:
    return tx.run(page.choose(MAKE_LANES, MAKE_LANES_USER, MAKE_LANES_IDS), page.values)


def count(tx: Tx, page: Page) -> Counted:
    return tx.one(page.choose(COUNT, COUNT_USER, COUNT_IDS), page.values, Counted)


def advance(tx: Tx, message_id: UUID, *, last: bytes | None, made: int, done: bool, look_after: timedelta) -> None:
    values = {"message_id": message_id, "last": last, "made": made, "done": done, "look_after": look_after}
    tx.run(ADVANCE, values)


def due(tx: Tx, limit: int) -> list[UUID]:
    return tx.scalars(DUE, {"limit": limit})
