"""The engine's own tables: runs, batches, slots, receipts, quarantine, control."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.sql import HeldPage
from pushops.sweeps.sweep import Walk


@dataclass(frozen=True)
class RunRow:
    """A run as it stands."""

    run_id: UUID
    sweep: str
    state: str
    why: str | None
    started_by: str
    opened_at: datetime
    cutoffs: dict[str, Any]
    windows: dict[str, float]
    walk: str
    cursor: list[str] | None
    walk_end: list[str] | None
    walked: bool
    revisited: bool
    force: bool
    row_limit: int | None
    eligible_rows: int | None
    table_rows: int | None
    page_rows: int | None
    rows_dispatched: int
    pages: int
    held_since: datetime | None
    held_by: str | None
    rung_at: datetime | None
    budget_until: datetime | None
    closed_at: datetime | None

    @property
    def walked_along(self) -> Walk:
        return Walk(self.walk)

    @property
    def cutoff_times(self) -> dict[str, datetime]:
        return {name: datetime.fromisoformat(text) for name, text in self.cutoffs.items()}


_RUN: Final[LiteralString] = """run_id, sweep, state, why, started_by, opened_at, cutoffs, windows, walk, cursor,
 walk_end, walked, revisited, force, row_limit, eligible_rows, table_rows, page_rows, rows_dispatched, pages,
 held_since, held_by, rung_at, budget_until, closed_at"""


@dataclass(frozen=True)
class BatchRow:
    """A batch as its claim returned it."""

    batch_id: UUID
    seq: int
    visit: int
    lo: list[str] | None
    hi: list[str]
    expected: int | None
    attempts: int
    failures: int


@dataclass(frozen=True)
class ControlRow:
    sweep: str
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    acknowledged: dict[str, float]
    batch_rows: int | None
    dispatched_at: datetime | None
    succeeded_at: datetime | None


@dataclass(frozen=True)
class NewBatch:
    batch_id: UUID
    lo: list[str] | None
    hi: list[str]
    expected: int | None


@dataclass(frozen=True)
class PageEnd:
    hi: list[str]
    n: int


@dataclass(frozen=True)
class Middle:
    key: list[str]
    identity: str
    total: int


@dataclass(frozen=True)
class Progress:
    """What a run has done so far, counted from its receipts and batches."""

    rows_done: int
    rows_locked: int
    done: int
    due: int
    claimed: int
    quarantined: int
    seconds: float


@dataclass(frozen=True)
class Ready:
    """What is left to do of a run, as a worker that found nothing to claim must know."""

    due: int
    later: int
    claimed: int
    next_due_at: datetime | None


@dataclass(frozen=True)
class Quarantined:
    quarantine_id: UUID
    sweep: str
    run_id: UUID
    batch_id: UUID
    identity: str | None
    error: str
    at: datetime
    released_at: datetime | None


# The sweep's row; the windows of the very first run are taken as known, a shorter one later is not.
ENSURE_CONTROL: Final[LiteralString] = """
INSERT INTO {schema}.sweep_control (sweep, acknowledged) VALUES (%(sweep)s::text, %(windows)s::jsonb)
ON CONFLICT (sweep) DO NOTHING"""

ENSURE_SLOTS: Final[LiteralString] = """
INSERT INTO {schema}.sweep_slot (sweep, slot)
SELECT %(sweep)s::text, n FROM generate_series(0, %(slots)s::int - 1) AS n
ON CONFLICT (sweep, slot) DO NOTHING"""

CONTROL: Final[LiteralString] = """
SELECT sweep, paused_at, paused_by, paused_why, acknowledged, batch_rows, dispatched_at, succeeded_at
  FROM {schema}.sweep_control WHERE sweep = %(sweep)s::text"""


def ensure_control(tx: Tx, sweep: str, windows: str, slots: int) -> None:
    tx.run(ENSURE_CONTROL, {"sweep": sweep, "windows": windows})
    tx.run(ENSURE_SLOTS, {"sweep": sweep, "slots": slots})


def control(tx: Tx, sweep: str) -> ControlRow | None:
    return tx.maybe(CONTROL, {"sweep": sweep}, ControlRow)


# One open run per sweep: the second opener inserts nothing and joins.
OPEN_RUN: Final[LiteralString] = (
    """
INSERT INTO {schema}.sweep_run
       (sweep, started_by, cutoffs, windows, walk, walk_end, force, row_limit, eligible_rows, table_rows, page_rows)
VALUES (%(sweep)s::text, %(started_by)s::text, %(cutoffs)s::jsonb, %(windows)s::jsonb, %(walk)s::text,
        %(walk_end)s::text[], %(force)s::boolean, %(row_limit)s::bigint, %(eligible_rows)s::bigint,
        %(table_rows)s::bigint, %(page_rows)s::integer)
ON CONFLICT (sweep, filter) WHERE closed_at IS NULL DO NOTHING
RETURNING """
    + _RUN
)

OPEN_RUN_OF: Final[LiteralString] = (
    "SELECT " + _RUN + " FROM {schema}.sweep_run WHERE sweep = %(sweep)s::text AND closed_at IS NULL"
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


def open_run_of(tx: Tx, sweep: str) -> RunRow | None:
    return tx.maybe(OPEN_RUN_OF, {"sweep": sweep}, RunRow)


def run(tx: Tx, run_id: UUID) -> RunRow | None:
    return tx.maybe(RUN, {"run_id": run_id}, RunRow)


def open_runs(tx: Tx) -> list[RunRow]:
    return tx.rows(OPEN_RUNS, {}, RunRow)


def lock_run(tx: Tx, run_id: UUID) -> RunRow | None:
    return tx.maybe(LOCK_RUN, {"run_id": run_id}, RunRow)


def recent_runs(tx: Tx, sweep: str | None, limit: int) -> list[RunRow]:
    return tx.rows(RECENT_RUNS, {"sweep": sweep, "limit": limit}, RunRow)


# The pages of a step; the id is derived from run, cut-off and bounds, so that writing them again changes nothing.
ADD_BATCHES: Final[LiteralString] = """
INSERT INTO {schema}.sweep_batch (batch_id, run_id, seq, visit, lo, hi, expected, failures)
SELECT b.batch_id, %(run_id)s::uuid, %(seq)s::int + b.n::int, %(visit)s::smallint,
       (SELECT array_agg(v) FROM jsonb_array_elements_text(nullif(b.lo, 'null'::jsonb)) AS v),
       (SELECT array_agg(v) FROM jsonb_array_elements_text(b.hi) AS v), b.expected, %(failures)s::int
  FROM ROWS FROM (jsonb_to_recordset(%(batches)s::jsonb)
       AS (batch_id uuid, lo jsonb, hi jsonb, expected int)) WITH ORDINALITY AS b (batch_id, lo, hi, expected, n)
ON CONFLICT (batch_id) DO NOTHING"""

MOVE_CURSOR: Final[LiteralString] = """
UPDATE {schema}.sweep_run
   SET cursor = %(cursor)s::text[], walked = %(walked)s::boolean, pages = pages + %(pages)s::int,
       rows_dispatched = rows_dispatched + %(rows)s::bigint, page_rows = %(size)s::int, rung_at = now()
 WHERE run_id = %(run_id)s::uuid"""


def add_batches(tx: Tx, run_id: UUID, seq: int, batches: str, *, visit: int = 1, failures: int = 0) -> int:
    values = {"run_id": run_id, "seq": seq, "batches": batches, "visit": visit, "failures": failures}
    return tx.run(ADD_BATCHES, values)


def move_cursor(
    tx: Tx, run_id: UUID, cursor: Sequence[str] | None, *, walked: bool, pages: int, rows: int, size: int
) -> None:
    values = {"run_id": run_id, "cursor": None if cursor is None else list(cursor), "walked": walked}
    tx.run(MOVE_CURSOR, values | {"pages": pages, "rows": rows, "size": size})


# A slot that nobody holds, or whose holder's lease ran out. SKIP LOCKED: two takers never wait for each other.
TAKE_SLOT: Final[LiteralString] = """
WITH free AS MATERIALIZED (
  SELECT sweep, slot FROM {schema}.sweep_slot
   WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND free_at <= clock_timestamp()
   ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.sweep_slot AS s SET holder = %(holder)s::uuid, free_at = clock_timestamp() + %(lease)s::interval
  FROM free WHERE s.sweep = free.sweep AND s.slot = free.slot
RETURNING s.slot"""

# Seconds until a slot that is only resting (between two batches) is free; null where all are at work.
REST: Final[LiteralString] = """
SELECT extract(epoch FROM min(free_at) - clock_timestamp())::float8 FROM {schema}.sweep_slot
 WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder IS NULL"""

FREE_SLOT: Final[LiteralString] = """
UPDATE {schema}.sweep_slot SET holder = NULL, free_at = clock_timestamp() + %(pause)s::interval
 WHERE sweep = %(sweep)s::text AND holder = %(holder)s::uuid"""

WORKING_SLOTS: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.sweep_slot
 WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder IS NOT NULL AND free_at > clock_timestamp()"""


def take_slot(tx: Tx, sweep: str, slots: int, holder: UUID, lease: timedelta) -> int | None:
    values = {"sweep": sweep, "slots": slots, "holder": holder, "lease": lease}
    found: int | None = tx.scalar(TAKE_SLOT, values)
    return found


def rest(tx: Tx, sweep: str, slots: int) -> float | None:
    found: float | None = tx.scalar(REST, {"sweep": sweep, "slots": slots})
    return found


def free_slot(tx: Tx, sweep: str, holder: UUID, pause: timedelta) -> None:
    tx.run(FREE_SLOT, {"sweep": sweep, "holder": holder, "pause": pause})


def working_slots(tx: Tx, sweep: str, slots: int) -> int:
    return int(tx.scalar(WORKING_SLOTS, {"sweep": sweep, "slots": slots}))


# The attempt is counted and committed before the work: a batch that kills its worker is known by it. Renews the
# holder's slot in the same breath; whoever lost the slot claims nothing. Three claims that were neither settled
# nor failed mean a killer: it is left for the quarantine.
CLAIM: Final[LiteralString] = """
WITH held AS (
  UPDATE {schema}.sweep_slot SET free_at = clock_timestamp() + %(lease)s::interval
   WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder = %(holder)s::uuid AND free_at > clock_timestamp()
  RETURNING slot),
ready AS MATERIALIZED (
  SELECT batch_id FROM {schema}.sweep_batch
   WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')
     AND (state = 'due' OR claimed_until < clock_timestamp()) AND due_at <= clock_timestamp()
     AND attempts - failures < %(deaths)s::int
     AND (%(ids)s::uuid[] IS NULL OR batch_id = ANY (%(ids)s::uuid[]))
     AND EXISTS (SELECT FROM held)
     AND EXISTS (SELECT FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid AND state = 'running')
   ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.sweep_batch AS b
   SET state = 'claimed', attempts = attempts + 1, claim_token = %(token)s::uuid, worker = %(worker)s::text,
       claimed_until = clock_timestamp() + %(lease)s::interval
  FROM ready WHERE b.batch_id = ready.batch_id
RETURNING b.batch_id, b.seq, b.visit, b.lo, b.hi, b.expected, b.attempts, b.failures"""


def claim(tx: Tx, values: dict[str, Any]) -> BatchRow | None:
    return tx.maybe(CLAIM, values, BatchRow)


# Effect and receipt in one transaction: no row back means that another owns the batch, and the effect goes too.
SETTLE: Final[LiteralString] = """
WITH done AS (
  UPDATE {schema}.sweep_batch
     SET state = 'done', claim_token = NULL, claimed_until = NULL, finished_at = clock_timestamp()
   WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid
  RETURNING batch_id, run_id)
INSERT INTO {schema}.sweep_receipt (batch_id, run_id, rows_done, rows_locked, seconds, worker)
SELECT batch_id, run_id, %(rows_done)s::int, %(rows_locked)s::int,
       extract(epoch FROM clock_timestamp() - %(began)s::timestamptz), %(worker)s::text FROM done
RETURNING seconds"""

# Not a death: the worker lived to say why. Comes back after a pause that grows.
FAIL: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = 'due', claim_token = NULL, claimed_until = NULL, failures = failures + 1,
       last_error = %(error)s::text, due_at = clock_timestamp() + %(wait)s::interval
 WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid"""

SET_APART: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = %(state)s::text, claim_token = NULL, claimed_until = NULL, failures = failures + 1,
       last_error = %(error)s::text, finished_at = clock_timestamp()
 WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid"""

QUARANTINE: Final[LiteralString] = """
INSERT INTO {schema}.sweep_quarantine (sweep, run_id, batch_id, identity, walk, lo, hi, error)
SELECT %(sweep)s::text, run_id, batch_id, %(identity)s::text, %(walk)s::text, lo, hi, %(error)s::text
  FROM {schema}.sweep_batch WHERE batch_id = %(batch_id)s::uuid"""

# Batches that took three workers with them, named and set apart in one statement.
QUARANTINE_KILLERS: Final[LiteralString] = """
WITH killer AS (
  UPDATE {schema}.sweep_batch
     SET state = 'quarantined', claim_token = NULL, claimed_until = NULL, last_error = 'worker_lost',
         finished_at = clock_timestamp()
   WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed') AND attempts - failures >= %(deaths)s::int
     AND (state = 'due' OR claimed_until < clock_timestamp())
  RETURNING batch_id, run_id, lo, hi)
INSERT INTO {schema}.sweep_quarantine (sweep, run_id, batch_id, walk, lo, hi, error)
SELECT %(sweep)s::text, run_id, batch_id, %(walk)s::text, lo, hi, 'worker_lost' FROM killer
RETURNING batch_id"""


def settle(tx: Tx, values: dict[str, Any]) -> float | None:
    found: float | None = tx.scalar(SETTLE, values)
    return found


def fail(tx: Tx, batch_id: UUID, token: UUID, error: str, wait: timedelta) -> bool:
    return tx.run(FAIL, {"batch_id": batch_id, "token": token, "error": error, "wait": wait}) == 1


def set_apart(tx: Tx, batch_id: UUID, token: UUID, state: str, error: str) -> bool:
    return tx.run(SET_APART, {"batch_id": batch_id, "token": token, "state": state, "error": error}) == 1


def quarantine(tx: Tx, sweep: str, batch_id: UUID, identity: str, walk: str, error: str) -> None:
    values = {"sweep": sweep, "batch_id": batch_id, "identity": identity, "walk": walk, "error": error}
    tx.run(QUARANTINE, values)


def quarantine_killers(tx: Tx, sweep: str, run_id: UUID, walk: str, deaths: int) -> list[UUID]:
    values = {"sweep": sweep, "run_id": run_id, "walk": walk, "deaths": deaths}
    return tx.scalars(QUARANTINE_KILLERS, values)


HELD_IDENTITIES: Final[LiteralString] = """
SELECT identity FROM {schema}.sweep_quarantine
 WHERE sweep = %(sweep)s::text AND released_at IS NULL AND identity IS NOT NULL"""

HELD_PAGES: Final[LiteralString] = """
SELECT lo, hi FROM {schema}.sweep_quarantine
 WHERE sweep = %(sweep)s::text AND walk = %(walk)s::text AND released_at IS NULL AND identity IS NULL
 ORDER BY at"""

LIST_QUARANTINE: Final[LiteralString] = """
SELECT quarantine_id, sweep, run_id, batch_id, identity, error, at, released_at FROM {schema}.sweep_quarantine
 WHERE (%(sweep)s::text IS NULL OR sweep = %(sweep)s::text) AND (%(released)s::boolean OR released_at IS NULL)
 ORDER BY at DESC LIMIT %(limit)s::bigint"""

RELEASE: Final[LiteralString] = """
UPDATE {schema}.sweep_quarantine SET released_at = now(), released_by = %(actor)s::text
 WHERE sweep = %(sweep)s::text AND released_at IS NULL
   AND (%(ids)s::uuid[] IS NULL OR quarantine_id = ANY (%(ids)s::uuid[]))"""


def held_identities(tx: Tx, sweep: str) -> list[str]:
    return tx.scalars(HELD_IDENTITIES, {"sweep": sweep})


def held_pages(tx: Tx, sweep: str, walk: str) -> list[HeldPage]:
    return tx.rows(HELD_PAGES, {"sweep": sweep, "walk": walk}, HeldPage)


def list_quarantine(tx: Tx, sweep: str | None, *, released: bool, limit: int) -> list[Quarantined]:
    return tx.rows(LIST_QUARANTINE, {"sweep": sweep, "released": released, "limit": limit}, Quarantined)


def release(tx: Tx, sweep: str, ids: list[UUID] | None, actor: str) -> int:
    return tx.run(RELEASE, {"sweep": sweep, "ids": ids, "actor": actor})


# What a worker that found nothing must know: is there more now, more later, or somebody still at it?
READY: Final[LiteralString] = """
SELECT count(*) FILTER (WHERE state = 'due' AND due_at <= clock_timestamp() OR claimed_until < clock_timestamp())::int
         AS due,
       count(*) FILTER (WHERE state = 'due' AND due_at > clock_timestamp())::int AS later,
       count(*) FILTER (WHERE claimed_until >= clock_timestamp())::int AS claimed,
       min(due_at) FILTER (WHERE state = 'due' AND due_at > clock_timestamp()) AS next_due_at
  FROM {schema}.sweep_batch WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')"""

APPLIED: Final[LiteralString] = """
SELECT batch_id FROM {schema}.sweep_receipt WHERE batch_id = ANY (%(ids)s::uuid[])"""

KNOWN: Final[LiteralString] = """
SELECT batch_id FROM {schema}.sweep_batch WHERE batch_id = ANY (%(ids)s::uuid[])"""

# Counters come from the receipts: what is not committed with its effect is not counted.
PROGRESS: Final[LiteralString] = """
SELECT coalesce(r.rows_done, 0) AS rows_done, coalesce(r.rows_locked, 0) AS rows_locked,
       coalesce(r.done, 0) AS done, b.due, b.claimed, q.quarantined, coalesce(r.seconds, 0) AS seconds
  FROM (SELECT sum(rows_done)::bigint AS rows_done, sum(rows_locked)::bigint AS rows_locked, count(*) AS done,
               extract(epoch FROM max(applied_at) - min(applied_at))::float8 AS seconds
          FROM {schema}.sweep_receipt WHERE run_id = %(run_id)s::uuid) AS r,
       (SELECT count(*) FILTER (WHERE state = 'due') AS due, count(*) FILTER (WHERE state = 'claimed') AS claimed
          FROM {schema}.sweep_batch WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')) AS b,
       (SELECT count(*) AS quarantined FROM {schema}.sweep_quarantine WHERE run_id = %(run_id)s::uuid) AS q"""


def ready(tx: Tx, run_id: UUID) -> Ready:
    return tx.one(READY, {"run_id": run_id}, Ready)


def applied(tx: Tx, ids: list[UUID]) -> set[UUID]:
    return set(tx.scalars(APPLIED, {"ids": ids}))


def known(tx: Tx, ids: list[UUID]) -> set[UUID]:
    return set(tx.scalars(KNOWN, {"ids": ids}))


def progress(tx: Tx, run_id: UUID) -> Progress:
    return tx.one(PROGRESS, {"run_id": run_id}, Progress)


# Pages that had rows locked by somebody else, and were not looked at again yet.
LOCKED_PAGES: Final[LiteralString] = """
SELECT b.batch_id, b.lo, b.hi, r.rows_locked AS expected
  FROM {schema}.sweep_batch AS b JOIN {schema}.sweep_receipt AS r USING (batch_id)
 WHERE b.run_id = %(run_id)s::uuid AND b.visit = 1 AND r.rows_locked > 0 ORDER BY b.seq"""

MARK_REVISITED: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET revisited = true WHERE run_id = %(run_id)s::uuid"""

CLOSE_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET state = %(state)s::text, why = %(why)s::text, closed_at = now()
 WHERE run_id = %(run_id)s::uuid AND closed_at IS NULL"""

CANCEL_BATCHES: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = 'cancelled', claim_token = NULL, claimed_until = NULL, finished_at = clock_timestamp()
 WHERE run_id = %(run_id)s::uuid AND (state = 'due' OR state = 'claimed' AND claimed_until < clock_timestamp())"""

NOTE_SUCCESS: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET succeeded_at = now() WHERE sweep = %(sweep)s::text"""


def locked_pages(tx: Tx, run_id: UUID) -> list[NewBatch]:
    return tx.rows(LOCKED_PAGES, {"run_id": run_id}, NewBatch)


def mark_revisited(tx: Tx, run_id: UUID) -> None:
    tx.run(MARK_REVISITED, {"run_id": run_id})


def close_run(tx: Tx, run_id: UUID, state: str, why: str | None) -> bool:
    return tx.run(CLOSE_RUN, {"run_id": run_id, "state": state, "why": why}) == 1


def cancel_batches(tx: Tx, run_id: UUID) -> int:
    return tx.run(CANCEL_BATCHES, {"run_id": run_id})


def note_success(tx: Tx, sweep: str) -> None:
    tx.run(NOTE_SUCCESS, {"sweep": sweep})


# The reason is stored as it was given; the time it began decides when holding becomes stopping.
HOLD_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run
   SET why = %(why)s::text, held_by = %(valve)s::text,
       held_since = CASE WHEN held_by = %(valve)s::text THEN held_since ELSE clock_timestamp() END
 WHERE run_id = %(run_id)s::uuid AND closed_at IS NULL
   AND (held_by IS DISTINCT FROM %(valve)s::text OR why IS DISTINCT FROM %(why)s::text)"""

UNHOLD_RUN: Final[LiteralString] = """
UPDATE {schema}.sweep_run SET why = NULL, held_by = NULL, held_since = NULL
 WHERE run_id = %(run_id)s::uuid AND held_by IS NOT NULL"""

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


PAUSE_SWEEP: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET paused_at = now(), paused_by = %(actor)s::text, paused_why = %(why)s::text
 WHERE sweep = %(sweep)s::text"""

RESUME_SWEEP: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET paused_at = NULL, paused_by = NULL, paused_why = NULL
 WHERE sweep = %(sweep)s::text AND paused_at IS NOT NULL"""

ACKNOWLEDGE: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET acknowledged = %(windows)s::jsonb WHERE sweep = %(sweep)s::text"""

NOTE_DISPATCH: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET dispatched_at = now() WHERE sweep = %(sweep)s::text"""

# Only batches of the size that is in force say anything about it.
ADAPT: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET batch_rows = %(target)s::int
 WHERE sweep = %(sweep)s::text AND coalesce(batch_rows, %(default)s::int) = %(size)s::int"""


def pause_sweep(tx: Tx, sweep: str, actor: str, why: str) -> None:
    tx.run(PAUSE_SWEEP, {"sweep": sweep, "actor": actor, "why": why})


def resume_sweep(tx: Tx, sweep: str) -> bool:
    return tx.run(RESUME_SWEEP, {"sweep": sweep}) == 1


def acknowledge(tx: Tx, sweep: str, windows: str) -> None:
    tx.run(ACKNOWLEDGE, {"sweep": sweep, "windows": windows})


def note_dispatch(tx: Tx, sweep: str) -> None:
    tx.run(NOTE_DISPATCH, {"sweep": sweep})


def adapt(tx: Tx, sweep: str, size: int, target: int, default: int) -> None:
    tx.run(ADAPT, {"sweep": sweep, "size": size, "target": target, "default": default})


@dataclass(frozen=True)
class TableFacts:
    """What the planner's statistics say about a table, and how its order follows the walked index (null: unknown)."""

    blocks: int
    rows: float
    correlation: float | None


# pg_relation_size is exact and cheap; reltuples and the correlation are as fresh as the last analyze.
TABLE_FACTS: Final[LiteralString] = """
SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int)::int AS blocks, c.reltuples::float8 AS rows,
       (SELECT coalesce(
          (SELECT s.correlation FROM pg_stats AS s JOIN pg_class AS i ON s.tablename = i.relname
            JOIN pg_namespace AS n ON n.oid = i.relnamespace AND n.nspname = s.schemaname
           WHERE n.oid = c.relnamespace AND i.relname = %(index)s::text LIMIT 1),
          (SELECT s.correlation FROM pg_stats AS s JOIN pg_namespace AS n ON n.nspname = s.schemaname
           WHERE n.oid = c.relnamespace AND s.tablename = c.relname AND s.attname = %(column)s::text)))::float8
         AS correlation
  FROM pg_class AS c WHERE c.oid = %(table)s::regclass"""


def table_facts(tx: Tx, table: str, index: str, column: str) -> TableFacts:
    return tx.one(TABLE_FACTS, {"table": table, "index": index, "column": column}, TableFacts)
