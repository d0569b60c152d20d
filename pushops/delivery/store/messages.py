"""Messages: made once, looked at, cancelled."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx

# The id comes before the row, since the payload is sealed under it.
NEW_ID: Final[LiteralString] = "SELECT {schema}.new_id()"

# Of two that bring the same key at once the second waits for the first, and then finds it.
INSERT: Final[LiteralString] = """
INSERT INTO {schema}.push_message
       (message_id, idempotency_key, request_hash, campaign_id, created_by, payload_ref, payload_key_version,
        payload_bytes, rendered, ttl, urgency, topic, not_before, replayable, on_ambiguous, on_in_doubt,
        to_user, to_tags, to_ids, to_service, to_origin, to_locale, to_key)
VALUES (%(message_id)s::uuid, %(idempotency_key)s::text, %(request_hash)s::bytea, %(campaign)s::text,
        %(actor)s::text, %(payload_ref)s::text, %(payload_key_version)s::integer, %(payload_bytes)s::integer,
        %(rendered)s::boolean, %(ttl)s::integer, %(urgency)s::text, %(topic)s::text, %(not_before)s::timestamptz,
        %(replayable)s::boolean, %(on_ambiguous)s::text, %(on_in_doubt)s::text, %(user)s::text, %(tags)s::text[],
        %(ids)s::uuid[], %(service)s::text, %(origin)s::text, %(locale)s::text, %(key)s::text)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"""

FIRST: Final[LiteralString] = """
SELECT message_id, state, request_hash, created_at FROM {schema}.push_message
 WHERE idempotency_key = %(key)s::text"""

_COLUMNS: Final[LiteralString] = """
  message_id, campaign_id, created_at, created_by, state, payload_bytes, rendered, ttl, urgency, topic, not_before,
  replayable, on_ambiguous, on_in_doubt, idempotency_key, to_user, to_tags, cardinality(to_ids) AS to_ids, to_service,
  to_origin, to_locale, to_key, recipients, first_dispatched_at, expires_at, fanned_out_at, cancelled_at,
  cancelled_by, closed_at"""

BY_ID: Final[LiteralString] = (
    "SELECT " + _COLUMNS + " FROM {schema}.push_message WHERE message_id = %(message_id)s::uuid"
)
LIST: Final[LiteralString] = (
    "SELECT "
    + _COLUMNS
    + """
  FROM {schema}.push_message
 WHERE message_id < %(before)s::uuid
   AND (%(campaign)s::text IS NULL OR campaign_id = %(campaign)s::text)
   AND (%(state)s::text IS NULL OR state = %(state)s::text)
 ORDER BY message_id DESC LIMIT %(limit)s::integer"""
)
LIKE: Final[LiteralString] = """
SELECT message_id FROM {schema}.push_message
 WHERE message_id BETWEEN %(lowest)s::uuid AND %(highest)s::uuid ORDER BY message_id LIMIT 2"""

# What is out stays out; what never fanned out has no rows, and is closed by the first look.
CANCEL: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET state = 'cancelling', cancelled_at = now(), cancelled_by = %(actor)s::text, look_at = now(), finish_cursor = NULL
 WHERE message_id = %(message_id)s::uuid AND state IN ('waiting', 'fanning_out', 'sending')
RETURNING message_id"""
OPEN_OF_CAMPAIGN: Final[LiteralString] = """
SELECT message_id FROM {schema}.push_message
 WHERE campaign_id = %(campaign)s::text AND state IN ('waiting', 'fanning_out', 'sending') ORDER BY message_id"""

# By what became of its recipients; one message's rows are neighbours in one partition.
PROGRESS: Final[LiteralString] = """
SELECT state, outcome, wait, count(*)::bigint AS rows, count(*) FILTER (WHERE attempts > 0)::bigint AS tried
  FROM {schema}.push_dispatch WHERE message_id = %(message_id)s::uuid
 GROUP BY state, outcome, wait ORDER BY count(*) DESC, state, outcome, wait"""
RESULTS: Final[LiteralString] = """
SELECT endpoint_hash, subscription_id, user_id, state, outcome, wait, code, status, attempts, ambiguous, granted_ttl,
       first_attempt_at, last_attempt_at, next_attempt_at, ended_at
  FROM {schema}.push_dispatch
 WHERE message_id = %(message_id)s::uuid AND endpoint_hash > %(after)s::bytea
   AND (%(outcome)s::text IS NULL OR coalesce(outcome, state) = %(outcome)s::text)
 ORDER BY endpoint_hash LIMIT %(limit)s::integer"""


@dataclass(frozen=True)
class FirstRow:
    """The message that a key made first."""

    message_id: UUID
    state: str
    request_hash: bytes
    created_at: datetime


@dataclass(frozen=True)
class MessageRow:
    """A message without its payload; ``to_ids`` is how many subscriptions were named."""

    message_id: UUID
    campaign_id: str | None
    created_at: datetime
    created_by: str
    state: str
    payload_bytes: int
    rendered: bool
    ttl: int
    urgency: str
    topic: str | None
    not_before: datetime | None
    replayable: bool
    on_ambiguous: str
    on_in_doubt: str
    idempotency_key: str | None
    to_user: str | None
    to_tags: list[str] | None
    to_ids: int | None
    to_service: str | None
    to_origin: str | None
    to_locale: str | None
    to_key: str | None
    recipients: int
    first_dispatched_at: datetime | None
    expires_at: datetime | None
    fanned_out_at: datetime | None
    cancelled_at: datetime | None
    cancelled_by: str | None
    closed_at: datetime | None


@dataclass(frozen=True)
class Share:
    """How many recipients are in a state, and with which outcome or waiting for what."""

    state: str
    outcome: str | None
    wait: str | None
    rows: int
    tried: int


@dataclass(frozen=True)
class ResultRow:
    endpoint_hash: bytes
    subscription_id: UUID
    user_id: str | None
    state: str
    outcome: str | None
    wait: str | None
    code: str | None
    status: int | None
    attempts: int
    ambiguous: int
    granted_ttl: int | None
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime
    ended_at: datetime | None


def new_id(tx: Tx) -> UUID:
    found: UUID = tx.scalar(NEW_ID, {})
    return found


def insert(tx: Tx, values: dict[str, Any]) -> bool:
    """False where the idempotency key has a message already."""
    return tx.run(INSERT, values) == 1


def first(tx: Tx, key: str) -> FirstRow | None:
    return tx.maybe(FIRST, {"key": key}, FirstRow)


def by_id(tx: Tx, message_id: UUID) -> MessageRow | None:
    return tx.maybe(BY_ID, {"message_id": message_id}, MessageRow)


def page(tx: Tx, *, campaign: str | None, state: str | None, before: UUID, limit: int) -> list[MessageRow]:
    """The latest first."""
    return tx.rows(LIST, {"campaign": campaign, "state": state, "before": before, "limit": limit}, MessageRow)


def like(tx: Tx, lowest: UUID, highest: UUID) -> list[UUID]:
    return tx.scalars(LIKE, {"lowest": lowest, "highest": highest})


def cancel(tx: Tx, message_id: UUID, actor: str) -> bool:
    return tx.scalar(CANCEL, {"message_id": message_id, "actor": actor}) is not None


def open_of_campaign(tx: Tx, campaign: str) -> list[UUID]:
    return tx.scalars(OPEN_OF_CAMPAIGN, {"campaign": campaign})


def progress(tx: Tx, message_id: UUID) -> list[Share]:
    return tx.rows(PROGRESS, {"message_id": message_id}, Share)


def results(tx: Tx, message_id: UUID, *, outcome: str | None, after: bytes, limit: int) -> list[ResultRow]:
    values = {"message_id": message_id, "outcome": outcome, "after": after, "limit": limit}
    return tx.rows(RESULTS, values, ResultRow)
