"""A run in this process, with no broker: what OS cron or a Kubernetes CronJob calls. And following one of others."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Final, TypeAlias
from uuid import UUID

from pushops.runtime import Runtime
from pushops.sweeps import store
from pushops.sweeps.dispatch import dispatch
from pushops.sweeps.order import Order
from pushops.sweeps.store import Progress, RunRow
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import READING_GOOD_FOR, Outcome, Worked, work

Told: TypeAlias = Callable[[RunRow, Progress], None]

LOOK: Final = timedelta(milliseconds=500)  # between two looks at a run that others work on, or that waits
# Waiting opens none of these: somebody must speak, another tick grant, or another run take this one's place.
NEVER_BY_WAITING: Final = frozenset({"retention", "settings", "setup", "share", "budget"})
# Lag stops the run by itself at the same limit, in database time; its reason must get there first.
MARGIN: Final = timedelta(seconds=2)
# Beat grants another slot every five minutes; a budget that stays spent for longer has nobody to grant it.
TENDED_WITHIN: Final = timedelta(minutes=6)


@dataclass
class Stop:
    """What SIGINT and SIGTERM ask for. A plain flag: an Event's lock could be held where the handler runs."""

    asked: bool = False

    def wait(self, length: timedelta) -> None:
        if not self.asked:
            time.sleep(length.total_seconds())


@dataclass
class Patience:
    """How long a run may be held before nobody waits for it any longer; per valve, since each has its own reason."""

    limits: Mapping[str, timedelta]
    usual: timedelta
    held_by: str | None = None
    since: float = 0.0

    def bears(self, run: RunRow) -> bool:
        found = held_by(run)
        if found != self.held_by:
            self.held_by, self.since = found, time.monotonic()
        if found is None:
            return True
        return time.monotonic() - self.since < self.limits.get(found, self.usual).total_seconds()


def held_by(run: RunRow) -> str | None:
    """What keeps an open run from going on: a valve's name or ``operator``; None where nothing does."""
    if run.closed_at is not None:
        return None
    return "operator" if run.state in ("pausing", "paused") else run.held_by


def run_inline(rt: Runtime, catalog: Mapping[str, Sweep], sweep: Sweep, order: Order, progress: Told) -> RunRow:
    """Open the sweep's run or join it, and do its batches here until it is closed, held, interrupted or out of time.

    Returns the run as it then stands: still open where a valve did not open within PUSHOPS_SWEEP_MAX_LAG_GIVE_UP,
    where its budget is spent, or after SIGINT or SIGTERM (the batch in hand is finished; the next call goes on).
    Workers of a broker may work on the same run.
    """
    give_up = rt.settings.sweep_max_lag_give_up
    patience = Patience({**dict.fromkeys(NEVER_BY_WAITING, timedelta()), "lag": give_up + MARGIN}, give_up)
    with stoppable() as stop:
        run_id = _open(rt, sweep, order, stop)
        again = replace(order, opening=False, granting=False)
        while True:
            run = _tell(rt, run_id, progress)
            if run.closed_at is not None or stop.asked or not patience.bears(run):
                return run
            _turn(rt, catalog, sweep, run, again, stop)


def watch(
    rt: Runtime, run_id: UUID, progress: Told, deadline: timedelta | None = None, *, give_up: timedelta | None = None
) -> RunRow:
    """Follow a run that others do, until it is closed, ``deadline`` has passed or SIGINT comes.

    With ``give_up`` also until it was held for so long: for callers that must end.
    """
    patience = Patience({"share": timedelta(), "budget": TENDED_WITHIN}, give_up or timedelta.max)
    until = time.monotonic() + deadline.total_seconds() if deadline is not None else float("inf")
    with stoppable() as stop:
        while True:
            run = _tell(rt, run_id, progress)
            waits = give_up is None or patience.bears(run)
            if run.closed_at is not None or stop.asked or not waits or time.monotonic() >= until:
                return run
            stop.wait(LOOK)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """The first SIGINT or SIGTERM asks, a second one interrupts. Only the main thread may listen to them."""
    stop = Stop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(rt: Runtime, sweep: Sweep, order: Order, stop: Stop) -> UUID:
    """The id of the run; while another dispatcher holds it, its row cannot be locked, and is looked for again."""
    while True:
        found = dispatch(rt, sweep, None, order).run
        if found is not None:
            return found.run_id
        with rt.db.transaction() as tx:
            held = store.open_run_of(tx, sweep.name, order.filter)
        if held is not None:
            return held.run_id
        stop.wait(LOOK)


def _turn(rt: Runtime, catalog: Mapping[str, Sweep], sweep: Sweep, run: RunRow, again: Order, stop: Stop) -> None:
    """A shift; then the next pages, and a look at the valves, wherever the shift did not simply stop in the middle."""
    worked = work(rt, catalog, run.run_id)
    if held_by(run) is None and _in_the_middle(worked):
        return
    dispatch(rt, sweep, None, again)
    if not worked.batches or worked.ring_after:
        stop.wait(READING_GOOD_FOR if worked.outcome is Outcome.HELD else min(worked.ring_after or LOOK, LOOK))


def _in_the_middle(worked: Worked) -> bool:
    return worked.batches > 0 and worked.ring_after == timedelta() and not worked.more_pages


def _tell(rt: Runtime, run_id: UUID, progress: Told) -> RunRow:
    with rt.db.transaction() as tx:
        run, done = store.run(tx, run_id), store.progress(tx, run_id)
    if run is None:
        raise LookupError("expected the run to be there while it is followed, got none")
    progress(run, done)
    return run
