"""Runs: opened once, locked by one dispatcher at a time, brought to a named end."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, LiteralString, TypeVar
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.store.rows import (
    RunRow,
)

Name = TypeVar("Name", bound=str)

_RUN: Final[LiteralString] = """run_id, sweep, state, why, started_by, opened_at, cutoffs, windows, walk, cursor,
 walk_end, walked, revisited, force, row_limit, eligible_rows, table_rows, page_rows, rows_dispatched, pages,
 held_since, held_by, rung_at, budget_until, closed_at, filter, options, outcomes, failures_in_row"""


# One open run per sweep and filter: the second opener inserts nothing and joins.
OPEN_RUN: Final[LiteralString] = (
    """
INSERT INTO {schema}.sweep_run
       (sweep, started_by, cutoffs, windows, walk, walk_end, force, row_limit, eligible_rows, table_rows, filter,
        options)
VALUES (%(sweep)s::text, %(started_by)s::text, %(cutoffs)s::jsonb, %(windows)s::jsonb, %(walk)s::text,
        %(walk_end)s::text[], %(force)s::boolean, %(row_limit)s::bigint, %(eligible_rows)s::bigint,
        %(table_rows)s::bigint, %(filter)s::text, %(options)s::jsonb)
ON CONFLICT (sweep, filter) WHERE closed_at IS NULL DO NOTHING
RETURNING """
    + _RUN
)


OPEN_RUN_OF: Final[LiteralString] = (
    "SELECT "
    + _RUN
    + """ FROM {schema}.sweep_run
 WHERE sweep = %(sweep)s::text AND filter = %(filter)s::text AND closed_at IS NULL"""
)


RUN: Final[LiteralString] = "SELECT " + _RUN + " FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid"


OPEN_RUNS: Final[LiteralString] = (
    "SELECT " + _RUN + " FROM {schema}.sweep_run WHERE closed_at IS NULL ORDER BY opened_at"
)


# A dispatcher that finds the row held leaves: somebody else is dispatching.
LOCK_RUN: Final[LiteralString] = (
    "SELECT " + _RUN + " FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid FOR UPDATE SKIP LOCKED"
)


RECENT_RUNS: Final[LiteralString] = (
    "SELECT "
    + _RUN
    + """ FROM {schema}.sweep_run
 WHERE (%(sweep)s::text IS NULL OR sweep = %(sweep)s::text) ORDER BY opened_at DESC LIMIT %(limit)s::bigint"""
)


def open_run(tx: Tx, values: dict[str, Any]) -> RunRow | None:
    return tx.maybe(OPEN_RUN, values, RunRow)


def open_run_of(tx: Tx, sweep: str, filter_: str = "") -> RunRow | None:
    return tx.maybe(OPEN_RUN_OF, {"sweep": sweep, "filter": filter_}, RunRow)


def run(tx: Tx, run_id: UUID) -> RunRow | None:
    return tx.maybe(RUN, {"run_id": run_id}, RunRow)


def open_runs(tx: Tx) -> list[RunRow]:
    return tx.rows(OPEN_RUNS, {}, RunRow)


def lock_run(tx: Tx, run_id: UUID) -> RunRow | None:
    return tx.maybe(LOCK_RUN, {"run_id": run_id}, RunRow)


def recent_runs(tx: Tx, sweep: str | None, limit: int) -> list[RunRow]:
    return tx.rows(RECENT_RUNS, {"sweep": sweep, "limit": limit}, RunRow)


MOVE_CURSOR: Final[LiteralString] = """
UPDATE {schema}.sweep_run
   SET cursor = %(cursor)s::text[], walked = %(walked)s::boolean, pages = pages + %(pages)s::int,
       rows_dispatched = rows_dispatched + %(rows)s::bigint, page_rows = %(size)s::int, rung_at = now()
 WHERE run_id = %(run_id)s::uuid"""


def move_cursor(
    tx: Tx, run_id: UUID, cursor: Sequence[str] | None, *, walked: bool, pages: int, rows: int, size: int
) -> None:
    values = {"run_id": run_id, "cursor": None if cursor is None else list(cursor), "walked": walked}
    tx.run(MOVE_CURSOR, values | {"pages": pages, "rows": rows, "size": size})


MARK_REVISITED: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET revisited = true WHERE run_id = %(run_id)s::uuid"""


CLOSE_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET state = %(state)s::text, why = %(why)s::text, closed_at = now()
 WHERE run_id = %(run_id)s::uuid AND closed_at IS NULL"""


def mark_revisited(tx: Tx, run_id: UUID) -> None:
    tx.run(MARK_REVISITED, {"run_id": run_id})


def close_run(tx: Tx, run_id: UUID, state: str, why: str | None) -> bool:
    return tx.run(CLOSE_RUN, {"run_id": run_id, "state": state, "why": why}) == 1


# Only of a running one: an operator's own words are not written over. The reason is stored as it was given;
# the time it began decides when holding becomes stopping.
HOLD_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run
   SET why = %(why)s::text, held_by = %(valve)s::text,
       held_since = CASE WHEN held_by = %(valve)s::text THEN held_since ELSE clock_timestamp() END
 WHERE run_id = %(run_id)s::uuid AND state = 'running'
   AND (held_by IS DISTINCT FROM %(valve)s::text OR why IS DISTINCT FROM %(why)s::text)"""


UNHOLD_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET why = NULL, held_by = NULL, held_since = NULL
 WHERE run_id = %(run_id)s::uuid AND state = 'running' AND held_by IS NOT NULL"""


GRANT_BUDGET: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET budget_until = now() + %(budget)s::interval WHERE run_id = %(run_id)s::uuid"""


RING: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET rung_at = now() WHERE run_id = %(run_id)s::uuid"""


ASK: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET state = %(target)s::text, why = %(why)s::text
 WHERE run_id = %(run_id)s::uuid AND state = ANY (%(sources)s::text[])"""


def hold_run(tx: Tx, run_id: UUID, valve: str, why: str) -> bool:
    return tx.run(HOLD_RUN, {"run_id": run_id, "valve": valve, "why": why}) == 1


def unhold_run(tx: Tx, run_id: UUID) -> bool:
    return tx.run(UNHOLD_RUN, {"run_id": run_id}) == 1


def grant_budget(tx: Tx, run_id: UUID, budget: timedelta) -> None:
    tx.run(GRANT_BUDGET, {"run_id": run_id, "budget": budget})


def note_ring(tx: Tx, run_id: UUID) -> None:
    tx.run(RING, {"run_id": run_id})


def ask(tx: Tx, run_id: UUID, target: str, sources: Sequence[str], why: str | None) -> bool:
    values = {"run_id": run_id, "target": target, "sources": list(sources), "why": why}
    return tx.run(ASK, values) == 1


# What came of rows, by name, and how many failures came in a row, in the order in which they are told. Of a closed run
# too: what others had in hand when it was stopped has come to an end all the same.
ADD_OUTCOMES: Final[LiteralString] = """
UPDATE {schema}.sweep_run AS r
   SET failures_in_row = %(streak)s::int + CASE WHEN %(reset)s::boolean THEN 0 ELSE r.failures_in_row END,
       outcomes = r.outcomes || (
         SELECT coalesce(jsonb_object_agg(key, coalesce((r.outcomes ->> key)::bigint, 0) + value::bigint), '{}')
           FROM jsonb_each_text(%(counts)s::jsonb))
 WHERE run_id = %(run_id)s::uuid
RETURNING failures_in_row"""


# True too where the whole sweep is paused.
ASKED: Final[LiteralString] = """
SELECT r.state <> 'running' OR c.paused_at IS NOT NULL
  FROM {schema}.sweep_run AS r LEFT JOIN {schema}.sweep_control AS c ON c.sweep = r.sweep
 WHERE r.run_id = %(run_id)s::uuid"""


# Another run of the sweep that has work and nobody at it: its workers found every slot taken.
WAITING_RUN: Final[LiteralString] = """
SELECT run_id FROM {schema}.sweep_run AS r
 WHERE sweep = %(sweep)s::text AND run_id <> %(run_id)s::uuid AND closed_at IS NULL AND state = 'running'
   AND held_by IS NULL
   AND EXISTS (SELECT FROM {schema}.sweep_batch AS b WHERE b.run_id = r.run_id AND state IN ('due', 'claimed')
               AND state = 'due' AND due_at <= clock_timestamp())
   AND NOT EXISTS (SELECT FROM {schema}.sweep_batch AS b WHERE b.run_id = r.run_id AND state IN ('due', 'claimed')
                   AND state = 'claimed' AND claimed_until >= clock_timestamp())
 ORDER BY opened_at LIMIT 1"""


def waiting_run(tx: Tx, sweep: str, run_id: UUID) -> UUID | None:
    found: UUID | None = tx.scalar(WAITING_RUN, {"sweep": sweep, "run_id": run_id})
    return found


def add_outcomes(tx: Tx, run_id: UUID, counts: Mapping[Name, int], *, streak: int = 0, reset: bool = False) -> int:
    """Count what came of rows; returns how many failures are in a row now, 0 where the run is gone.

    ``streak`` is how many the outcomes end with; ``reset`` says that a success stands before them.
    """
    values = {"run_id": run_id, "counts": json.dumps(dict(counts)), "streak": streak, "reset": reset}
    return int(tx.scalar(ADD_OUTCOMES, values) or 0)


def asked(tx: Tx, run_id: UUID) -> bool:
    """Whether somebody asked the run to pause or to end, or it is no more."""
    return tx.scalar(ASKED, {"run_id": run_id}) is not False
