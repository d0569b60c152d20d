"""Every store but the ledger, one statement each: at most so many rows at a time, and how many went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.sql import literal

_ENDPOINTS: Final = "endpoint_hash = ANY (%(hashes)s::bytea[])"
_THEIRS: Final = _ENDPOINTS + " OR user_id = %(user)s::text"
_GONE: Final = """
WITH gone AS (
  DELETE FROM {schema}.{table} WHERE ({key}) IN (
    SELECT {key} FROM {schema}.{table} WHERE {where} LIMIT %(limit)s::integer)
  RETURNING 1)
SELECT count(*)::integer FROM gone"""


def _gone(table: str, key: str, where: str) -> LiteralString:
    return literal(_GONE.replace("{table}", table).replace("{key}", key).replace("{where}", where))


# The trail goes; that somebody came and went on these days stays, under a hash of nothing, until the trail's own purge.
PERIODS: Final[LiteralString] = """
WITH gone AS (
  DELETE FROM {schema}.subscription_period WHERE period_id IN (
    SELECT period_id FROM {schema}.subscription_period
     WHERE (endpoint_hash = ANY (%(hashes)s::bytea[]) OR user_id = %(user)s::text) AND ended_at IS NOT NULL
     LIMIT %(limit)s::integer)
  RETURNING *),
kept AS (
  INSERT INTO {schema}.subscription_period
         (endpoint_hash, push_service, origin, began_at, ended_at, end_reason, campaign_id, reconnection)
  SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), push_service, origin,
         date_bin('24 hours', began_at, timestamptz '2000-01-01 00:00:00+00'),
         date_bin('24 hours', ended_at, timestamptz '2000-01-01 00:00:00+00'), end_reason, campaign_id, reconnection
    FROM gone)
SELECT count(*)::integer FROM gone"""

# What a replay has in hand is left until it is settled.
LETTERS: Final[LiteralString] = """
WITH gone AS (
  DELETE FROM {schema}.push_dlq WHERE dlq_id IN (
    SELECT dlq_id FROM {schema}.push_dlq
     WHERE (endpoint_hash = ANY (%(hashes)s::bytea[]) OR owner = %(user)s::text) AND replay_state <> 'claimed'
     LIMIT %(limit)s::integer)
    AND replay_state <> 'claimed'
  RETURNING replay_key),
attempts AS (
  DELETE FROM {schema}.push_dlq_attempt AS a USING gone WHERE a.replay_key = gone.replay_key)
SELECT count(*)::integer FROM gone"""
LETTERS_IN_HAND: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM {schema}.push_dlq
                WHERE (endpoint_hash = ANY (%(hashes)s::bytea[]) OR owner = %(user)s::text)
                  AND replay_state = 'claimed')"""

EVIDENCE: Final[LiteralString] = _gone("push_evidence", "evidence_id", _ENDPOINTS)
THROTTLES: Final[LiteralString] = _gone("push_throttle", "endpoint_hash", _ENDPOINTS)
AUDIT: Final[LiteralString] = _gone("audit", "audit_id", _THEIRS)

STAGED: Final[LiteralString] = _gone("import_staging", "import_id, ordinal", _THEIRS)

QUARANTINE: Final[LiteralString] = _gone("sweep_quarantine", "quarantine_id", "identity = ANY (%(names)s::text[])")

# Counted as hard deletion counts them, so that totals stay what they were.
SUBSCRIPTIONS: Final[LiteralString] = """
WITH gone AS (
  DELETE FROM {schema}.push_subscription WHERE id IN (
    SELECT id FROM {schema}.push_subscription
     WHERE endpoint_hash = ANY (%(hashes)s::bytea[]) LIMIT %(limit)s::integer)
    AND deleted_at IS NOT NULL AND state IN ('expired', 'revoked') AND NOT legal_hold
  RETURNING date_bin('24 hours', revoked_at, timestamptz '2000-01-01 00:00:00+00')::date AS day,
            push_service, coalesce(origin, '') AS origin, end_reason,
            width_bucket(extract(epoch FROM revoked_at - created_at)::float8,
                         ARRAY[86400, 604800, 2592000, 7776000, 31536000]::float8[]) AS bucket),
counted AS (
  SELECT day, push_service, origin, end_reason, bucket, count(*)::integer AS ended FROM gone GROUP BY 1, 2, 3, 4, 5),
kept AS (
  INSERT INTO {schema}.subscription_ended_batch (push_service, origin, end_reason, slots, ended)
  SELECT push_service, origin, end_reason, array_agg(((day - date '2000-01-01') << 3) + bucket), array_agg(ended)
    FROM counted GROUP BY 1, 2, 3)
SELECT count(*)::integer FROM gone"""

# Messages to the user: cancelled first; emptied once they are closed and their payloads' objects are gone. '' is a
# user that nobody is: without a name it would be a message to everybody.
CANCEL_MESSAGES: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET state = 'cancelling', cancelled_at = coalesce(cancelled_at, now()),
       cancelled_by = coalesce(cancelled_by, 'erasure'), look_at = now(), finish_cursor = NULL
 WHERE to_user = %(user)s::text AND state IN ('waiting', 'fanning_out', 'sending', 'cancelling')"""
OPEN_MESSAGES: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM {schema}.push_message WHERE to_user = %(user)s::text AND state <> 'closed')"""
PAYLOADS: Final[LiteralString] = """
SELECT message_id, payload_ref FROM {schema}.push_message
 WHERE to_user = %(user)s::text AND state = 'closed' AND payload_ref IS NOT NULL LIMIT %(limit)s::integer"""
MESSAGES: Final[LiteralString] = """
WITH emptied AS (
  UPDATE {schema}.push_message
     SET to_user = '', idempotency_key = NULL, request_hash = NULL, topic = NULL, to_tags = NULL
   WHERE message_id IN (
     SELECT message_id FROM {schema}.push_message
      WHERE to_user = %(user)s::text AND state = 'closed' AND payload_ref IS NULL LIMIT %(limit)s::integer)
  RETURNING 1)
SELECT count(*)::integer FROM emptied"""

# Last what the others were found by.
REACH: Final[Mapping[str, LiteralString]] = {
    "consent periods": PERIODS,
    "dead letters": LETTERS,
    "evidence": EVIDENCE,
    "throttles": THROTTLES,
    "audit": AUDIT,
    "import staging": STAGED,
    "quarantine": QUARANTINE,
    "messages": MESSAGES,
    "subscriptions": SUBSCRIPTIONS,
}


@dataclass(frozen=True)
class Subject:
    """Whose rows are meant: those of these endpoints, and those that bear this user's name."""

    user: str | None
    hashes: Sequence[bytes]
    ids: Sequence[UUID]

    def params(self) -> dict[str, object]:
        return {"user": self.user, "hashes": list(self.hashes), "names": [str(each) for each in self.ids]}


@dataclass(frozen=True)
class Named:
    message_id: UUID
    payload_ref: str


def reach(tx: Tx, statement: LiteralString, subject: Subject, limit: int) -> int:
    found: int = tx.scalar(statement, {**subject.params(), "limit": limit})
    return found


def in_hand(tx: Tx, subject: Subject) -> bool:
    """Whether a replay has a letter of theirs."""
    return bool(tx.scalar(LETTERS_IN_HAND, subject.params()))


def cancel_messages(tx: Tx, user: str) -> int:
    return tx.run(CANCEL_MESSAGES, {"user": user})


def messages_open(tx: Tx, user: str) -> bool:
    return bool(tx.scalar(OPEN_MESSAGES, {"user": user}))


def payloads(tx: Tx, user: str, limit: int) -> list[Named]:
    """Payloads of closed messages to the user alone."""
    return tx.rows(PAYLOADS, {"user": user, "limit": limit}, Named)
