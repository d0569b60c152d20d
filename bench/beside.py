"""A purge at its default pace beside live traffic, and what visitors feel of it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench.house import House, say
from bench.layout import KEY_ORDER, grow
from bench.live import Sample, Traffic, p99_ms, traffic
from bench.pipeline import ORDER, bell, finished, warm
from bench.timing import connected
from bench.workers import Worker, working
from pushops.errors import RefusedError
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service

READS: Final = ("by_user", "by_service")
WRITES: Final = ("upsert",)
SETTLE: Final = 3.0  # seconds left out after traffic begins
LIVE: Final = "live"
PAIRS: Final = 3  # so often an idle window and a busy one after it
FASTEST: Final = 90_000  # rows a second that the default pace was seen to reach on an idle machine, and a fifth


@dataclass(frozen=True)
class Pair:
    """Milliseconds at the 99th percentile in an idle window and in the busy one after it."""

    upsert_idle: float
    upsert_purge: float
    read_idle: float
    read_purge: float
    busy_seconds: float
    rows_per_second: float

    @property
    def ratio(self) -> float:
        """The worse of registrations and reads."""
        return max(self.upsert_purge / self.upsert_idle, self.read_purge / self.read_idle)


@dataclass(frozen=True)
class Beside:
    """All pairs; ``window`` is the length in seconds that each busy window had to have."""

    pairs: Sequence[Pair]
    window: float

    @property
    def ratio(self) -> float | None:
        """Median over the pairs; None where a purge ended before its window did."""
        if min(pair.busy_seconds for pair in self.pairs) < self.window:
            return None
        return median(pair.ratio for pair in self.pairs)

    def told(self) -> dict[str, Any]:
        """Medians, and each pair's ratio, for the report."""
        names = ("upsert_idle", "upsert_purge", "read_idle", "read_purge", "busy_seconds", "rows_per_second")
        medians = {name: round(median(getattr(pair, name) for pair in self.pairs), 2) for name in names}
        return medians | {"window": self.window, "ratios": [round(pair.ratio, 3) for pair in self.pairs]}


def beside(house: House, rows: int, window: float) -> Beside:
    """Idle windows and busy ones twice as long in turns, each pair on a fresh copy with a backlog that outlasts it."""
    _prepare(house, rows, round(window * FASTEST))
    house.autovacuum(on=True)
    try:
        with working(house, "pushops.tasks") as worker:
            pairs = [_pair(house, rows, worker, window) for _ in range(PAIRS)]
    finally:
        house.autovacuum(on=False)
    found = Beside(pairs, window)
    if found.ratio is None:
        say(f"live: expected each purge to last {window:g} s, one ended before: no figure")
    return found


def _prepare(house: House, rows: int, backlog: int) -> None:
    """A template with as many tombstones as a window can use up."""
    house.clone(KEY_ORDER)
    with connected(house) as conn:
        grow(conn, max(0, backlog - rows * 4 // 5))
        conn.execute("CHECKPOINT")  # vacuum marks nothing as visible whose asynchronous commit is not flushed yet
        conn.execute("VACUUM ANALYZE pushops.push_subscription")
    house.keep(LIVE)


def _pair(house: House, rows: int, worker: Worker, window: float) -> Pair:
    house.clone(LIVE)
    with connected(house) as conn:
        conn.execute("CHECKPOINT")
    with traffic(house, rows) as live:
        return _measure(house, worker, live, window)


def _measure(house: House, worker: Worker, live: Traffic, window: float) -> Pair:
    warm(worker)
    time.sleep(SETTLE)
    idle = time.monotonic()
    time.sleep(window / 2)
    busy = time.monotonic()
    rows = _purge(house, window)
    end = time.monotonic()
    live.stop()
    found = _found(live.between(idle, busy), live.between(busy, end), end - busy, rows)
    say(f"live: {end - busy:.0f} s of purging, {found.ratio:.2f} times the idle latency")
    return found


def _purge(house: House, window: float) -> int:
    """At the defaults: batch size, pause, slots, everything. Called off when the window is over."""
    with runtime(load_settings()) as rt:
        found = service.dispatch(rt, PURGE_TOMBSTONES, bell(rt), ORDER)
        assert found.run is not None
        if not finished(house, found.run.run_id, within=window):
            with suppress(RefusedError):  # closed in this moment
                service.cancel_run(rt, found.run.run_id, actor="bench", why="the window is over")
        return service.show_run(rt, found.run.run_id)[1].rows_done


def _found(idle: list[Sample], busy: list[Sample], seconds: float, rows: int) -> Pair:
    return Pair(
        p99_ms(idle, WRITES),
        p99_ms(busy, WRITES),
        p99_ms(idle, READS),
        p99_ms(busy, READS),
        seconds,
        rows / seconds,
    )
