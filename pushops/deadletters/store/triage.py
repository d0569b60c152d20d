"""What waits for an operator, in groups; and what is no letter because it is everybody's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from pushops.db import Tx
from pushops.deadletters import filters
from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import FRESH_SECONDS

# An average of the part of its time to live that each letter has lain here, and no median: that would have to sort the
# letters of every group in the index's order, which no parallel worker can help with (1,000,000 letters: twice as long,
# and six times where vacuum has not been). What is over is closed within minutes, so that no outlier bends the average.
# Without a word to look for, the index push_dlq_triage holds all that is read, in the order of the groups.
GROUPS: Final[LiteralString] = (
    """
SELECT error_class, error_code, endpoint_host, campaign_id, count(*) AS letters,
       count(*) FILTER (WHERE replayable AND expires_at > %(fresh_at)s::timestamptz) AS replayable,
       min(parked_at) AS first_seen, max(parked_at) AS last_seen,
       sum((%(now)s::float8 - date_part('epoch', parked_at)) / original_ttl) / count(*) AS ttl_used,
       count(*) OVER () AS groups, (sum(count(*)) OVER ())::bigint AS all_letters
  FROM {schema}.push_dlq
 WHERE replay_state IN ('parked', 'claimed') AND """
    + filters.CLAUSE
    + """
 GROUP BY error_class, error_code, endpoint_host, campaign_id
 ORDER BY letters DESC, error_class, error_code, endpoint_host, campaign_id LIMIT %(limit)s::integer"""
)

# A campaign of more messages than are read here has no total: one for each order confirmation ever sent says nothing.
RECIPIENTS: Final[LiteralString] = """
SELECT c.campaign AS name, CASE WHEN m.messages < %(most)s::integer THEN m.recipients END AS recipients
  FROM unnest(%(campaigns)s::text[]) AS c (campaign)
 CROSS JOIN LATERAL (
   SELECT count(*) AS messages, sum(recipients)::bigint AS recipients
     FROM (SELECT recipients FROM {schema}.push_message WHERE campaign_id = c.campaign LIMIT %(most)s::integer) AS few
 ) AS m"""

# Waiting is counted where it is cheap: as many as are asked for stands for "that many, or more".
FAULTS: Final[LiteralString] = """
SELECT 'hold' AS kind, h.push_service, h.host || ' under key ' || coalesce(nullif(h.vapid_key_id, ''), '-') AS what,
       h.code AS why, h.opened_at AS since,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_dispatch AS d
                               WHERE d.lane_id = h.lane_id AND d.state = 'due' LIMIT %(most)s::integer) AS few)
         AS waiting
  FROM {schema}.push_hold AS h WHERE h.released_at IS NULL
 UNION ALL
SELECT 'unhealthy', p.push_service, 'only probes go out', coalesce(p.unhealthy_code, p.unhealthy_why), p.unhealthy_at,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_lane AS l JOIN {schema}.push_dispatch AS d USING (lane_id)
                               WHERE l.push_service = p.push_service AND d.state = 'due'
                               LIMIT %(most)s::integer) AS few)
  FROM {schema}.push_provider AS p WHERE p.unhealthy_at IS NOT NULL
 UNION ALL
SELECT 'guard', g.push_service, 'its answers wait for a word', g.why, g.opened_at,
       (SELECT count(*) FROM (SELECT FROM {schema}.push_evidence AS e
                               WHERE e.push_service = g.push_service AND e.state = 'pending'
                               LIMIT %(most)s::integer) AS few)
  FROM {schema}.push_guard AS g WHERE g.closed_at IS NULL
 ORDER BY since, kind, push_service"""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Letters that are parked or claimed and alike. ``groups`` and ``all_letters`` count all that is meant."""

    error_class: str
    error_code: str
    endpoint_host: str
    campaign_id: str | None
    letters: int
    replayable: int
    first_seen: datetime
    last_seen: datetime
    ttl_used: float
    groups: int
    all_letters: int


@dataclass(frozen=True, slots=True)
class Campaign:
    name: str
    recipients: int | None


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps everybody at a push service waiting, and how many wait at least."""

    kind: str
    push_service: str
    what: str
    why: str | None
    since: datetime
    waiting: int


def groups(tx: Tx, meant: Filter, limit: int) -> list[GroupRow]:
    """The largest first."""
    params: dict[str, Any] = {**meant.params(), "limit": limit, "now": tx.now.timestamp()}
    params["fresh_at"] = tx.now + timedelta(seconds=FRESH_SECONDS)
    return tx.rows(GROUPS, params, GroupRow)


def recipients(tx: Tx, campaigns: Sequence[str], most: int) -> list[Campaign]:
    return tx.rows(RECIPIENTS, {"campaigns": list(campaigns), "most": most}, Campaign)


def faults(tx: Tx, most: int) -> list[Fault]:
    return tx.rows(FAULTS, {"most": most}, Fault)
