"""Lanes and their holds: the faults that are ours, one row for each time that they stopped a host under a key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

LANES: Final[LiteralString] = """
SELECT lane_id, push_service, host, vapid_key_id, last_success_at, faults, faults_of, hold_id FROM {schema}.push_lane
 WHERE lane_id = ANY(%(lanes)s::integer[]) ORDER BY lane_id FOR UPDATE"""

# A success forgets the faults; what was since is appended by whoever counted.
SUCCEEDED: Final[LiteralString] = """
UPDATE {schema}.push_lane SET last_success_at = now(), faults = ARRAY[]::timestamptz[], faults_of = ARRAY[]::bigint[]
 WHERE lane_id = ANY(%(lanes)s::integer[])"""
FAULTS: Final[LiteralString] = """
UPDATE {schema}.push_lane SET faults = %(faults)s::timestamptz[], faults_of = %(faults_of)s::bigint[]
 WHERE lane_id = %(lane)s::integer"""

# The first probe is due after its time, not at once: the same answers are still on their way.
OPEN: Final[LiteralString] = """
WITH opened AS (
  INSERT INTO {schema}.push_hold (lane_id, push_service, host, vapid_key_id, code, why, answers)
  SELECT lane_id, push_service, host, vapid_key_id, %(code)s::text, %(why)s::text, %(answers)s::bigint
    FROM {schema}.push_lane WHERE lane_id = %(lane)s::integer AND hold_id IS NULL
  RETURNING hold_id, lane_id, push_service, host, vapid_key_id, code),
held AS (
  UPDATE {schema}.push_lane AS l
     SET hold_id = o.hold_id, faults = ARRAY[]::timestamptz[], faults_of = ARRAY[]::bigint[],
         probe_at = clock_timestamp() + %(every)s::interval
    FROM opened AS o WHERE l.lane_id = o.lane_id)
SELECT o.hold_id, o.lane_id, o.push_service, o.host, o.vapid_key_id, o.code,
       NOT EXISTS (SELECT FROM {schema}.push_hold AS h
                    WHERE h.lane_id = o.lane_id AND h.opened_at > now() - interval '1 hour') AS page
  FROM opened AS o"""
# Counted where it is cheap: 100,000 stands for "that many, or more".
RELEASE: Final[LiteralString] = """
WITH freed AS (
  UPDATE {schema}.push_lane
     SET hold_id = NULL, faults = ARRAY[]::timestamptz[], faults_of = ARRAY[]::bigint[], probe_at = NULL
   WHERE lane_id = %(lane)s::integer AND hold_id IS NOT NULL
   RETURNING lane_id)
UPDATE {schema}.push_hold AS h
   SET released_at = now(), released_by = %(by)s::text, why = coalesce(%(why)s::text, h.why),
       members = (SELECT count(*) FROM (SELECT FROM {schema}.push_dispatch AS d
                                         WHERE d.lane_id = %(lane)s::integer AND d.state = 'due' LIMIT 100000) AS few)
  FROM freed AS f
 WHERE h.lane_id = f.lane_id AND h.released_at IS NULL
RETURNING h.hold_id, h.lane_id, h.push_service, h.host, h.vapid_key_id, h.code, h.members"""
ANSWERED: Final[LiteralString] = """
UPDATE {schema}.push_hold SET answers = answers + %(answers)s::bigint, probes = probes + %(probes)s::bigint
 WHERE lane_id = %(lane)s::integer AND released_at IS NULL"""

TAKE_PROBE: Final[LiteralString] = """
UPDATE {schema}.push_lane SET probe_at = clock_timestamp() + %(every)s::interval
 WHERE lane_id = %(lane)s::integer AND hold_id IS NOT NULL
   AND (probe_at IS NULL OR probe_at <= clock_timestamp())"""

# What looked like one visitor's foreign key was ours. Only blocks that stand as the evidence set them.
LIFT: Final[LiteralString] = """
WITH blocks AS MATERIALIZED (
  SELECT evidence_id, at, subscription_id, registration_no, endpoint_hash, message_id FROM {schema}.push_evidence
   WHERE push_service = %(service)s::text AND state = 'applied' AND finding = 'mismatch'
     AND lane_id = %(lane)s::integer AND at >= %(since)s::timestamptz
   ORDER BY subscription_id),
lifted AS (
  UPDATE {schema}.push_subscription AS s SET send_block = NULL, blocked_at = NULL
    FROM blocks AS b
   WHERE s.id = b.subscription_id AND s.registration_no = b.registration_no
     AND s.send_block = 'key_mismatch' AND s.blocked_at = b.at
  RETURNING s.id),
marked AS (
  UPDATE {schema}.push_evidence AS e SET state = 'discarded', outcome = 'lifted'
    FROM blocks AS b WHERE e.evidence_id = b.evidence_id)
SELECT b.endpoint_hash, b.message_id FROM blocks AS b JOIN lifted AS l ON l.id = b.subscription_id
 WHERE b.message_id IS NOT NULL"""

LIST: Final[LiteralString] = """
SELECT h.hold_id, h.lane_id, h.push_service, h.host, h.vapid_key_id, h.code, h.why, h.opened_at, h.answers, h.probes,
       l.probe_at, h.released_at, h.released_by,
       coalesce(h.members, (SELECT count(*) FROM {schema}.push_dispatch AS d
                             WHERE d.lane_id = h.lane_id AND d.state = 'due')) AS members
  FROM {schema}.push_hold AS h JOIN {schema}.push_lane AS l USING (lane_id)
 WHERE h.released_at IS NULL OR %(released)s::boolean
 ORDER BY h.opened_at DESC LIMIT %(limit)s::integer"""
LIKE: Final[LiteralString] = """
SELECT hold_id FROM {schema}.push_hold
 WHERE released_at IS NULL AND starts_with(hold_id::text, %(prefix)s::text) LIMIT 2"""
LANE_OF: Final[LiteralString] = """
SELECT lane_id FROM {schema}.push_hold WHERE hold_id = %(hold)s::uuid AND released_at IS NULL"""
OPEN_BY_CODE: Final[LiteralString] = """
SELECT h.hold_id, h.lane_id, h.push_service, h.host, h.vapid_key_id, h.code, h.answers AS members
  FROM {schema}.push_hold AS h WHERE h.released_at IS NULL AND h.code = ANY(%(codes)s::text[]) ORDER BY h.hold_id"""


@dataclass(frozen=True, slots=True)
class Lane:
    lane_id: int
    push_service: str
    host: str
    vapid_key_id: str
    last_success_at: datetime | None
    faults: list[datetime]
    faults_of: list[int]
    hold_id: UUID | None


@dataclass(frozen=True, slots=True)
class Opened:
    """``page``: it is the first of its lane within an hour."""

    hold_id: UUID
    lane_id: int
    push_service: str
    host: str
    vapid_key_id: str
    code: str
    page: bool


@dataclass(frozen=True, slots=True)
class Released:
    """``members``: how many messages waited."""

    hold_id: UUID
    lane_id: int
    push_service: str
    host: str
    vapid_key_id: str
    code: str
    members: int


@dataclass(frozen=True, slots=True)
class Lifted:
    """A row that is no longer blocked, and a message that it did not get."""

    endpoint_hash: bytes
    message_id: UUID


@dataclass(frozen=True)
class Hold:
    hold_id: UUID
    lane_id: int
    push_service: str
    host: str
    vapid_key_id: str
    code: str
    why: str | None
    opened_at: datetime
    answers: int
    probes: int
    probe_at: datetime | None
    released_at: datetime | None
    released_by: str | None
    members: int


def lock_lanes(tx: Tx, lanes: Sequence[int]) -> list[Lane]:
    return tx.rows(LANES, {"lanes": list(lanes)}, Lane)


def succeeded(tx: Tx, lanes: Sequence[int]) -> None:
    tx.run(SUCCEEDED, {"lanes": list(lanes)})


def set_faults(tx: Tx, lane: int, faults: Sequence[datetime], faults_of: Sequence[int]) -> None:
    tx.run(FAULTS, {"lane": lane, "faults": list(faults), "faults_of": list(faults_of)})


def open_hold(tx: Tx, lane: int, code: str, why: str | None, answers: int, every: timedelta) -> Opened | None:
    """None where the lane is held already."""
    return tx.maybe(OPEN, {"lane": lane, "code": code, "why": why, "answers": answers, "every": every}, Opened)


def release(tx: Tx, lane: int, by: str, why: str | None = None) -> Released | None:
    return tx.maybe(RELEASE, {"lane": lane, "by": by, "why": why}, Released)


def answered(tx: Tx, lane: int, answers: int, probes: int) -> None:
    tx.run(ANSWERED, {"lane": lane, "answers": answers, "probes": probes})


def take_probe(tx: Tx, lane: int, every: timedelta) -> bool:
    return tx.run(TAKE_PROBE, {"lane": lane, "every": every}) == 1


def lift(tx: Tx, service: str, lane: int, since: datetime) -> list[Lifted]:
    return tx.rows(LIFT, {"service": service, "lane": lane, "since": since}, Lifted)


def listed(tx: Tx, *, released: bool, limit: int) -> list[Hold]:
    return tx.rows(LIST, {"released": released, "limit": limit}, Hold)


def like(tx: Tx, prefix: str) -> list[UUID]:
    return tx.scalars(LIKE, {"prefix": prefix})


def lane_of(tx: Tx, hold: UUID) -> int | None:
    found: int | None = tx.scalar(LANE_OF, {"hold": hold})
    return found


def open_by_code(tx: Tx, codes: Sequence[str]) -> list[Released]:
    return tx.rows(OPEN_BY_CODE, {"codes": list(codes)}, Released)
