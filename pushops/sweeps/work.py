"""A worker's shift: it takes a slot of a run, then batch after batch for about a second."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID, uuid4

from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.sweeps import gauge, runs, store, valves
from pushops.sweeps.batch import claim, execute
from pushops.sweeps.shift import Shift
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
    """What a shift did; ``ring_after`` when another message should follow, ``more_pages`` when pages run low.

    ``next_run`` is whose message that is: of several runs of a sweep, one that waits for a slot comes first.
    """

    outcome: Outcome
    batches: int = 0
    ring_after: timedelta | None = None
    more_pages: bool = False
    reading: Reading | None = None
    next_run: UUID | None = None


def work(
    rt: Runtime, catalog: Mapping[str, Sweep], run_id: UUID, ids: Sequence[UUID] = (), *, shift: timedelta = SHIFT
) -> Worked:
    """Do the named batches of a run, then whatever else of it is ready, until the shift is over.

    A batch that has its receipt is left alone and told apart from one in which nothing matched.
    """
    with rt.db.transaction() as tx:
        run = store.run(tx, run_id)
        done = store.applied(tx, list(ids)) if ids else set()
    try:
        sweep = catalog.get(run.sweep) if run else None
    except RefusedError as error:  # a table of somebody's own that cannot be walked any more
        return _held_by_setup(rt, run, str(error))
    if run is None or sweep is None:
        rt.events.emit("sweep.unknown_id", task="sweep_batches", reason="unknown run")
        return Worked(Outcome.UNKNOWN_RUN)
    for batch in done:
        rt.events.emit("sweep.batch", sweep=run.sweep, run=run_id, batch=batch, outcome="already_applied")
    if ids and len(done) == len(set(ids)):
        return Worked(Outcome.ALREADY_APPLIED)
    if run.closed_at is not None:
        return Worked(Outcome.NOTHING_DUE)
    return _with_slot(rt, sweep, run, [i for i in ids if i not in done], shift)


def _held_by_setup(rt: Runtime, run: RunRow | None, why: str) -> Worked:
    reading = valves.hold("setup", why)
    if run is not None and run.closed_at is None:
        runs.hold(rt, run, reading)
    return Worked(Outcome.HELD, reading=reading)


def _with_slot(rt: Runtime, sweep: Sweep, run: RunRow, ids: list[UUID], length: timedelta) -> Worked:
    holder = uuid4()
    if not _take_slot(rt, sweep, holder):
        return Worked(Outcome.NO_SLOT)
    try:
        with rt.db.transaction() as tx:
            held = Held(store.held_identities(tx, sweep.name), store.held_pages(tx, sweep.name))
        # Who acts holds no connection meanwhile: the act asks the pool for others.
        with nullcontext() if sweep.acting else rt.db.borrowed() as conn:
            done = _loop(Shift(rt, sweep, run, held, holder, conn), ids, length)
        return _hand_over(rt, sweep, run, _look_ahead(rt, sweep, run, done))
    finally:
        pause = runs.pause_of(rt.settings, sweep)
        with rt.db.transaction(asynchronous=True) as tx:
            store.free_slot(tx, sweep.name, holder, pause)


def _take_slot(rt: Runtime, sweep: Sweep, holder: UUID) -> bool:
    """A slot now, or as soon as one that only rests is free; not one that somebody works in."""
    slots, lease = runs.slots_of(rt.settings, sweep), runs.lease_of(rt.settings, sweep)
    deadline = time.monotonic() + READING_GOOD_FOR.total_seconds()
    while True:
        with rt.db.transaction(asynchronous=True) as tx:
            if store.take_slot(tx, sweep.name, slots, holder, lease) is not None:
                return True
            wait = store.rest(tx, sweep.name, slots)
        if wait is None or time.monotonic() + wait > deadline:
            return False
        time.sleep(max(wait, 0.001))


@dataclass(frozen=True)
class _Done:
    """What the loop did: ``idle`` where it found nothing to claim, ``closed`` where a valve ended it.

    ``rest``: an act asked for so much time; whatever else is due had better wait as well.
    """

    batches: int
    idle: bool = False
    closed: Reading | None = None
    rest: timedelta | None = None


def _loop(shift: Shift, ids: list[UUID], length: timedelta) -> _Done:
    deadline = time.monotonic() + length.total_seconds()
    batches, read_at = 0, float("-inf")
    while True:
        if time.monotonic() - read_at >= READING_GOOD_FOR.total_seconds():
            closed = valves.first_closed(gauge.read(shift.rt, shift.sweep, shift.run, on=shift.own))
            read_at = time.monotonic()
            if closed is not None:
                return _Done(batches, closed=closed)
        found = (claim(shift, ids) if ids else None) or claim(shift, None)
        if found is None:
            return _Done(batches, idle=True)
        go_on = execute(shift, *found)
        batches += 1
        if not go_on or time.monotonic() + shift.pause.total_seconds() >= deadline:
            return _Done(batches, rest=shift.rests[-1] if shift.rests else None)
        if shift.pause:
            time.sleep(shift.pause.total_seconds())


def _look_ahead(rt: Runtime, sweep: Sweep, run: RunRow, done: _Done) -> Worked:
    """After the loop, with its connection given back: fold, conclude, and say who should come next."""
    if done.closed is not None:
        runs.hold(rt, run, done.closed)
        return Worked(Outcome.HELD, done.batches, reading=done.closed)
    runs.fold(rt, sweep)
    left = _left(rt, run)
    if done.idle or not left.due or sweep.acting:  # what was asked during an act is done after it
        runs.conclude(rt, sweep, run.run_id)
        left = _left(rt, run)
    return _what_next(rt, run, done, left)


def _hand_over(rt: Runtime, sweep: Sweep, run: RunRow, worked: Worked) -> Worked:
    """Runs with different filters share the slots: who leaves one rings for the run that found none."""
    if sweep.filtered is None:
        return worked
    with rt.db.transaction() as tx:
        waiting = store.waiting_run(tx, sweep.name, run.run_id)
    return worked if waiting is None else replace(worked, ring_after=timedelta(), next_run=waiting)


def _left(rt: Runtime, run: RunRow) -> Ready:
    with rt.db.transaction() as tx:
        return store.ready(tx, run.run_id)


def _what_next(rt: Runtime, run: RunRow, done: _Done, left: Ready) -> Worked:
    with rt.db.transaction() as tx:
        after = store.run(tx, run.run_id)
        wait = left.next_due_at - tx.now if left.next_due_at else None
    running = after is not None and after.state == "running" and after.held_by != "setup"
    more = running and after is not None and not after.walked and left.due < rt.settings.sweep_low_water
    wait = timedelta() if left.due else wait
    if done.rest is not None:
        wait = done.rest if wait is None else max(wait, done.rest)
    ring = wait if wait is not None and wait <= SOON else None
    outcome = Outcome.WORKED if done.batches else Outcome.NOTHING_DUE
    return Worked(outcome, done.batches, ring if running else None, more)
