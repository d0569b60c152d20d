"""The dispatcher: light, takes seconds at most, writes pages down and rings for them after the commit."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import BrokerError
from pushops.runtime import Runtime
from pushops.sweeps import gauge, plan, runs, sql, store, valves
from pushops.sweeps.order import Order
from pushops.sweeps.store import NewBatch, PageEnd, RunRow
from pushops.sweeps.sweep import Sweep, Walk
from pushops.sweeps.valves import Reading, State

__all__ = ["Bell", "Dispatched", "Order", "Outcome", "dispatch", "ring_again"]

BUDGET: Final = timedelta(seconds=5)
MOST_PAGES: Final = 32  # of one step: one transaction
PER_MESSAGE: Final = 4  # batch ids in a message: four uuids and the run's stay below 256 bytes


class Outcome(StrEnum):
    DISPATCHED = "dispatched"  # pages were written, or there is nothing more to write
    FULL = "full"  # the high-water mark
    HELD = "held"  # a valve
    SKIPPED = "skipped"  # another dispatcher is at it, or the run does not take pages now
    BUDGET = "budget"  # this dispatcher's own few seconds
    NO_BROKER = "no_broker"  # nobody can be told; what is written stays due
    NO_RUN = "no_run"
    FAILED = "failed"  # the database said no; the event says how


@dataclass(frozen=True)
class Bell:
    """How workers are told: ``ring(run, batches)`` raises BrokerError, ``depth()`` is None where it cannot be read."""

    ring: Callable[[UUID, Sequence[UUID]], None]
    depth: Callable[[], int | None]


@dataclass(frozen=True)
class Dispatched:
    outcome: Outcome
    run: RunRow | None = None
    opened: bool = False
    batches: int = 0
    rows: int = 0
    why: str = ""


@dataclass
class _Step:
    """What one transaction of the dispatcher wrote."""

    batches: list[NewBatch]
    rows: int
    walked: bool


def dispatch(rt: Runtime, sweep: Sweep, bell: Bell | None, order: Order) -> Dispatched:
    """Open the sweep's run or join it, write its next pages and ring for them; without a bell nobody is rung."""
    with rt.events.span("sweep.dispatched", sweep=sweep.name) as span:
        found = _dispatch(rt, sweep, bell, order)
        span["run"] = found.run.run_id if found.run else None
        span["outcome"], span["why"] = found.outcome, found.why
        span["batches"], span["rows"] = found.batches, found.rows
    return found


def _dispatch(rt: Runtime, sweep: Sweep, bell: Bell | None, order: Order) -> Dispatched:
    run, opened = _find(rt, sweep, order)
    if run is None:
        return Dispatched(Outcome.NO_RUN)
    with rt.db.transaction() as tx:
        # The run before the control row, as who concludes a run takes them: the other way round they deadlock.
        if order.granting:
            store.grant_budget(tx, run.run_id, timedelta(milliseconds=rt.settings.sweep_budget_ms))
        store.note_dispatch(tx, sweep.name)
    joined, run = run, runs.conclude(rt, sweep, run.run_id)
    if run is None or run.state != "running":
        return Dispatched(
            Outcome.SKIPPED, run or joined, opened, why=run.state if run else "another dispatcher is at it"
        )
    gauge.tell_old_snapshots(rt)
    closed = valves.first_closed(gauge.read(rt, sweep, run))
    if closed is not None:
        runs.hold(rt, run, closed)
        return Dispatched(Outcome.HELD, run, opened, why=closed.reason)
    _acknowledge_longer(rt, run)
    return _fill(rt, sweep, bell, run, opened=opened, was_held=runs.unhold(rt, run))


def _find(rt: Runtime, sweep: Sweep, order: Order) -> tuple[RunRow | None, bool]:
    if order.opening:
        return runs.open_or_join(rt, sweep, order)
    with rt.db.transaction() as tx:
        return store.open_run_of(tx, sweep.name, order.filter), False


def _acknowledge_longer(rt: Runtime, run: RunRow) -> None:
    """The valve was open: the run's windows are no shorter than the known ones, and are the known ones from now on."""
    with rt.db.transaction() as tx:
        store.acknowledge(tx, run.sweep, json.dumps(run.windows))


def _fill(rt: Runtime, sweep: Sweep, bell: Bell | None, run: RunRow, *, opened: bool, was_held: bool) -> Dispatched:
    deadline = time.monotonic() + BUDGET.total_seconds()
    batches, rows, pages = 0, 0, 1
    outcome, why = Outcome.DISPATCHED, ""
    depth = bell.depth() if bell and not run.walked else 0
    while not run.walked:
        full = _queue_reading(rt, depth, run)
        if not full.open:
            outcome, why = Outcome.NO_BROKER if full.state is State.UNKNOWN else Outcome.FULL, full.reason
            break
        step = _write(rt, sweep, run.run_id, pages)
        if step is None:
            return Dispatched(Outcome.SKIPPED, run, opened, batches, rows, "another dispatcher is at it")
        if bell and not _ring_for(rt, bell, run, step.batches):
            return Dispatched(Outcome.NO_BROKER, run, opened, batches, rows, "the broker did not take the messages")
        batches, rows, pages = batches + len(step.batches), rows + step.rows, min(pages * 2, MOST_PAGES)
        if step.walked or not step.batches:
            break
        if time.monotonic() > deadline:
            outcome, why = Outcome.BUDGET, "this dispatcher's seconds are spent"
            break
    return _finish(rt, sweep, bell, run, Dispatched(outcome, run, opened, batches, rows, why), was_held=was_held)


def _finish(
    rt: Runtime, sweep: Sweep, bell: Bell | None, run: RunRow, found: Dispatched, *, was_held: bool
) -> Dispatched:
    after = runs.conclude(rt, sweep, run.run_id) or run
    if bell and not found.batches and after.state == "running":
        ring_again(rt, sweep, bell, after, at_once=was_held)
    return Dispatched(found.outcome, after, found.opened, found.batches, found.rows, found.why)


def _queue_reading(rt: Runtime, depth: int | None, run: RunRow) -> Reading:
    """The queue as it was when this dispatcher came, which takes a connection to see, and the table as it is."""
    with rt.db.transaction() as tx:
        waiting = store.ready(tx, run.run_id).due
    return valves.decide_queue(depth, waiting, rt.settings.sweep_max_queue)


def _write(rt: Runtime, sweep: Sweep, run_id: UUID, pages: int) -> _Step | None:
    """Pages, their batches and the cursor, in one transaction; None where another dispatcher holds the run."""
    with rt.db.transaction(statement_timeout=runs.COUNT_TIMEOUT, planner=sql.PLAN_PAGES) as tx:
        run = store.lock_run(tx, run_id)
        if run is None or run.state != "running" or run.walked:
            return None
        size = runs.size_of(rt.settings, sweep, store.control(tx, sweep.name), run.options)
        brake = runs.brake_of(rt.settings, sweep, run)  # only where there is one, rows are counted at the opening
        if run.walked_along is Walk.BLOCKS:
            step = _cut_blocks(run, size, pages, guessed=brake is None)
        else:
            step = _cut_index(tx, sweep, run, size, pages, brake)
        store.add_batches(tx, run_id, run.pages, plan.as_json(step.batches))
        cursor = step.batches[-1].hi if step.batches else run.cursor
        store.move_cursor(tx, run_id, cursor, walked=step.walked, pages=len(step.batches), rows=step.rows, size=size)
    return step


def _cut_index(tx: Tx, sweep: Sweep, run: RunRow, size: int, pages: int, brake: int | None) -> _Step:
    wanted = size * pages
    if run.row_limit is not None:
        wanted = min(wanted, run.row_limit - run.rows_dispatched)
    if brake is not None:  # one row more than the share allows, which closes the valve before any of them is touched
        wanted = min(wanted, max(brake + 1 - run.rows_dispatched, 0))
    values = sql.bounds("cursor", run.cursor) | runs.params_of(sweep, run) | {"rows": wanted, "page": size}
    query = sql.page_ends(sweep, has_cursor=run.cursor is not None)
    ends = tx.rows(query, values, PageEnd) if wanted > 0 else []
    rows = ends[-1].n if ends else 0
    over = run.row_limit is not None and run.rows_dispatched + rows >= run.row_limit
    return _Step(plan.index_pages(run.run_id, runs.cutoff_key(run), run.cursor, ends), rows, rows < wanted or over)


def _cut_blocks(run: RunRow, size: int, pages: int, *, guessed: bool) -> _Step:
    end = int(run.walk_end[0]) if run.walk_end else 0
    first = int(run.cursor[0].strip("()").split(",")[0]) if run.cursor else 0
    step = plan.blocks_per_page(size, run.eligible_rows or end, run.table_rows, end, guessed=guessed)
    cut = plan.block_pages(run.run_id, runs.cutoff_key(run), first, step, end, pages)
    return _Step(cut, 0, not cut or first + step * pages >= end)


def _ring_for(rt: Runtime, bell: Bell, run: RunRow, batches: Sequence[NewBatch]) -> bool:
    ids = [batch.batch_id for batch in batches]
    return all(_ring(rt, bell, run, ids[i : i + PER_MESSAGE]) for i in range(0, len(ids), PER_MESSAGE))


def ring_again(rt: Runtime, sweep: Sweep, bell: Bell, run: RunRow, *, at_once: bool) -> None:
    """Due batches with nobody at them: their message was lost, their worker died, or a valve had closed.

    Waits a grace period after the last time, unless the queue is empty or the run has just been let go.
    """
    slots = runs.slots_of(rt.settings, sweep)
    with rt.db.transaction() as tx:
        due = store.ready(tx, run.run_id).due
        idle = slots - store.working_slots(tx, sweep.name, slots)
        rested = run.rung_at is None or tx.now - run.rung_at > rt.settings.sweep_grace
    if due and idle > 0 and (at_once or rested or bell.depth() == 0):
        for _ in range(min(idle, due)):
            if not _ring(rt, bell, run, ()):
                break


def _ring(rt: Runtime, bell: Bell, run: RunRow, ids: Sequence[UUID]) -> bool:
    try:
        bell.ring(run.run_id, ids)
    except BrokerError as error:
        rt.events.emit("broker.failed", task="sweep_batches", error=str(error))
        return False
    if not ids:
        with rt.db.transaction(asynchronous=True) as tx:
            store.note_ring(tx, run.run_id)
    return True
