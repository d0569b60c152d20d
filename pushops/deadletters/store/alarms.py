"""How dead letters come and lie, in numbers; and which alarms were told of."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

from pushops.db import Tx
from pushops.deadletters.letter import FRESH_SECONDS

# Every count stops where it is answer enough. The oldest are read in the order of parking, which is that of ids: their
# times to live stand for those of all, since the longest-lived would stand for nobody.
FACTS: Final[LiteralString] = """
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.push_dlq WHERE parked_at > now() - interval '15 minutes'
                               LIMIT 1000000) AS few) AS inflow,
       (SELECT coalesce(sum(attempts), 0)::bigint FROM {schema}.push_answer
         WHERE minute > now() - interval '15 minutes') AS sends,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_dlq WHERE parked_at > now() - interval '1 hour'
                               LIMIT 5000000) AS few) AS inflow_hour,
       (SELECT coalesce(sum(attempts), 0)::bigint FROM {schema}.push_answer
         WHERE minute > now() - interval '1 hour') AS sends_hour,
       old.oldest, old.median_ttl,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_dlq
                               WHERE replay_state = 'parked' AND expires_at > now() + %(fresh)s::interval
                               ORDER BY expires_at DESC LIMIT 30000) AS few) AS fresh,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_dlq
                               WHERE replay_state = 'parked' AND expires_at <= now() + %(fresh)s::interval
                               ORDER BY expires_at LIMIT 30000) AS few) AS stale,
       (SELECT count(*) FROM {schema}.push_dlq
         WHERE replay_state = 'claimed' AND claimed_until < now()) AS leases_over,
       (SELECT count(*) FROM {schema}.push_dlq
         WHERE replay_state = 'claimed' AND claimed_until < now() - interval '5 minutes') AS leases_lost,
       ARRAY(SELECT push_service FROM {schema}.push_provider
              WHERE unhealthy_at < now() - interval '30 minutes') AS long_unhealthy
  FROM (SELECT now() - min(parked_at) AS oldest,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY original_ttl) AS median_ttl
          FROM (SELECT parked_at, original_ttl FROM {schema}.push_dlq WHERE replay_state = 'parked'
                 ORDER BY dlq_id LIMIT 1000) AS first) AS old"""

# The last hour's letters, the newest so many of them, counted along each of the lines that an alarm looks along.
MIX: Final[LiteralString] = """
SELECT error_class, error_code, push_service, endpoint_host, campaign_id, count(*) AS letters,
       count(*) FILTER (WHERE terminal_status IS NULL) AS unanswered
  FROM (SELECT error_class, error_code, push_service, endpoint_host, coalesce(campaign_id, '') AS campaign_id,
               terminal_status
          FROM {schema}.push_dlq WHERE parked_at > now() - interval '1 hour'
         ORDER BY parked_at DESC LIMIT 100000) AS recent
 GROUP BY GROUPING SETS ((), (error_class), (error_class, error_code), (error_class, push_service, endpoint_host),
                         (error_code), (campaign_id, error_code))
HAVING GROUPING(campaign_id) = 1 OR (campaign_id <> '' AND count(*) >= 20)
 ORDER BY letters DESC LIMIT 1000"""

# A code that was told of within the hour is new still, for who looks.
KNOWN: Final[LiteralString] = """
SELECT subject FROM {schema}.push_dlq_alarm
 WHERE signal = 'new_code' AND subject = ANY(%(codes)s::text[]) AND since <= now() - interval '1 hour'"""

# An episode begins here, and is told of by whoever began it.
BEGIN: Final[LiteralString] = """
INSERT INTO {schema}.push_dlq_alarm (signal, subject, level)
SELECT signal, subject, level
  FROM unnest(%(signals)s::text[], %(subjects)s::text[], %(levels)s::text[]) AS a (signal, subject, level)
 ORDER BY signal, subject
ON CONFLICT (signal, subject) DO NOTHING RETURNING signal, subject"""
RAISE: Final[LiteralString] = """
UPDATE {schema}.push_dlq_alarm AS e SET level = a.level
  FROM unnest(%(signals)s::text[], %(subjects)s::text[], %(levels)s::text[]) AS a (signal, subject, level)
 WHERE e.signal = a.signal AND e.subject = a.subject AND e.level = 'warning' AND a.level = 'page'
RETURNING e.signal, e.subject"""
SEEN: Final[LiteralString] = """
UPDATE {schema}.push_dlq_alarm AS e SET seen_at = now()
  FROM unnest(%(signals)s::text[], %(subjects)s::text[]) AS a (signal, subject)
 WHERE e.signal = a.signal AND e.subject = a.subject"""
# What comes and goes within minutes is one episode. A code that is known stays known.
END: Final[LiteralString] = """
DELETE FROM {schema}.push_dlq_alarm
 WHERE seen_at < now() - %(quiet)s::interval AND signal <> 'new_code' RETURNING signal, subject"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """``inflow`` and ``sends``: of 15 minutes. ``fresh`` and ``stale``: parked, with a minute left or not.

    ``leases_lost``: over for five minutes. ``long_unhealthy``: push services that are so for half an hour.
    """

    inflow: int
    sends: int
    inflow_hour: int
    sends_hour: int
    oldest: timedelta | None
    median_ttl: float | None
    fresh: int
    stale: int
    leases_over: int
    leases_lost: int
    long_unhealthy: list[str]


@dataclass(frozen=True, slots=True)
class Part:
    """Letters of the last hour that are alike in what is not None."""

    error_class: str | None
    error_code: str | None
    push_service: str | None
    endpoint_host: str | None
    campaign_id: str | None
    letters: int
    unanswered: int


@dataclass(frozen=True, slots=True)
class Episode:
    signal: str
    subject: str


def numbers(tx: Tx) -> Numbers:
    return tx.one(FACTS, {"fresh": timedelta(seconds=FRESH_SECONDS)}, Numbers)


def mix(tx: Tx) -> list[Part]:
    return tx.rows(MIX, {}, Part)


def known(tx: Tx, codes: Sequence[str]) -> set[str]:
    return set(tx.scalars(KNOWN, {"codes": list(codes)}))


def begin(tx: Tx, alarms: Sequence[tuple[str, str, str]]) -> list[Episode]:
    """Of (signal, subject, level): the episodes that begin with it, or become grave."""
    params = _columns(alarms)
    return [*tx.rows(BEGIN, params, Episode), *tx.rows(RAISE, params, Episode)]


def seen(tx: Tx, alarms: Sequence[tuple[str, str, str]]) -> None:
    tx.run(SEEN, _columns(alarms))


def end(tx: Tx, quiet: timedelta) -> list[Episode]:
    """The episodes that nothing was seen of for so long."""
    return tx.rows(END, {"quiet": quiet}, Episode)


def _columns(alarms: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
    names = ("signals", "subjects", "levels")
    return {name: [alarm[place] for alarm in alarms] for place, name in enumerate(names)}
