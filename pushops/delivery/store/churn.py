"""Who left, by what told us so: from the consent trail, and from the evidence with its campaigns."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from pushops.db import Tx

# An end that the guard took back is none; if it was accepted later, the row ended again then.
_ENDED: Final[LiteralString] = """
  FROM {schema}.subscription_period AS p
 WHERE p.ended_at >= %(since)s::timestamptz AND p.ended_at < %(until)s::timestamptz AND p.end_reason <> 'rotated'
   AND NOT (p.end_reason IN ('gone', 'voted_out') AND EXISTS (
         SELECT FROM {schema}.push_evidence AS e
          WHERE e.endpoint_hash = p.endpoint_hash AND e.at = p.ended_at
            AND (e.state IN ('pending', 'discarded') OR e.guard_id IS NOT NULL)))"""
ENDS: Final[LiteralString] = (
    "SELECT p.push_service, p.end_reason AS reason, count(*) AS rows" + _ENDED + " GROUP BY 1, 2 ORDER BY 1, 2"
)
# All that lived at any time of it; a rotated one lives on as its heir.
LIVED: Final[LiteralString] = """
SELECT push_service, '' AS reason, count(*) AS rows FROM {schema}.subscription_period
 WHERE began_at < %(until)s::timestamptz AND (ended_at IS NULL OR ended_at >= %(since)s::timestamptz)
   AND end_reason IS DISTINCT FROM 'rotated'
 GROUP BY 1 ORDER BY 1"""
FOUND: Final[LiteralString] = """
SELECT coalesce(campaign_id, '') AS campaign_id,
       CASE WHEN state = 'pending' THEN 'pending' ELSE outcome END AS outcome, count(*) AS rows
  FROM {schema}.push_evidence
 WHERE at >= %(since)s::timestamptz AND at < %(until)s::timestamptz
   AND (state = 'pending' OR state = 'applied' AND outcome IN ('revoked', 'voted_out', 'voted', 'blocked'))
 GROUP BY 1, 2 ORDER BY 1, 2"""
REACHED: Final[LiteralString] = """
SELECT campaign_id, '' AS outcome, sum(recipients)::bigint AS rows FROM {schema}.push_message
 WHERE campaign_id = ANY(%(campaigns)s::text[]) GROUP BY 1"""


@dataclass(frozen=True, slots=True)
class Ends:
    push_service: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Found:
    campaign_id: str
    outcome: str
    rows: int


def ends(tx: Tx, since: datetime, until: datetime) -> list[Ends]:
    return tx.rows(ENDS, {"since": since, "until": until}, Ends)


def lived(tx: Tx, since: datetime, until: datetime) -> dict[str, int]:
    return {row.push_service: row.rows for row in tx.rows(LIVED, {"since": since, "until": until}, Ends)}


def found(tx: Tx, since: datetime, until: datetime) -> list[Found]:
    return tx.rows(FOUND, {"since": since, "until": until}, Found)


def reached(tx: Tx, campaigns: list[str]) -> dict[str, int]:
    """Recipients of all of a campaign's messages that are still known."""
    return {row.campaign_id: row.rows for row in tx.rows(REACHED, {"campaigns": campaigns}, Found)}
