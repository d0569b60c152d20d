"""How subscriptions come and go: from the consent trail, and from what hard deletion left."""

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Final, LiteralString

from pushops.db import Tx

# Days are UTC's. A rotated period went on under its heir, which has its beginning: counted there, once.
# The view holds what batches counted and no shift has folded yet, too: a snapshot sees either the one or the other.
COUNT: Final[LiteralString] = """
SELECT (began_at AT TIME ZONE 'UTC')::date AS day, push_service,
       CASE WHEN reconnection THEN 'reconnected' ELSE 'started' END AS kind, '' AS reason, count(*) AS rows
  FROM {schema}.subscription_period
 WHERE began_at >= %(since)s::timestamptz AND began_at < %(until)s::timestamptz
   AND end_reason IS DISTINCT FROM 'rotated'
 GROUP BY 1, 2, 3
UNION ALL
SELECT (ended_at AT TIME ZONE 'UTC')::date, push_service, 'ended', end_reason, count(*)
  FROM {schema}.subscription_period
 WHERE ended_at >= %(since)s::timestamptz AND ended_at < %(until)s::timestamptz AND end_reason <> 'rotated'
 GROUP BY 1, 2, 4
UNION ALL
SELECT day, push_service, 'purged', end_reason, sum(ended)::bigint
  FROM {schema}.subscription_ended_daily
 WHERE day >= (%(since)s::timestamptz AT TIME ZONE 'UTC')::date
   AND day <= (%(until)s::timestamptz AT TIME ZONE 'UTC')::date
   AND day < %(until)s::timestamptz AT TIME ZONE 'UTC'
 GROUP BY 1, 2, 4
 ORDER BY 1, 2, 3, 4"""


class Kind(StrEnum):
    STARTED = "started"
    RECONNECTED = "reconnected"
    ENDED = "ended"
    PURGED = "purged"


@dataclass(frozen=True)
class Count:
    day: date
    push_service: str
    kind: Kind
    reason: str
    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Kind(self.kind))


def count(tx: Tx, since: datetime, until: datetime) -> list[Count]:
    return tx.rows(COUNT, {"since": since, "until": until}, Count)
