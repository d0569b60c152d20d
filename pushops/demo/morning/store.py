"""The morning's own SQL: last night's messages, their ledger and letters as of then, looking at what comes of it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.db.transaction import render
from pushops.demo.campaign.store import ORIGIN

Written = tuple[object, ...]  # in the order of the columns of _LEDGER

# Who can have had a message, and the lane that it went through.
FACTS: Final[LiteralString] = """
SELECT s.endpoint_hash, s.id, s.user_id, s.owner_no, s.push_service, l.host, l.lane_id
  FROM {schema}.push_subscription AS s
  JOIN {schema}.push_lane AS l
    ON l.vapid_key_id = s.vapid_key_id AND l.host = split_part(split_part(s.endpoint, '/', 3), '?', 1)
 WHERE s.origin = %(origin)s::text"""

# A message that came to its end last night. Its expiry is what it was from its first dispatch on.
MESSAGE: Final[LiteralString] = """
INSERT INTO {schema}.push_message
       (message_id, campaign_id, created_at, created_by, state, payload_ref, payload_key_version, payload_bytes, ttl,
        to_origin, recipients, first_dispatched_at, expires_at, fanned_out_at, closed_at)
SELECT %(message_id)s::uuid, %(campaign)s::text, %(at)s::timestamptz, 'demo', 'closed', %(ref)s::text,
       %(key_version)s::integer, %(bytes)s::integer, %(ttl)s::integer, %(origin)s::text, %(recipients)s::bigint,
       %(at)s::timestamptz, %(at)s::timestamptz + %(ttl)s::integer * interval '1 second', %(at)s::timestamptz, now()"""
_LEDGER: Final[LiteralString] = """
COPY {schema}.push_dispatch
     (message_id, endpoint_hash, subscription_id, user_id, owner_no, lane_id, priority, state, outcome, code, status,
      snippet, next_attempt_at, expires_at, attempts, ambiguous, first_attempt_at, last_attempt_at, ended_at, history)
FROM STDIN"""

# The writer parks now; these were parked when they were given up. What a letter is about never changes in its table,
# so they are taken out of it and come back, as from a backup, in the order in which they were parked.
_TAKE_OUT: Final[LiteralString] = """
CREATE TEMPORARY TABLE backup ON COMMIT DROP AS
SELECT * FROM {schema}.push_dlq WHERE message_id = ANY (%(messages)s::uuid[])"""
EMPTY: Final[LiteralString] = """
DELETE FROM {schema}.push_dlq WHERE message_id = ANY (%(messages)s::uuid[])"""
_AGE: Final[LiteralString] = """
UPDATE backup SET parked_at = last_attempt_at, next_replay_at = last_attempt_at,
       dlq_id = encode(substring(uuid_send({schema}.id_floor(last_attempt_at)) FOR 6)
                       || substring(uuid_send(dlq_id) FROM 7), 'hex')::uuid"""
_PUT_BACK: Final[LiteralString] = "INSERT INTO {schema}.push_dlq SELECT * FROM backup ORDER BY dlq_id"
# A backup that is older than a replay: of the letters it knows nothing, of their attempts there is another table.
_KEEP: Final[LiteralString] = """
CREATE TABLE {schema}.demo_backup AS SELECT * FROM {schema}.push_dlq WHERE campaign_id = %(campaign)s::text"""
FORGET: Final[LiteralString] = "DELETE FROM {schema}.push_dlq WHERE campaign_id = %(campaign)s::text"
_RESTORE: Final[LiteralString] = "INSERT INTO {schema}.push_dlq SELECT * FROM {schema}.demo_backup"
_DROP: Final[LiteralString] = "DROP TABLE {schema}.demo_backup"
_ANALYZE: Final[LiteralString] = "ANALYZE {schema}.push_dlq, {schema}.push_dispatch, {schema}.push_dlq_attempt"

OWED: Final[LiteralString] = "SELECT count(*) FROM {schema}.push_unparked"
LETTERS: Final[LiteralString] = """
SELECT endpoint_hash, campaign_id AS campaign, replay_state AS state, close_reason AS reason, replay_count AS replays,
       expires_at, original_ttl
  FROM {schema}.push_dlq"""
# How far a drain is: what it will not look at, poison, is left out.
PROGRESS: Final[LiteralString] = """
SELECT count(*) FILTER (WHERE replay_state IN ('replayed', 'discarded')) AS ended,
       count(*) FILTER (WHERE replay_state = 'replayed') AS replayed,
       count(*) FILTER (WHERE replay_state = 'claimed') AS claimed,
       count(*) FILTER (WHERE replay_state = 'parked') AS parked
  FROM {schema}.push_dlq WHERE error_class <> 'poison'"""

# Letters whose attempt was begun and whose holder has said nothing since: a request is over within hundredths.
OPENED: Final[LiteralString] = """
SELECT d.endpoint_hash
  FROM {schema}.push_dlq_attempt AS a JOIN {schema}.push_dlq AS d USING (replay_key)
 WHERE d.replay_state = 'claimed' AND a.run_id = %(run_id)s::uuid AND a.kind = 'replay' AND a.settled_at IS NULL
   AND a.at < clock_timestamp() - %(older)s::interval"""
# What a run has sent again so far.
REPLAYED: Final[LiteralString] = """
SELECT coalesce((outcomes ->> 'replayed')::bigint, 0) FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid"""
LAST_RUN: Final[LiteralString] = """
SELECT run_id FROM {schema}.sweep_run WHERE sweep = 'drain-dead-letters' AND filter = %(filter)s::text
 ORDER BY opened_at DESC LIMIT 1"""
# Attempts a second, where they were most within a span of time.
BUSIEST: Final[LiteralString] = """
SELECT (coalesce(max(begun), 0) / extract(epoch FROM %(span)s::interval))::float8
  FROM (SELECT count(*) AS begun FROM {schema}.push_dlq_attempt WHERE kind = 'replay' AND run_id = %(run_id)s::uuid
         GROUP BY date_bin(%(span)s::interval, at, timestamptz '2000-01-01 00:00:00+00')) AS spans"""
RUN: Final[LiteralString] = """
SELECT run_id, state, outcomes FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid"""

# From the call to the answer written down, by the database's clock.
LIVE: Final[LiteralString] = """
SELECT m.message_id, d.endpoint_hash, coalesce(d.outcome, d.state) AS outcome, d.ambiguous,
       extract(epoch FROM d.ended_at - m.created_at)::float8 AS seconds
  FROM {schema}.push_message AS m JOIN {schema}.push_dispatch AS d USING (message_id)
 WHERE m.campaign_id = %(campaign)s::text"""


@dataclass(frozen=True)
class Facts:
    endpoint_hash: bytes
    id: UUID
    user_id: str | None
    owner_no: int
    push_service: str
    host: str
    lane_id: int


@dataclass(frozen=True)
class Ended:
    """A letter as it is; ``reason`` None while it is not closed."""

    endpoint_hash: bytes
    campaign: str | None
    state: str
    reason: str | None
    replays: int
    expires_at: datetime
    original_ttl: int


@dataclass(frozen=True)
class Progress:
    ended: int
    replayed: int
    claimed: int
    parked: int


@dataclass(frozen=True)
class Run:
    run_id: UUID
    state: str
    outcomes: Mapping[str, int]


@dataclass(frozen=True)
class Live:
    """A small message to one person. ``seconds`` None where its recipient has no end."""

    message_id: UUID
    endpoint_hash: bytes
    outcome: str
    ambiguous: int
    seconds: float | None


def facts(tx: Tx) -> list[Facts]:
    return tx.rows(FACTS, {"origin": ORIGIN}, Facts)


def write_message(tx: Tx, values: dict[str, Any]) -> None:
    tx.run(MESSAGE, values | {"origin": ORIGIN})


def copy_ledger(tx: Tx, rows: Iterable[Written]) -> None:
    with tx.conn.cursor() as cursor, cursor.copy(render(_LEDGER, tx.schema)) as copy:
        for row in rows:
            copy.write_row(row)


def age_letters(tx: Tx, messages: Collection[UUID]) -> None:
    """Letters that were written now become what they would be had they been written when they were given up."""
    values = {"messages": list(messages)}
    tx.run(_TAKE_OUT, values)
    tx.run(EMPTY, values)
    tx.run(_AGE, {})
    tx.run(_PUT_BACK, {})


def analyze(tx: Tx) -> None:
    tx.run(_ANALYZE, {})


def back_up(tx: Tx, campaign: str) -> None:
    tx.run(_KEEP, {"campaign": campaign})


def restore(tx: Tx, campaign: str) -> None:
    """The letters of a campaign are again what they were at ``back_up``."""
    tx.run(FORGET, {"campaign": campaign})
    tx.run(_RESTORE, {})
    tx.run(_DROP, {})


def owed(tx: Tx) -> int:
    return int(tx.scalar(OWED, {}))


def letters(tx: Tx) -> list[Ended]:
    return tx.rows(LETTERS, {}, Ended)


def progress(tx: Tx) -> Progress:
    return tx.one(PROGRESS, {}, Progress)


def opened(tx: Tx, run_id: UUID, older: timedelta) -> list[bytes]:
    return tx.scalars(OPENED, {"run_id": run_id, "older": older})


def busiest(tx: Tx, run_id: UUID, span: timedelta) -> float:
    return float(tx.scalar(BUSIEST, {"run_id": run_id, "span": span}))


def run(tx: Tx, run_id: UUID) -> Run:
    return tx.one(RUN, {"run_id": run_id}, Run)


def last_run(tx: Tx, filter_key: str) -> UUID | None:
    found: UUID | None = tx.scalar(LAST_RUN, {"filter": filter_key})
    return found


def replayed_by(tx: Tx, run_id: UUID) -> int:
    return int(tx.scalar(REPLAYED, {"run_id": run_id}) or 0)


def live(tx: Tx, campaign: str) -> list[Live]:
    return tx.rows(LIVE, {"campaign": campaign}, Live)
