"""Which requests are late, and who was told of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString, TypeVar
from uuid import UUID

from pushops.db import Tx

Row = TypeVar("Row")

LATE: Final[LiteralString] = """
UPDATE {schema}.erasure_request
   SET told = CASE WHEN asked_at < now() - %(page)s::interval THEN 'page' ELSE 'ticket' END
 WHERE request_id IN (
   SELECT request_id FROM {schema}.erasure_request
    WHERE done_at IS NULL AND held_at IS NULL AND asked_at < now() - %(ticket)s::interval
      AND told IS DISTINCT FROM CASE WHEN asked_at < now() - %(page)s::interval THEN 'page' ELSE 'ticket' END
    ORDER BY asked_at LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING request_id, now() - asked_at AS age, told, waits"""

STANDING: Final[LiteralString] = """
SELECT count(*) FILTER (WHERE held_at IS NULL)::integer AS open,
       count(*) FILTER (WHERE held_at IS NOT NULL)::integer AS held,
       count(*) FILTER (WHERE held_at IS NULL AND asked_at < now() - %(ticket)s::interval)::integer AS late,
       count(*) FILTER (WHERE held_at IS NULL AND asked_at < now() - %(page)s::interval)::integer AS very_late,
       max(now() - asked_at) FILTER (WHERE held_at IS NULL) AS oldest
  FROM {schema}.erasure_request WHERE done_at IS NULL"""


@dataclass(frozen=True)
class Late:
    request_id: UUID
    age: timedelta
    told: str
    waits: str | None


def late(tx: Tx, ticket: timedelta, page: timedelta) -> list[Late]:
    """Those that nobody was told of as they stand now; from here on somebody was."""
    return tx.rows(LATE, {"ticket": ticket, "page": page}, Late)


def standing(tx: Tx, ticket: timedelta, page: timedelta, row: type[Row]) -> Row:
    return tx.one(STANDING, {"ticket": ticket, "page": page}, row)
