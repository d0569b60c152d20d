"""How letters come in: owed where a ledger row ends, written later on another connection."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters.letter import ErrorClass, Letter
from pushops.deadletters.spelling import spell

Recipient = tuple[UUID, bytes]  # message and endpoint's hash: a ledger row
FIRST: Final = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0), b"")

# In the transaction in which the ledger row ends: from then on somebody will write the letter.
OWE: Final[LiteralString] = """
INSERT INTO {schema}.push_unparked AS u (message_id, endpoint_hash, error_class)
SELECT message_id, endpoint_hash, error_class
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[], %(classes)s::text[])
       AS r (message_id, endpoint_hash, error_class)
 ORDER BY message_id, endpoint_hash
    ON CONFLICT (message_id, endpoint_hash) DO UPDATE SET error_class = EXCLUDED.error_class, ended_at = now()"""

# All that a letter says, so that it can be written when ledger and message are long gone. What killed its worker has no
# answer of its own: the snippet is of an answer before.
_LETTER: Final[LiteralString] = """
SELECT u.ended_at, d.message_id IS NULL AS gone, u.message_id, d.subscription_id, u.endpoint_hash,
       coalesce(l.host, '') AS endpoint_host, coalesce(l.push_service, 'other') AS push_service, d.user_id AS owner,
       d.owner_no, m.campaign_id, m.payload_ref,
       greatest(d.attempts, (d.history -> -1 ->> 'n')::integer)::integer AS attempt_count,
       d.first_attempt_at, d.last_attempt_at, d.status AS terminal_status, u.error_class,
       coalesce(d.code, 'unknown') AS error_code,
       CASE WHEN d.outcome = 'worker_lost' THEN '' ELSE coalesce(d.snippet, '') END AS error_snippet,
       coalesce(m.ttl, 0) AS original_ttl, d.expires_at, coalesce(m.replayable, false) AS replayable,
       coalesce(m.on_in_doubt, 'discard') AS on_in_doubt,
       coalesce(d.history -> -1 ->> 'outcome' = 'ambiguous', false) AS in_doubt,
       coalesce(d.history, '[]') AS history
  FROM u
  LEFT JOIN {schema}.push_dispatch AS d USING (message_id, endpoint_hash)
  LEFT JOIN {schema}.push_message AS m USING (message_id)
  LEFT JOIN {schema}.push_lane AS l USING (lane_id)"""
LETTERS: Final[LiteralString] = (
    """
WITH u AS MATERIALIZED (
  SELECT * FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash)
    JOIN {schema}.push_unparked USING (message_id, endpoint_hash))"""
    + _LETTER
)
OWED: Final[LiteralString] = (
    """
WITH u AS MATERIALIZED (
  SELECT * FROM {schema}.push_unparked
   WHERE ended_at < now() - %(older)s::interval
     AND (ended_at, message_id, endpoint_hash)
         > (%(after_at)s::timestamptz, %(after_message)s::uuid, %(after_hash)s::bytea)
   ORDER BY ended_at, message_id, endpoint_hash LIMIT %(limit)s::integer)"""
    + _LETTER
    + " ORDER BY u.ended_at, u.message_id, u.endpoint_hash"
)

# A letter that comes again, from a spool or since its ledger row was opened once more, says what the later attempt said
# and nothing else. In the order of keys, so that two who write the same letters wait for each other and go on.
PARK: Final[LiteralString] = """
INSERT INTO {schema}.push_dlq AS d
       (message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no, campaign_id,
        payload_ref, attempt_count, first_attempt_at, last_attempt_at, terminal_status, error_class, error_code,
        error_snippet, original_ttl, expires_at, replayable, on_in_doubt, in_doubt, replay_key)
SELECT message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no, campaign_id,
       payload_ref, attempt_count, first_attempt_at, last_attempt_at, terminal_status, error_class, error_code,
       error_snippet, original_ttl, expires_at, replayable, on_in_doubt, in_doubt,
       {schema}.replay_key(message_id, subscription_id)
  FROM json_to_recordset(%(letters)s::json) AS r
       (message_id uuid, subscription_id uuid, endpoint_hash bytea, endpoint_host text, push_service text, owner text,
        owner_no bigint, campaign_id text, payload_ref text, attempt_count integer, first_attempt_at timestamptz,
        last_attempt_at timestamptz, terminal_status integer, error_class text, error_code text, error_snippet text,
        original_ttl integer, expires_at timestamptz, replayable boolean, on_in_doubt text, in_doubt boolean)
 ORDER BY message_id, subscription_id
    ON CONFLICT (message_id, subscription_id) DO UPDATE
   SET attempt_count = greatest(d.attempt_count, EXCLUDED.attempt_count), last_attempt_at = EXCLUDED.last_attempt_at,
       terminal_status = EXCLUDED.terminal_status, error_class = EXCLUDED.error_class,
       error_code = EXCLUDED.error_code, error_snippet = EXCLUDED.error_snippet, in_doubt = EXCLUDED.in_doubt
 WHERE d.replay_state = 'parked' AND EXCLUDED.last_attempt_at > d.last_attempt_at"""
ATTEMPTS: Final[LiteralString] = """
INSERT INTO {schema}.push_dlq_attempt
       (replay_key, attempt, kind, at, settled_at, outcome, status, code, snippet)
SELECT {schema}.replay_key(message_id, subscription_id), n, 'live', at, at, outcome, status, code, snippet
  FROM json_to_recordset(%(attempts)s::json) AS r
       (message_id uuid, subscription_id uuid, n integer, at timestamptz, status integer, code text, outcome text,
        snippet text)
 ORDER BY message_id, subscription_id, n
    ON CONFLICT DO NOTHING"""
PAID: Final[LiteralString] = """
DELETE FROM {schema}.push_unparked AS u
 USING unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash)
 WHERE u.message_id = r.message_id AND u.endpoint_hash = r.endpoint_hash"""


@dataclass(frozen=True, slots=True)
class Owed(Letter):
    """A letter that is owed, and since when; ``gone``: so is its ledger row, and nothing else is known of it."""

    ended_at: datetime | None = None
    gone: bool = False


def owe(tx: Tx, ended: Mapping[Recipient, ErrorClass]) -> list[Owed]:
    """Owe a letter for each ledger row that ended here; what the letters will say."""
    keys = _keys(list(ended))
    tx.run(OWE, keys | {"classes": list(ended.values())})
    return [_read(row) for row in tx.rows(LETTERS, keys, Owed)]


def owed(tx: Tx, *, older: timedelta, after: Owed | None, limit: int) -> list[Owed]:
    """The next page of letters that have been owed for longer than that, the oldest first."""
    at, message, endpoint = FIRST if after is None else (after.ended_at, after.message_id, after.endpoint_hash)
    values = {"older": older, "limit": limit, "after_at": at, "after_message": message, "after_hash": endpoint}
    return [_read(row) for row in tx.rows(OWED, values, Owed)]


def forget(tx: Tx, recipients: Sequence[Recipient]) -> int:
    """Owe these letters no more."""
    return tx.run(PAID, _keys(recipients))


def write(tx: Tx, letters: Sequence[Letter]) -> None:
    """Write letters and their attempts, where they are not written yet; they are owed no more. Each only once here."""
    found = [spell(letter) for letter in letters]
    tx.run(PARK, {"letters": json.dumps(found)})
    tx.run(ATTEMPTS, {"attempts": json.dumps([each for one in found for each in _attempts(one)])})
    forget(tx, [(letter.message_id, letter.endpoint_hash) for letter in letters])


def _attempts(letter: Mapping[str, Any]) -> list[dict[str, Any]]:
    of = {name: letter[name] for name in ("message_id", "subscription_id")}
    return [of | attempt for attempt in letter["history"]]


def _read(row: Owed) -> Owed:
    return replace(row, error_class=ErrorClass(row.error_class))


def _keys(recipients: Sequence[Recipient]) -> dict[str, Any]:
    return {"messages": [message for message, _ in recipients], "hashes": [endpoint for _, endpoint in recipients]}
