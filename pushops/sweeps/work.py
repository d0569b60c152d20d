"""A worker's shift: it takes a slot of a run, then batch after batch for about a second."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID, uuid4

from pushops.runtime import Runtime
from pushops.sweeps import gauge, runs, store, valves
from pushops.sweeps.batch import Shift, claim, execute
from pushops.sweeps.sql import Held
from pushops.sweeps.store import Ready, RunRow
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.valves import Reading

SHIFT: Final = timedelta(seconds=1)  # a message costs 3 to 4 ms of CPU: one that works for a second costs nothing
READING_GOOD_FOR: Final = timedelta(seconds=1)
SOON: Final = timedelta(seconds=3)  # the longest wait that the broker holds; longer ones are found by the tending


class Outcome(StrEnum):
    WORKED = "worked"
    NOTHING_DUE = "nothing_due"
    ALREADY_APPLIED = "already_applied"
    NO_SLOT = "no_slot"
    HELD = "held"
    UNKNOWN_RUN = "unknown_run"


@dataclass(frozen=True)
class Worked:
    """What a shift did; ``ring_after`` when another message should follow, ``more_pages`` when pages run low."""

    outcome: Outcome
    batches: int = 0
    ring_after: timedelta | None = None
    more_pages: bool = False
    reading: Reading | None = None


def work(
    rt: Runtime, catalog: Mapping[str, Sweep], run_id: UUID, ids: Sequence[UUID] = (), *, shift: timedelta = SHIFT
) -> Worked:
    """Do the named batches of a run, then whatever else of it is ready, until the shift is over.

    A batch that has its receipt is left alone and told apart from one in which nothing matched.
    """
    with rt.db.transaction() as tx:
        run = store.run(tx, run_id)
        done = store.applied(tx, list(ids)) if ids else set()
    sweep = catalog.get(run.sweep) if run else None
    if run is None or sweep is None:
        rt.events.emit("sweep.unknown_id", task="work", reason="unknown run")
        return Worked(Outcome.UNKNOWN_RUN)
    for batch in done:
        rt.events.emit("sweep.batch", sweep=run.sweep, run=run_id, batch=batch, outcome="already_applied")
    if ids and len(done) == len(set(ids)):
        return Worked(Outcome.ALREADY_APPLIED)
    if run.closed_at is not None:
        return Worked(Outcome.NOTHING_DUE)
    return _with_slot(rt, sweep, run, [i for i in ids if i not in done], shift)


def _with_slot(rt: Runtime, sweep: Sweep, run: RunRow, ids: list[UUID], length: timedelta) -> Worked:
    holder = uuid4()
    if not _take_slot(rt, sweep, holder):
        return Worked(Outcome.NO_SLOT)
    try:
        with rt.db.transaction() as tx:
            held = Held(store.held_identities(tx, sweep.name), store.held_pages(tx, sweep.name))
        with rt.db.borrowed() as conn:
            return _loop(Shift(rt, sweep, run, held, holder, conn), ids, length)
    finally:
        pause = timedelta(milliseconds=rt.settings.sweep_pause_ms)
        with rt.db.transaction(asynchronous=True) as tx:
            store.free_slot(tx, sweep.name, holder, pause)


def _take_slot(rt: Runtime, sweep: Sweep, holder: UUID) -> bool:
    """A slot now, or as soon as one that only rests is free; not one that somebody works in."""
    slots, lease = runs.slots_of(rt.settings, sweep), rt.settings.sweep_lease
    deadline = time.monotonic() + READING_GOOD_FOR.total_seconds()
    while True:
        with rt.db.transaction(asynchronous=True) as tx:
            if store.take_slot(tx, sweep.name, slots, holder, lease) is not None:
                return True
            wait = store.rest(tx, sweep.name, slots)
        if wait is None or time.monotonic() + wait > deadline:
            return False
        time.sleep(max(wait, 0.001))


def _loop(shift: Shift, ids: list[UUID], length: timedelta) -> Worked:
    deadline = time.monotonic() + length.total_seconds()
    batches, read_at = 0, float("-inf")
    while True:
        if time.monotonic() - read_at >= READING_GOOD_FOR.total_seconds():
            closed = valves.first_closed(gauge.read(shift.rt, shift.sweep, shift.run))
            read_at = time.monotonic()
            if closed is not None:
                runs.hold(shift.rt, shift.run, closed)
                return Worked(Outcome.HELD, batches, reading=closed)
        found = (claim(shift, ids) if ids else None) or claim(shift, None)
        if found is None:
            return _nothing_due(shift, batches)
        execute(shift, *found)
        batches += 1
        if _lost(shift) or time.monotonic() + shift.pause.total_seconds() >= deadline:
            return _over(shift, batches)
        if shift.pause:
            time.sleep(shift.pause.total_seconds())


def _lost(shift: Shift) -> bool:
    return shift.conn is not None and shift.conn.closed


def _over(shift: Shift, batches: int) -> Worked:
    runs.fold(shift.rt, shift.sweep)
    with shift.rt.db.transaction() as tx:
        left = store.ready(tx, shift.run.run_id)
    return _what_next(shift, batches, left) if left.due else _nothing_due(shift, batches)


def _nothing_due(shift: Shift, batches: int) -> Worked:
    """Nothing to claim: perhaps this was the last one, and the run can be concluded."""
    runs.conclude(shift.rt, shift.sweep, shift.run.run_id)
    with shift.rt.db.transaction() as tx:
        left = store.ready(tx, shift.run.run_id)
    return _what_next(shift, batches, left)


def _what_next(shift: Shift, batches: int, left: Ready) -> Worked:
    with shift.rt.db.transaction() as tx:
        run = store.run(tx, shift.run.run_id)
        wait = left.next_due_at - tx.now if left.next_due_at else None
    running = run is not None and run.state == "running"
    more = running and run is not None and not run.walked and left.due < shift.rt.settings.sweep_low_water
    ring = timedelta() if left.due else wait if wait is not None and wait <= SOON else None
    outcome = Outcome.WORKED if batches else Outcome.NOTHING_DUE
    return Worked(outcome, batches, ring if running else None, more)
