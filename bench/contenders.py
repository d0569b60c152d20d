"""What one would write oneself: one DELETE, the usual loop at its best, and the loop as it is usually written."""

from typing import Any, Final, LiteralString

import psycopg

from bench.house import House
from bench.timing import OVER, clock, connected

BATCH: Final = 5_000

SINGLE: Final[LiteralString] = f"DELETE FROM pushops.push_subscription WHERE {OVER}"

# Claim a batch without waiting, delete it by key, and go on behind its last row: no dead row is read twice.
CTE: Final[LiteralString] = f"""
WITH doomed AS MATERIALIZED (
  SELECT id, deleted_at FROM pushops.push_subscription
   WHERE {OVER} AND (deleted_at, id) > (%(at)s::timestamptz, %(id)s::uuid)
   ORDER BY deleted_at, id LIMIT {BATCH} FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM pushops.push_subscription AS s USING doomed AS d WHERE s.id = d.id RETURNING 1)
SELECT (SELECT count(*) FROM gone), deleted_at, id FROM doomed ORDER BY deleted_at DESC, id DESC LIMIT 1"""

IN: Final[LiteralString] = f"""
DELETE FROM pushops.push_subscription
 WHERE id IN (SELECT id FROM pushops.push_subscription WHERE {OVER} LIMIT {BATCH})"""

FIRST: Final = {"at": "-infinity", "id": "00000000-0000-0000-0000-000000000000"}


def single(house: House) -> tuple[float, dict[str, Any]]:
    """(a) One unbounded DELETE: the limit."""
    with connected(house) as conn:
        return clock(lambda: conn.execute(SINGLE)), {}


def cte_loop(house: House) -> tuple[float, dict[str, Any]]:
    """(b) The usual loop, one connection, its plan checked after a fresh ANALYZE, which is not on the clock."""
    with connected(house) as conn:
        conn.execute("ANALYZE pushops.push_subscription")
        nudged = not _nested(conn)
        if nudged:
            for way in ("hashjoin", "mergejoin", "seqscan", "bitmapscan"):
                conn.execute(f"SET enable_{way} = off")
        assert _nested(conn), "expected a nested loop over the walked index and the key"
        conn.execute("CHECKPOINT")
        return clock(lambda: _loop_by_key(conn)), {"planner_nudged": nudged}


def in_loop(house: House) -> tuple[float, dict[str, Any]]:
    """(c) DELETE ... IN (SELECT ... LIMIT), again and again from the start."""
    with connected(house) as conn:
        conn.execute("ANALYZE pushops.push_subscription")
        conn.execute("CHECKPOINT")
        return clock(lambda: _loop_until_none(conn)), {}


def _loop_by_key(conn: psycopg.Connection[Any]) -> None:
    last: dict[str, Any] | None = dict(FIRST)
    while last is not None:
        row = conn.execute(CTE, last, prepare=False).fetchone()
        last = {"at": row[1], "id": row[2]} if row and row[0] else None


def _loop_until_none(conn: psycopg.Connection[Any]) -> None:
    while conn.execute(IN).rowcount:
        pass


def _nested(conn: psycopg.Connection[Any]) -> bool:
    """Whether the loop's plan is the good one: no hash of the table, no scan of all of it."""
    plan = "\n".join(row[0] for row in conn.execute("EXPLAIN " + CTE, FIRST, prepare=False))
    good = "Nested Loop" in plan and "push_subscription_purge" in plan
    return good and not any(bad in plan for bad in ("Seq Scan", "Hash Join", "Merge Join"))
