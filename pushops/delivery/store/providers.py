"""Push services as operators see them, and what operators paused."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from pushops.db import Tx

# Counts of what is due stop at a million, which is answer enough.
LIST: Final[LiteralString] = """
SELECT n.push_service, p.guard_id IS NOT NULL AS guard_open, p.unhealthy_at, p.unhealthy_why, p.unhealthy_code,
       p.probe_at, x.paused_at, x.paused_by, x.why AS paused_why, coalesce(r.factor, 1) AS factor, p.usual_share,
       coalesce(p.streak, 0) AS streak,
       ARRAY(SELECT l.host || ' ' || l.vapid_key_id || ': ' || h.code
               FROM {schema}.push_lane AS l JOIN {schema}.push_hold AS h USING (hold_id)
              WHERE l.push_service = n.push_service ORDER BY 1) AS holds,
       a.attempts, a.accepted, a.terminal, a.throttled, a.faults, a.last_at,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_lane AS l JOIN {schema}.push_dispatch AS d USING (lane_id)
                               WHERE l.push_service = n.push_service AND d.state = 'due' LIMIT 1000000) AS few) AS due
  FROM (SELECT push_service FROM {schema}.push_provider UNION SELECT push_service FROM {schema}.push_lane
        UNION SELECT name FROM {schema}.push_pause WHERE kind = 'provider') AS n
  LEFT JOIN {schema}.push_provider AS p USING (push_service)
  LEFT JOIN {schema}.push_rate AS r USING (push_service)
  LEFT JOIN {schema}.push_pause AS x ON x.kind = 'provider' AND x.name = n.push_service
 CROSS JOIN LATERAL (
   SELECT coalesce(sum(attempts), 0)::bigint AS attempts, coalesce(sum(accepted), 0)::bigint AS accepted,
          coalesce(sum(terminal), 0)::bigint AS terminal, coalesce(sum(throttled), 0)::bigint AS throttled,
          coalesce(sum(faults), 0)::bigint AS faults, max(minute) AS last_at
     FROM {schema}.push_answer
    WHERE push_service = n.push_service AND minute > now() - %(lately)s::interval) AS a
 ORDER BY n.push_service"""

PAUSE: Final[LiteralString] = """
INSERT INTO {schema}.push_pause (kind, name, paused_by, why)
VALUES (%(kind)s::text, %(name)s::text, %(actor)s::text, %(why)s::text) ON CONFLICT (kind, name) DO NOTHING"""
RESUME: Final[LiteralString] = """
DELETE FROM {schema}.push_pause WHERE kind = %(kind)s::text AND name = %(name)s::text"""
PAUSED: Final[LiteralString] = """
SELECT kind, name, paused_at, paused_by, why FROM {schema}.push_pause ORDER BY kind, name"""
NAMES: Final[LiteralString] = """
SELECT push_service FROM {schema}.push_lane WHERE %(kind)s::text = 'provider'
 UNION SELECT vapid_key_id FROM {schema}.push_lane WHERE %(kind)s::text = 'key'"""

# Of campaigns that go on. Whoever claims while a campaign is resumed may set a row aside after this looked: beat looks
# again. One probe of the index for each open message, and the rows of one message only where there are any.
WAKE: Final[LiteralString] = """
WITH asleep AS MATERIALIZED (
  SELECT m.message_id FROM {schema}.push_message AS m
   WHERE m.closed_at IS NULL
     AND NOT EXISTS (SELECT FROM {schema}.push_pause AS x WHERE x.kind = 'campaign' AND x.name = m.campaign_id)
     AND EXISTS (SELECT FROM {schema}.push_dispatch AS d WHERE d.message_id = m.message_id AND d.state = 'paused')
   LIMIT 100),
page AS MATERIALIZED (
  SELECT d.message_id, d.endpoint_hash FROM asleep AS a JOIN {schema}.push_dispatch AS d USING (message_id)
   WHERE d.state = 'paused' LIMIT %(limit)s::integer FOR UPDATE OF d SKIP LOCKED)
UPDATE {schema}.push_dispatch AS d SET state = 'due', next_attempt_at = least(d.next_attempt_at, now())
  FROM page AS p WHERE d.message_id = p.message_id AND d.endpoint_hash = p.endpoint_hash AND d.state = 'paused'"""


@dataclass(frozen=True)
class Listed:
    """A push service now. ``attempts`` to ``faults`` are the last minutes'; ``factor`` is the share of its rate."""

    push_service: str
    guard_open: bool
    unhealthy_at: datetime | None
    unhealthy_why: str | None
    unhealthy_code: str | None
    probe_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    factor: float
    usual_share: float | None
    streak: int
    holds: list[str]
    attempts: int
    accepted: int
    terminal: int
    throttled: int
    faults: int
    last_at: datetime | None
    due: int


@dataclass(frozen=True)
class Pause:
    kind: str
    name: str
    paused_at: datetime
    paused_by: str
    why: str | None


def listed(tx: Tx, lately: timedelta) -> list[Listed]:
    return tx.rows(LIST, {"lately": lately}, Listed)


def pause(tx: Tx, kind: str, name: str, actor: str, why: str | None) -> bool:
    return tx.run(PAUSE, {"kind": kind, "name": name, "actor": actor, "why": why}) == 1


def resume(tx: Tx, kind: str, name: str) -> bool:
    return tx.run(RESUME, {"kind": kind, "name": name}) == 1


def paused(tx: Tx) -> list[Pause]:
    return tx.rows(PAUSED, {}, Pause)


def names(tx: Tx, kind: str) -> set[str]:
    return set(tx.scalars(NAMES, {"kind": kind}))


def wake(tx: Tx, limit: int) -> int:
    """Make rows of campaigns that are not paused due again; how many."""
    return tx.run(WAKE, {"limit": limit})
