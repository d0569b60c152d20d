"""Lanes that have something due, and how much a push service may be sent now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from pushops.db import Tx

# Rows of messages made before this have expired: TTL is at most 28 days, not_before at most 30.
OLDEST: Final = "{schema}.id_floor(now() - interval '65 days')"

# Four looks into the index for each lane, one for each priority: whatever waits behind them is not read. The limits
# keep the planner from making joins of the looks, which would read all that waits.
LANES: Final[LiteralString] = (
    """
SELECT l.lane_id, l.push_service, l.host, l.vapid_key_id, l.hold_id IS NOT NULL AS held,
       coalesce(p.unhealthy_at IS NOT NULL, false) AS waits,
       l.probe_at IS NULL OR l.probe_at <= now() AS probe_due,
       coalesce(p.probe_at <= now(), true) AS provider_probe_due
  FROM {schema}.push_lane AS l LEFT JOIN {schema}.push_provider AS p USING (push_service)
 WHERE NOT EXISTS (SELECT FROM {schema}.push_pause AS x
                    WHERE x.kind = 'provider' AND x.name = l.push_service
                       OR x.kind = 'key' AND x.name = l.vapid_key_id)
   AND EXISTS (SELECT FROM generate_series(0, 3) AS wanted (priority)
                CROSS JOIN LATERAL (
                  SELECT FROM {schema}.push_dispatch AS d
                   WHERE d.lane_id = l.lane_id AND d.priority = wanted.priority AND d.state = 'due'
                     AND d.next_attempt_at <= CASE WHEN l.hold_id IS NULL AND p.unhealthy_at IS NULL
                                                   THEN now() ELSE 'infinity' END
                     AND d.message_id >= """
    + OLDEST
    + """
                   ORDER BY d.next_attempt_at LIMIT 1) AS one)
 ORDER BY l.push_service, l.lane_id"""
)

# The bucket holds a second's worth, and never less than one. A push service that throttles is sent to at half the pace,
# again and again until it no longer does; the pace comes back by a quarter every ten seconds.
LOCK_RATE: Final[LiteralString] = """
INSERT INTO {schema}.push_rate AS r (push_service, tokens) VALUES (%(service)s::text, %(rate)s::float8)
    ON CONFLICT (push_service) DO UPDATE
   SET factor = CASE WHEN r.factor < 1 AND r.slowed_at < clock_timestamp() - interval '10 seconds'
                     THEN least(1, r.factor * 1.25) ELSE r.factor END,
       slowed_at = CASE WHEN r.factor < 1 AND r.slowed_at < clock_timestamp() - interval '10 seconds'
                        THEN clock_timestamp() ELSE r.slowed_at END,
       tokens = least(greatest(1, %(rate)s::float8 * r.factor),
                      r.tokens + %(rate)s::float8 * r.factor
                                 * extract(epoch FROM greatest(clock_timestamp() - r.refilled_at, interval '0'))),
       refilled_at = clock_timestamp()
RETURNING tokens"""
TAKE: Final[LiteralString] = """
UPDATE {schema}.push_rate SET tokens = tokens - %(taken)s::float8 WHERE push_service = %(service)s::text"""
SLOW: Final[LiteralString] = """
UPDATE {schema}.push_rate SET factor = greatest(0.02, factor / 2), slowed_at = now()
 WHERE push_service = %(service)s::text
   AND (slowed_at IS NULL OR factor = 1 OR slowed_at < now() - interval '2 seconds')"""

FIND_LANE: Final[LiteralString] = """
WITH made AS (
  INSERT INTO {schema}.push_lane (push_service, host, vapid_key_id)
  VALUES (%(service)s::text, %(host)s::text, %(key)s::text)
  ON CONFLICT (host, vapid_key_id) DO NOTHING RETURNING lane_id)
SELECT lane_id FROM made
UNION ALL SELECT lane_id FROM {schema}.push_lane WHERE host = %(host)s::text AND vapid_key_id = %(key)s::text
LIMIT 1"""


@dataclass(frozen=True)
class Lane:
    """A host under a key that has rows to send; ``waits``: its push service is unhealthy."""

    lane_id: int
    push_service: str
    host: str
    vapid_key_id: str
    held: bool
    waits: bool
    probe_due: bool
    provider_probe_due: bool


def due(tx: Tx) -> list[Lane]:
    return tx.rows(LANES, {}, Lane)


def lock_rate(tx: Tx, service: str, rate: float) -> int:
    """How many may be sent to a push service now; others who ask wait until this transaction is over."""
    return max(0, int(tx.scalar(LOCK_RATE, {"service": service, "rate": rate})))


def take(tx: Tx, service: str, taken: int) -> None:
    tx.run(TAKE, {"service": service, "taken": taken})


def slow(tx: Tx, service: str) -> None:
    tx.run(SLOW, {"service": service})


def find(tx: Tx, service: str, host: str, key: str) -> int:
    """The lane of a host under a key, made where there is none."""
    return int(tx.scalar(FIND_LANE, {"service": service, "host": host, "key": key}))


def by_service(lanes: Sequence[Lane]) -> Mapping[str, list[Lane]]:
    grouped: dict[str, list[Lane]] = {}
    for lane in lanes:
        grouped.setdefault(lane.push_service, []).append(lane)
    return grouped
