"""A drain at a tenth of a stated capacity beside live messages: whether it keeps its pace, and what they feel of it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg

from bench.house import say
from bench.pipeline import LIMIT, finished, warm
from bench.replaying import halves
from bench.replaying.live import Due, p99_between, sending
from bench.replaying.prepared import LETTERS
from bench.replaying.stage import Stage
from bench.timing import connected
from bench.workers import working
from pushops.deadletters.service import Options
from pushops.errors import RefusedError
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service

CAPACITY: Final = 1_000  # messages a second, stated
SHARE: Final = 0.1
PACE: Final = CAPACITY * SHARE
SETTINGS: Final[dict[str, object]] = {"provider_rate": CAPACITY, "replay_share": SHARE}
# As docs/dead-letters.md has it: one more than live messages need, since a drain at this pace takes one now and then.
PROCESSES: Final = 3
RAMP: Final = 1.0  # seconds; how a pace grows is no part of what is measured
SETTLE: Final = 2.0  # seconds left out before each window

_REPLAYED: Final[LiteralString] = """
SELECT count(*) FROM pushops.push_dlq
 WHERE replay_state = 'replayed' AND closed_at >= to_timestamp(%s) AND closed_at < to_timestamp(%s)"""
_LEFT: Final[LiteralString] = "SELECT replay_state, count(*) FROM pushops.push_dlq GROUP BY 1"

Window = tuple[float, float]  # of the wall clock, which is the database's too


@dataclass(frozen=True)
class Pair:
    """Milliseconds at the 99th percentile of live messages without a drain and beside it; letters a second of it."""

    idle_ms: float
    busy_ms: float
    pace: float

    @property
    def ratio(self) -> float:
        return self.busy_ms / self.idle_ms

    @property
    def off(self) -> float:
        """The share by which the pace missed its target."""
        return abs(self.pace / PACE - 1)


@dataclass(frozen=True)
class Paced:
    """All pairs; ``window`` is the length of each of their windows in seconds."""

    pairs: Sequence[Pair]
    window: float

    @property
    def pace_error(self) -> float:
        """Of the worst window."""
        return max(pair.off for pair in self.pairs)

    @property
    def ratio(self) -> float:
        return median(pair.ratio for pair in self.pairs)

    def told(self) -> dict[str, Any]:
        """What stands behind both, for the report."""
        return {
            "window": self.window,
            "processes": PROCESSES,
            "target": PACE,
            "paces": [round(pair.pace, 1) for pair in self.pairs],
            "idle_p99_ms": [round(pair.idle_ms, 1) for pair in self.pairs],
            "busy_p99_ms": [round(pair.busy_ms, 1) for pair in self.pairs],
            "ratios": [round(pair.ratio, 3) for pair in self.pairs],
        }


def paced(stage: Stage, window: float, pairs: int) -> Paced:
    """So many pairs of windows, in turns on one copy, with vacuum at work as it is anywhere."""
    stage.house.autovacuum(on=True)
    try:
        with working(stage.house, "pushops.tasks", PROCESSES, **stage.settings | SETTINGS) as worker:
            halves.acquaint(stage, worker)
            stage.clone(LETTERS)
            warm(worker)
            return Paced(_pairs(stage, window, pairs), window)
    finally:
        stage.house.autovacuum(on=False)


def _pairs(stage: Stage, window: float, pairs: int) -> list[Pair]:
    before = stage.web.received()
    with connected(stage.house) as conn, sending(stage, **SETTINGS) as live:
        time.sleep(SETTLE)
        windows = [(_idle(window), _busy(stage, window)) for _ in range(pairs)]
        live.stop()
        halves.settled(conn)
        _check(stage, conn, before, len(live.sent) + 1)
        found = [_pair(conn, live.sent, *each) for each in windows]
    for pair in found:
        say(f"live p99 {pair.idle_ms:.0f} ms, beside a drain {pair.busy_ms:.0f} ms; {pair.pace:.1f} letters/s")
    return found


def _idle(window: float) -> Window:
    time.sleep(SETTLE)
    return _pass(window)


def _busy(stage: Stage, window: float) -> Window:
    run = halves.begin(Options(ramp=timedelta(seconds=RAMP)), SETTINGS)
    time.sleep(RAMP + SETTLE)
    found = _pass(window)
    _call_off(stage, run)
    return found


def _pass(window: float) -> Window:
    started = time.time()
    time.sleep(window)
    return started, started + window


def _call_off(stage: Stage, run: UUID) -> None:
    with runtime(load_settings()) as rt, suppress(RefusedError):  # closed in this moment
        service.cancel_run(rt, run, actor="bench", why="the window is over")
    assert finished(stage.house, run, within=LIMIT), "expected the drain to end when it was called off"


def _pair(conn: psycopg.Connection[Any], sent: Sequence[Due], idle: Window, busy: Window) -> Pair:
    row = conn.execute(_REPLAYED, busy).fetchone()
    assert row is not None
    length = busy[1] - busy[0]
    return Pair(p99_between(conn, sent, *idle), p99_between(conn, sent, *busy), row[0] / length)


def _check(stage: Stage, conn: psycopg.Connection[Any], before: int, live: int) -> None:
    """The push service got every live message and every letter that is told as sent, and nothing else."""
    states = dict(conn.execute(_LEFT).fetchall())
    assert states.keys() <= {"parked", "replayed"}, f"expected letters parked or replayed, got {states}"
    assert states.get("parked"), "expected letters to be left over when the last window ended"
    got, meant = stage.web.received() - before, live + states.get("replayed", 0)
    assert got == meant, f"expected the push service to receive {meant} messages, got {got}"
