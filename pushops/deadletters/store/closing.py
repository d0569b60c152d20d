"""Letters that an operator does not want any more."""

from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters import filters
from pushops.deadletters.filters import Filter

# In the order of their ids, as drains lock them. What a drain holds, or is about to, is left alone.
DISCARD: Final[LiteralString] = (
    """
WITH page AS MATERIALIZED (
  SELECT dlq_id FROM {schema}.push_dlq
   WHERE replay_state = 'parked' AND dlq_id > %(after)s::uuid AND """
    + filters.CLAUSE
    + """
   ORDER BY dlq_id LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED),
closed AS (
  UPDATE {schema}.push_dlq AS d
     SET replay_state = 'discarded', close_reason = 'discarded', closed_by = %(actor)s::text,
         close_note = %(note)s::text, closed_at = now()
    FROM page AS p WHERE d.dlq_id = p.dlq_id
  RETURNING d.dlq_id)
SELECT count(*) AS rows, max(dlq_id::text)::uuid AS last FROM closed"""
)


@dataclass(frozen=True, slots=True)
class Discarded:
    """``last`` is the greatest id of the page, None where it was empty."""

    rows: int
    last: UUID | None


def discard(tx: Tx, meant: Filter, *, actor: str, note: str, after: UUID, limit: int) -> Discarded:
    """Close a page of what is parked and meant."""
    return tx.one(DISCARD, {**meant.params(), "actor": actor, "note": note, "after": after, "limit": limit}, Discarded)
