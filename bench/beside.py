"""A purge at its default pace beside live traffic, and what visitors feel of it."""

import time
from dataclasses import dataclass
from typing import Final

from bench.house import House, say
from bench.layout import KEY_ORDER, grow
from bench.live import Sample, Traffic, p99_ms, traffic
from bench.pipeline import ORDER, bell, finish, warm
from bench.timing import connected
from bench.workers import Worker, working
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service

READS: Final = ("by_user", "by_service")
WRITES: Final = ("upsert",)
SETTLE: Final = 3.0  # seconds left out after traffic or a purge begins


@dataclass(frozen=True)
class Beside:
    """Milliseconds at the 99th percentile, idle and purging, and how long the purge was."""

    upsert_idle: float
    upsert_purge: float
    read_idle: float
    read_purge: float
    purge_seconds: float
    rows_per_second: float

    @property
    def ratio(self) -> float:
        """The worse of registrations and reads."""
        return max(self.upsert_purge / self.upsert_idle, self.read_purge / self.read_idle)


def beside(house: House, rows: int, window: float) -> Beside:
    """Idle for a window, purge for at least one where the table has the rows for it, idle again."""
    house.clone(KEY_ORDER)
    with connected(house) as conn:
        grow(conn, rows * 2)
        conn.execute("VACUUM ANALYZE pushops.push_subscription")
        conn.execute("CHECKPOINT")
    house.autovacuum(on=True)
    try:
        with working(house, "pushops.tasks") as worker, traffic(house, rows) as live:
            return _measure(house, worker, live, window)
    finally:
        house.autovacuum(on=False)


def _measure(house: House, worker: Worker, live: Traffic, window: float) -> Beside:
    warm(worker)
    time.sleep(SETTLE)
    begin = time.monotonic()
    time.sleep(window)
    purge = time.monotonic()
    rows = _purge(house)
    end = time.monotonic()
    time.sleep(SETTLE)
    again = time.monotonic()
    time.sleep(window)
    stop = time.monotonic()
    live.stop()
    say(f"live: the purge beside it took {end - purge:.0f} s")
    idle = live.between(begin, purge) + live.between(again, stop)
    return _found(idle, live.between(purge, end), end - purge, rows)


def _purge(house: House) -> int:
    """At the defaults: batch size, pause, slots, everything."""
    with runtime(load_settings()) as rt:
        found = service.dispatch(rt, PURGE_TOMBSTONES, bell(rt), ORDER)
        assert found.run is not None
        assert finish(house, found.run.run_id) == "done"
        return service.show_run(rt, found.run.run_id)[1].rows_done


def _found(idle: list[Sample], busy: list[Sample], seconds: float, rows: int) -> Beside:
    return Beside(
        p99_ms(idle, WRITES),
        p99_ms(busy, WRITES),
        p99_ms(idle, READS),
        p99_ms(busy, READS),
        seconds,
        rows / seconds,
    )
