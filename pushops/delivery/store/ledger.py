"""The ledger as senders see it: rows are claimed, released, settled, and taken back from who died."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.store.lanes import OLDEST

# What becomes of a row that is due, judged on the subscription, the message and the endpoint as they are now. NULL: it
# may be sent. The first that holds is the reason.
_FATE: Final[LiteralString] = """
  CASE WHEN m.message_id IS NULL THEN 'message_gone'
       WHEN m.cancelled_at IS NOT NULL THEN 'cancelled'
       WHEN p.expires_at <= clock_timestamp()
       THEN CASE WHEN p.wait IN ('throttled', 'held') THEN p.wait
                 WHEN EXISTS (SELECT FROM {schema}.push_lane AS l
                                LEFT JOIN {schema}.push_provider AS x USING (push_service)
                               WHERE l.lane_id = p.lane_id AND (l.hold_id IS NOT NULL OR x.unhealthy_at IS NOT NULL))
                 THEN 'held' ELSE 'expired' END
       WHEN s.id IS NULL OR s.deleted_at IS NOT NULL THEN 'subscription_gone'
       WHEN s.owner_no <> p.owner_no THEN 'owner_changed'
       WHEN s.send_block IS NOT NULL THEN s.send_block
       WHEN EXISTS (SELECT FROM {schema}.push_pause AS x WHERE x.kind = 'campaign' AND x.name = m.campaign_id)
       THEN 'paused'
       WHEN t.until > now() THEN 'later' END"""

# The most urgent first, then by when they are due, then in the order of hashes, which mixes old rows with new ones.
# Each look stops where its limit is reached. The attempt is counted before anything is done with the row.
CLAIM: Final[LiteralString] = (
    """
WITH picked AS MATERIALIZED (
  SELECT d.* FROM generate_series(0, 3) AS wanted (priority)
   CROSS JOIN unnest(%(lanes)s::integer[]) AS lane (lane_id)
   CROSS JOIN LATERAL (
     SELECT message_id, endpoint_hash, subscription_id, owner_no, lane_id, expires_at, wait
       FROM {schema}.push_dispatch
      WHERE lane_id = lane.lane_id AND priority = wanted.priority AND state = 'due'
        AND next_attempt_at <= %(horizon)s::timestamptz AND message_id >= """
    + OLDEST
    + """
        AND message_id <> ALL (%(without)s::uuid[])
      ORDER BY next_attempt_at, endpoint_hash LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED) AS d
   LIMIT %(limit)s::integer),
judged AS MATERIALIZED (
  SELECT p.message_id, p.endpoint_hash, t.until, s.endpoint, s.p256dh,
         s.auth_sealed, s.auth_key_version, s.vapid_key_id, s.registration_no, s.push_service, s.locale, s.tags,
         s.max_payload, m.campaign_id, m.payload_ref, m.payload_key_version, m.rendered, m.ttl, m.urgency, m.topic,
         m.on_ambiguous,"""
    + _FATE
    + """ AS fate
    FROM picked AS p
    LEFT JOIN {schema}.push_message AS m ON m.message_id = p.message_id
    LEFT JOIN {schema}.push_subscription AS s ON s.id = p.subscription_id
    LEFT JOIN {schema}.push_throttle AS t ON t.endpoint_hash = p.endpoint_hash),
ended AS (
  UPDATE {schema}.push_dispatch AS d SET state = 'ended', outcome = j.fate, ended_at = now()
    FROM judged AS j
   WHERE d.message_id = j.message_id AND d.endpoint_hash = j.endpoint_hash AND j.fate NOT IN ('paused', 'later')),
paused AS (
  UPDATE {schema}.push_dispatch AS d SET state = 'paused', wait = 'paused'
    FROM judged AS j WHERE d.message_id = j.message_id AND d.endpoint_hash = j.endpoint_hash AND j.fate = 'paused'),
later AS (
  UPDATE {schema}.push_dispatch AS d SET next_attempt_at = j.until, wait = 'throttled'
    FROM judged AS j WHERE d.message_id = j.message_id AND d.endpoint_hash = j.endpoint_hash AND j.fate = 'later'),
claimed AS (
  UPDATE {schema}.push_dispatch AS d
     SET state = 'claimed', claim_token = %(token)s::uuid, claimed_until = clock_timestamp() + %(lease)s::interval,
         registration_no = j.registration_no, attempts = d.attempts + 1, posted = NOT j.rendered,
         first_attempt_at = coalesce(d.first_attempt_at, now()), last_attempt_at = now()
    FROM judged AS j
   WHERE d.message_id = j.message_id AND d.endpoint_hash = j.endpoint_hash AND j.fate IS NULL
  RETURNING d.message_id, d.endpoint_hash, d.subscription_id, d.user_id, d.lane_id, d.attempts, d.repeats,
            d.ambiguous, d.expires_at, d.first_attempt_at, d.wait, d.code AS last_code, d.snippet AS last_snippet,
            j.endpoint, j.p256dh, j.auth_sealed, j.auth_key_version, j.vapid_key_id, j.registration_no,
            j.push_service, j.locale, j.tags, j.max_payload, j.campaign_id, j.payload_ref, j.payload_key_version,
            j.rendered, j.ttl, j.urgency, j.topic, j.on_ambiguous)
SELECT *, (SELECT count(*)::integer FROM picked) AS picked FROM claimed"""
)
# Whether anything was picked at all, where nothing of it may be sent.
DUE: Final[LiteralString] = (
    """
SELECT EXISTS (
  SELECT FROM generate_series(0, 3) AS wanted (priority)
   CROSS JOIN unnest(%(lanes)s::integer[]) AS lane (lane_id)
   CROSS JOIN LATERAL (
     SELECT FROM {schema}.push_dispatch AS d
      WHERE d.lane_id = lane.lane_id AND d.priority = wanted.priority AND d.state = 'due'
        AND d.next_attempt_at <= %(horizon)s::timestamptz AND d.message_id >= """
    + OLDEST
    + """
      ORDER BY d.next_attempt_at LIMIT 1) AS one)"""
)

_MINE: Final[LiteralString] = """
   d.message_id = r.message_id AND d.endpoint_hash = r.endpoint_hash
   AND d.state = 'claimed' AND d.claim_token = %(token)s::uuid"""

# Rendering is the last thing that may kill a worker before anything was sent.
POSTING: Final[LiteralString] = (
    """
UPDATE {schema}.push_dispatch AS d SET posted = true
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash) WHERE """
    + _MINE
    + " RETURNING d.message_id, d.endpoint_hash"
)

# What was claimed and not begun: as if nobody had had it.
RELEASE: Final[LiteralString] = (
    """
UPDATE {schema}.push_dispatch AS d
   SET state = 'due', claim_token = NULL, claimed_until = NULL, attempts = d.attempts - 1, posted = false,
       lane_id = coalesce(r.lane_id, d.lane_id)
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[], %(lanes)s::integer[]) AS r (message_id, endpoint_hash, lane_id)
 WHERE """
    + _MINE
)

SETTLE_ACCEPTED: Final[LiteralString] = (
    """
UPDATE {schema}.push_dispatch AS d
   SET state = 'ended', outcome = 'accepted', ended_at = now(), status = r.status, granted_ttl = r.granted_ttl,
       claim_token = NULL, claimed_until = NULL
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[], %(statuses)s::integer[], %(ttls)s::integer[])
       AS r (message_id, endpoint_hash, status, granted_ttl)
 WHERE """
    + _MINE
    + " RETURNING d.endpoint_hash, d.message_id"
)

# The attempts that failed, as a dead letter tells them: the last twenty, numbered through. What a hold gives
# back is numbered too. A snippet stands where it is another than the one before.
_PAST: Final[LiteralString] = """
       history = CASE WHEN jsonb_array_length(d.history) >= 20 THEN d.history - 0 ELSE coalesce(d.history, '[]') END
                 || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                      'n', greatest(d.attempts, (d.history -> -1 ->> 'n')::integer + 1), 'at', d.last_attempt_at"""

# spends false: the attempt is given back. suspect: it may turn out to have been a hold's or an outage's. What comes
# back into a hold or an outage gets back what it cost on the way in: GIVE_BACK does not see what somebody has claimed.
SETTLE: Final[LiteralString] = (
    """
UPDATE {schema}.push_dispatch AS d
   SET state = CASE WHEN r.outcome IS NULL THEN 'due' ELSE 'ended' END,
       outcome = r.outcome, ended_at = CASE WHEN r.outcome IS NULL THEN NULL ELSE now() END,
       next_attempt_at = coalesce(r.next_attempt_at, d.next_attempt_at), wait = r.wait,
       attempts = CASE WHEN r.spends THEN d.attempts
                       ELSE greatest(d.attempts - 1 - CASE WHEN r.wait = 'held' THEN d.suspect ELSE 0 END, 0) END,
       suspect = CASE WHEN r.wait = 'held' THEN 0 WHEN r.suspect AND r.spends THEN least(d.suspect + 1, 100)
                      ELSE d.suspect END,
       ambiguous = least(d.ambiguous + r.ambiguous::integer, 1000), repeats = r.repeats,
       status = r.status, code = r.code, snippet = r.snippet, granted_ttl = r.granted_ttl,
       claim_token = NULL, claimed_until = NULL, posted = false,"""
    + _PAST
    + """, 'status', r.status, 'code', r.code, 'outcome', r.answer,
                      'snippet', CASE WHEN r.snippet IS DISTINCT FROM d.snippet THEN r.snippet END)))
  FROM json_to_recordset(%(rows)s::json) AS r
       (message_id uuid, endpoint_hash bytea, outcome text, code text, status integer, snippet text, wait text,
        answer text, next_attempt_at timestamptz, spends boolean, suspect boolean, ambiguous boolean,
        repeats smallint, granted_ttl integer)
 WHERE """
    + _MINE
    + " RETURNING d.endpoint_hash, d.message_id"
)

# Who waits for an endpoint that asked to be left alone waits together.
THROTTLE: Final[LiteralString] = """
INSERT INTO {schema}.push_throttle AS t (endpoint_hash, until)
SELECT endpoint_hash, max(until) FROM unnest(%(hashes)s::bytea[], %(untils)s::timestamptz[]) AS r (endpoint_hash, until)
 GROUP BY endpoint_hash ORDER BY endpoint_hash
    ON CONFLICT (endpoint_hash) DO UPDATE SET until = greatest(t.until, EXCLUDED.until)"""
FORGET_THROTTLES: Final[LiteralString] = """
DELETE FROM {schema}.push_throttle WHERE endpoint_hash IN (
  SELECT endpoint_hash FROM {schema}.push_throttle WHERE until < now() LIMIT 5000 FOR UPDATE SKIP LOCKED)"""

# A hold or an outage was found: what it cost in the last minutes was not the rows' own fault.
GIVE_BACK: Final[LiteralString] = """
UPDATE {schema}.push_dispatch AS d
   SET attempts = greatest(attempts - suspect, 0), suspect = 0, wait = 'held',
       next_attempt_at = least(next_attempt_at, now())
 WHERE lane_id = ANY (%(lanes)s::integer[]) AND state = 'due' AND suspect > 0
   AND last_attempt_at > now() - %(window)s::interval"""

# Rows that a lifted block had ended are due again, unless they expired meanwhile: then the claim says so. A message
# that was cancelled stays over, with all its rows.
REOPEN: Final[LiteralString] = """
UPDATE {schema}.push_dispatch AS d
   SET state = 'due', outcome = NULL, ended_at = NULL, wait = 'held', next_attempt_at = now(),
       attempts = greatest(attempts - 1, 0)
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash)
  JOIN {schema}.push_message AS m ON m.message_id = r.message_id AND m.cancelled_at IS NULL
 WHERE d.message_id = r.message_id AND d.endpoint_hash = r.endpoint_hash AND d.state = 'ended'
   AND d.outcome = 'key_mismatch'"""

# A claim that ran out: its worker died or was cut off. Whether the POST was begun cannot be known where it may have
# been; then the message says what to do. A row that took three workers with it, one after the other, goes no further:
# repeats counts them, as it counts answers that are alike.
REAP: Final[LiteralString] = (
    """
WITH lost AS MATERIALIZED (
  SELECT d.message_id, d.endpoint_hash, d.posted,
         lives.lost AS deaths,
         CASE WHEN lives.lost >= %(deaths)s::integer THEN 'worker_lost'
              WHEN d.posted AND m.on_ambiguous = 'drop' THEN 'ambiguous' END AS outcome
    FROM {schema}.push_dispatch AS d LEFT JOIN {schema}.push_message AS m USING (message_id)
   CROSS JOIN LATERAL (
     SELECT 1 + CASE WHEN d.code IN ('worker_lost', 'lease_expired') THEN d.repeats ELSE 0 END AS lost) AS lives
   WHERE d.state = 'claimed' AND d.claimed_until < clock_timestamp()
   ORDER BY d.claimed_until LIMIT %(limit)s::integer FOR UPDATE OF d SKIP LOCKED)
UPDATE {schema}.push_dispatch AS d
   SET claim_token = NULL, claimed_until = NULL, posted = false, repeats = l.deaths, status = NULL,
       ambiguous = d.ambiguous + l.posted::integer,
       code = CASE WHEN l.posted THEN 'lease_expired' ELSE 'worker_lost' END,
       state = CASE WHEN l.outcome IS NULL THEN 'due' ELSE 'ended' END, outcome = l.outcome,
       ended_at = CASE WHEN l.outcome IS NULL THEN NULL ELSE now() END,
       wait = CASE WHEN l.posted THEN 'ambiguous' ELSE 'retry' END, next_attempt_at = now() + %(wait)s::interval,"""
    + _PAST
    + """, 'code', CASE WHEN l.posted THEN 'lease_expired' ELSE 'worker_lost' END,
                      'outcome', CASE WHEN l.posted THEN 'ambiguous' ELSE 'worker_lost' END)))
  FROM lost AS l
 WHERE d.message_id = l.message_id AND d.endpoint_hash = l.endpoint_hash
RETURNING d.message_id, d.endpoint_hash, d.lane_id, d.outcome, d.wait"""
)


@dataclass(slots=True)  # not frozen: that would cost 8 microseconds a message, for 33 fields set one by one
class Claimed:
    """A row to send, with all that it takes. ``wait``: for what, last; ``picked``: how many rows were looked at."""

    message_id: UUID
    endpoint_hash: bytes
    subscription_id: UUID
    user_id: str | None
    lane_id: int
    attempts: int
    repeats: int
    ambiguous: int
    expires_at: datetime
    first_attempt_at: datetime
    wait: str | None
    last_code: str | None
    last_snippet: str | None
    endpoint: str = field(repr=False)
    p256dh: str = field(repr=False)
    auth_sealed: bytes = field(repr=False)
    auth_key_version: int
    vapid_key_id: str | None
    registration_no: int
    push_service: str
    locale: str | None
    tags: list[str]
    max_payload: int | None
    campaign_id: str | None
    payload_ref: str | None
    payload_key_version: int | None
    rendered: bool
    ttl: int
    urgency: str
    topic: str | None
    on_ambiguous: str
    picked: int


@dataclass(frozen=True)
class Key:
    """What names a ledger row."""

    endpoint_hash: bytes
    message_id: UUID


@dataclass(frozen=True)
class Reaped:
    message_id: UUID
    endpoint_hash: bytes
    lane_id: int
    outcome: str | None
    wait: str | None


def claim(
    tx: Tx,
    lanes: Sequence[int],
    *,
    token: UUID,
    lease: timedelta,
    limit: int,
    horizon: datetime,
    without: Collection[UUID] = (),
) -> list[Claimed]:
    """Take up to ``limit`` rows that are due by ``horizon``; what may not be sent any more is ended on the way.

    Rows of the messages ``without`` are left alone.
    """
    values = {"lanes": list(lanes), "token": token, "lease": lease, "limit": limit, "horizon": horizon}
    return tx.rows(CLAIM, values | {"without": list(without)}, Claimed)


def any_due(tx: Tx, lanes: Sequence[int], horizon: datetime) -> bool:
    return bool(tx.scalar(DUE, {"lanes": list(lanes), "horizon": horizon}))


def posting(tx: Tx, token: UUID, rows: Sequence[Claimed]) -> set[tuple[UUID, bytes]]:
    """Say that the rows are about to be sent; those that are still ours."""
    return {(key.message_id, key.endpoint_hash) for key in tx.rows(POSTING, _keys(token, rows), Key)}


def release(tx: Tx, token: UUID, rows: Sequence[Claimed], lanes: Sequence[int | None] | None = None) -> int:
    """Give back what was not begun, in other lanes where they are given."""
    return tx.run(RELEASE, _keys(token, rows) | {"lanes": list(lanes) if lanes else [None] * len(rows)})


def settle_accepted(
    tx: Tx, token: UUID, rows: Sequence[Claimed], statuses: Sequence[int | None], ttls: Sequence[int | None]
) -> set[tuple[UUID, bytes]]:
    values = _keys(token, rows) | {"statuses": list(statuses), "ttls": list(ttls)}
    return {(key.message_id, key.endpoint_hash) for key in tx.rows(SETTLE_ACCEPTED, values, Key)}


def settle(tx: Tx, token: UUID, rows: str) -> set[tuple[UUID, bytes]]:
    """Settle what was not accepted: a JSON list of objects with SETTLE's columns."""
    return {(key.message_id, key.endpoint_hash) for key in tx.rows(SETTLE, {"token": token, "rows": rows}, Key)}


def throttle(tx: Tx, hashes: Sequence[bytes], untils: Sequence[datetime]) -> None:
    tx.run(THROTTLE, {"hashes": list(hashes), "untils": list(untils)})


def forget_throttles(tx: Tx) -> int:
    return tx.run(FORGET_THROTTLES, {})


def give_back(tx: Tx, lanes: Sequence[int], window: timedelta) -> int:
    return tx.run(GIVE_BACK, {"lanes": list(lanes), "window": window})


def reopen(tx: Tx, messages: Sequence[UUID], hashes: Sequence[bytes]) -> int:
    return tx.run(REOPEN, {"messages": list(messages), "hashes": list(hashes)})


def reap(tx: Tx, *, limit: int, wait: timedelta, deaths: int) -> list[Reaped]:
    return tx.rows(REAP, {"limit": limit, "wait": wait, "deaths": deaths}, Reaped)


def _keys(token: UUID, rows: Sequence[Claimed]) -> dict[str, Any]:
    return {
        "token": token,
        "messages": [row.message_id for row in rows],
        "hashes": [row.endpoint_hash for row in rows],
    }
