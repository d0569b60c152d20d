"""What is known of a push service: its row, which whoever settles locks first, and its answers by minute."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.health import GUARD_WINDOW, Window

ENSURE: Final[LiteralString] = """
INSERT INTO {schema}.push_provider (push_service) VALUES (%(service)s::text) ON CONFLICT DO NOTHING"""
# Whoever waited here sees what the one before left: the row itself is read again, and later statements look anew.
LOCK: Final[LiteralString] = """
SELECT streak, unhealthy_at IS NOT NULL AS waits, unhealthy_why, guard_id, usual_share,
       coalesce(usual_at < now() - interval '1 hour', true) AS usual_is_old,
       coalesce(paged_at < now() - interval '1 hour', true) AS may_page
  FROM {schema}.push_provider WHERE push_service = %(service)s::text FOR UPDATE"""

# The row of the running minute, or of what began anew in it. After the lock no clock but the wall's is in order.
COUNT: Final[LiteralString] = """
INSERT INTO {schema}.push_answer AS a
       (push_service, minute, attempts, answers, terminal, accepted, throttled, faults, guarded)
SELECT push_service, greatest(date_bin('1 minute', clock_timestamp(), timestamptz '2000-01-01 00:00:00+00'),
                              counted_from, healthy_from),
       %(attempts)s::integer, %(answers)s::integer, %(terminal)s::integer, %(accepted)s::integer,
       %(throttled)s::integer, %(faults)s::integer, guard_id IS NOT NULL
  FROM {schema}.push_provider WHERE push_service = %(service)s::text
    ON CONFLICT (push_service, minute) DO UPDATE
   SET attempts = a.attempts + EXCLUDED.attempts, answers = a.answers + EXCLUDED.answers,
       terminal = a.terminal + EXCLUDED.terminal, accepted = a.accepted + EXCLUDED.accepted,
       throttled = a.throttled + EXCLUDED.throttled, faults = a.faults + EXCLUDED.faults,
       guarded = a.guarded OR EXCLUDED.guarded"""

WINDOW: Final[LiteralString] = """
SELECT coalesce(sum(a.answers) FILTER (WHERE guarding), 0)::bigint AS answers,
       coalesce(sum(a.terminal) FILTER (WHERE guarding), 0)::bigint AS terminal,
       coalesce(sum(a.attempts) FILTER (WHERE lately), 0)::bigint AS attempts,
       coalesce(sum(a.faults) FILTER (WHERE lately), 0)::bigint AS faults,
       coalesce(sum(a.accepted) FILTER (WHERE lately), 0)::bigint AS accepted
  FROM {schema}.push_provider AS p
  JOIN {schema}.push_answer AS a USING (push_service)
 CROSS JOIN LATERAL (SELECT a.minute > now() - %(hour)s::interval AND a.minute >= p.counted_from AS guarding,
                            a.minute > now() - %(lately)s::interval AND a.minute >= p.healthy_from AS lately) AS within
 WHERE p.push_service = %(service)s::text AND a.minute > now() - greatest(%(hour)s::interval, %(lately)s::interval)"""

# Whose death is counted in the guard's hour already.
DEAD: Final[LiteralString] = """
SELECT DISTINCT e.endpoint_hash FROM {schema}.push_provider AS p CROSS JOIN {schema}.push_evidence AS e
 WHERE p.push_service = %(service)s::text AND e.endpoint_hash = ANY(%(hashes)s::bytea[])
   AND e.finding IN ('gone', 'vote') AND e.at >= greatest(now() - %(hour)s::interval, p.counted_from)"""

# The median of the days 8 to 35, so that a trouble of this week does not make itself usual. Minutes in which the guard
# was open say nothing, and so do days of a few answers.
USUAL: Final[LiteralString] = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY d.share)
  FROM (SELECT sum(terminal)::float8 / sum(answers) AS share FROM {schema}.push_answer
         WHERE push_service = %(service)s::text AND NOT guarded
           AND minute > now() - interval '840 hours' AND minute <= now() - interval '168 hours'
         GROUP BY date_bin('24 hours', minute, timestamptz '2000-01-01 00:00:00+00')
        HAVING sum(answers) >= %(least)s::integer) AS d"""
KEEP_USUAL: Final[LiteralString] = """
UPDATE {schema}.push_provider SET usual_share = %(usual)s::float8, usual_at = now()
 WHERE push_service = %(service)s::text"""

STREAK: Final[LiteralString] = """
UPDATE {schema}.push_provider SET streak = %(streak)s::integer WHERE push_service = %(service)s::text"""
# The first probe is due after its time, not at once: what is on its way may bring the answer.
UNHEALTHY: Final[LiteralString] = """
UPDATE {schema}.push_provider
   SET unhealthy_at = coalesce(unhealthy_at, now()), unhealthy_why = %(why)s::text, unhealthy_code = %(code)s::text,
       probe_at = clock_timestamp() + %(every)s::interval,
       paged_at = CASE WHEN %(page)s::boolean THEN now() ELSE paged_at END
 WHERE push_service = %(service)s::text"""
# What failed before says nothing of what is sent from here on.
RECOVERED: Final[LiteralString] = """
UPDATE {schema}.push_provider
   SET unhealthy_at = NULL, unhealthy_why = NULL, unhealthy_code = NULL, probe_at = NULL,
       healthy_from = clock_timestamp()
 WHERE push_service = %(service)s::text"""
# One worker of the fleet gets it: who waited for another finds the clock moved on.
TAKE_PROBE: Final[LiteralString] = """
UPDATE {schema}.push_provider SET probe_at = clock_timestamp() + %(every)s::interval
 WHERE push_service = %(service)s::text AND unhealthy_at IS NOT NULL
   AND (probe_at IS NULL OR probe_at <= clock_timestamp())"""


@dataclass(frozen=True, slots=True)
class Provider:
    """``may_page``: nobody was woken for its outages within the last hour."""

    streak: int
    waits: bool
    unhealthy_why: str | None
    guard_id: UUID | None
    usual_share: float | None
    usual_is_old: bool
    may_page: bool


@dataclass(slots=True)
class Tally:
    """A batch in numbers."""

    attempts: int = 0
    answers: int = 0
    terminal: int = 0
    accepted: int = 0
    throttled: int = 0
    faults: int = 0


def lock(tx: Tx, service: str) -> Provider:
    """The provider's row, which is ours until the transaction ends; made where there is none."""
    found = tx.maybe(LOCK, {"service": service}, Provider)
    if found is None:
        tx.run(ENSURE, {"service": service})
        found = tx.one(LOCK, {"service": service}, Provider)
    return found


def count(tx: Tx, service: str, tally: Tally) -> None:
    values: dict[str, Any] = {name: getattr(tally, name) for name in Tally.__slots__}
    tx.run(COUNT, values | {"service": service})


def window(tx: Tx, service: str, lately: timedelta) -> Window:
    return tx.one(WINDOW, {"service": service, "hour": GUARD_WINDOW, "lately": lately}, Window)


def dead(tx: Tx, service: str, hashes: Collection[bytes]) -> set[bytes]:
    """Those of whom it was said within the hour that counts."""
    if not hashes:
        return set()
    return set(tx.scalars(DEAD, {"service": service, "hashes": list(hashes), "hour": GUARD_WINDOW}))


def usual(tx: Tx, service: str, provider: Provider, least: int) -> float | None:
    """The usual share of dead among the answers, looked up once an hour; None where it is not known."""
    if not provider.usual_is_old:
        return provider.usual_share
    found: float | None = tx.scalar(USUAL, {"service": service, "least": least})
    tx.run(KEEP_USUAL, {"service": service, "usual": found})
    return found


def set_streak(tx: Tx, service: str, streak: int) -> None:
    tx.run(STREAK, {"service": service, "streak": streak})


def set_unhealthy(tx: Tx, service: str, why: str, code: str | None, every: timedelta, *, page: bool) -> None:
    tx.run(UNHEALTHY, {"service": service, "why": why, "code": code, "every": every, "page": page})


def set_recovered(tx: Tx, service: str) -> None:
    tx.run(RECOVERED, {"service": service})


def take_probe(tx: Tx, service: str, every: timedelta) -> bool:
    return tx.run(TAKE_PROBE, {"service": service, "every": every}) == 1
