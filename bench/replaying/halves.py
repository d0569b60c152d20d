"""The two halves, each through a broker and the same two worker processes, each on a fresh copy."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg

from bench.house import wait_for
from bench.pipeline import bell, finish, warm
from bench.replaying.prepared import ATTEMPTS, DUE, LETTERS
from bench.replaying.stage import Stage
from bench.sending.job import PAYLOAD, WARM
from bench.timing import connected
from bench.workers import Worker
from pushops.deadletters import service
from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import ErrorClass
from pushops.deadletters.service import Options
from pushops.ops import Ops
from pushops.runtime import open_runtime, runtime
from pushops.settings import load_settings

LIMIT: Final = 600  # seconds until what does not end is an error
FASTEST: Final = 1_000_000  # messages a second: as good as no limit
UNPACED: Final[dict[str, object]] = {"provider_rate": FASTEST}
AT_ONCE: Final = Options(rate=FASTEST, ramp=timedelta())

_OPEN: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM pushops.push_dispatch WHERE state = 'due')
    OR EXISTS (SELECT FROM pushops.push_dispatch WHERE state = 'claimed')"""
_ENDS: Final[LiteralString] = """
SELECT coalesce(outcome, state), attempts, count(*) FROM pushops.push_dispatch GROUP BY 1, 2"""
_LETTERS: Final[LiteralString] = """
SELECT replay_state, close_reason, attempt_count, count(*) FROM pushops.push_dlq GROUP BY 1, 2, 3"""
_RUN: Final[LiteralString] = "SELECT state, outcomes FROM pushops.sweep_run WHERE run_id = %s"


def acquaint(stage: Stage, worker: Worker) -> None:
    """Both worker processes have imported, connected to the push service and signed before anything is measured."""
    stage.clone(LETTERS)
    warm(worker)
    with Ops(open_runtime(load_settings())) as ops, connected(stage.house) as conn:
        for number in range(4 * WARM):
            ops.send(PAYLOAD, user=f"user-{number % WARM}", ttl=timedelta(hours=1), actor="bench")
        settled(conn)


def send(stage: Stage, worker: Worker, count: int) -> float:
    """The plain way: everybody is in the ledger; seconds from the doorbell to the last settled row."""
    from pushops import tasks  # noqa: PLC0415  (reads the broker's URL from the environment)

    stage.clone(DUE)
    warm(worker)
    before = stage.web.received()
    with connected(stage.house) as conn:
        started = time.monotonic()
        tasks.send_due.delay()
        settled(conn)
        seconds = time.monotonic() - started
        found = conn.execute(_ENDS).fetchall()
    assert found == [("accepted", 1, count)], f"expected {count} rows accepted at once, got {found}"
    _check(stage, before, count)
    return seconds


def drain(stage: Stage, worker: Worker, count: int) -> float:
    """The replay of all letters: seconds from asking for it to the run's closing."""
    stage.clone(LETTERS)
    warm(worker)
    before = stage.web.received()
    with connected(stage.house) as conn:
        started = time.monotonic()
        run = begin(AT_ONCE, UNPACED)
        finish(stage.house, run)
        seconds = time.monotonic() - started
        ended = conn.execute(_RUN, [run]).fetchone()
        found = conn.execute(_LETTERS).fetchall()
    assert ended == ("done", {"replayed": count}), f"expected {count} letters replayed, got {ended}"
    assert found == [("replayed", "replayed", ATTEMPTS + 1, count)], f"expected them closed, got {found}"
    _check(stage, before, count)
    return seconds


def begin(options: Options, settings: Mapping[str, Any]) -> UUID:
    """Open a drain of all letters and ring for it; its run."""
    with runtime(load_settings(**settings)) as rt:
        found = service.drain(rt, Filter(ErrorClass.EXHAUSTED), options, bell(rt), started_by="bench")
        assert found.run is not None, f"expected a run, got {found}"
        return found.run.run_id


def settled(conn: psycopg.Connection[Any]) -> None:
    """Wait until nothing in the ledger is without an end."""

    def look() -> bool | None:
        row = conn.execute(_OPEN).fetchone()
        return None if row is None or row[0] else True

    wait_for(look, LIMIT, "every row of the ledger to have an end", every=0.02)


def _check(stage: Stage, before: int, count: int) -> None:
    got = stage.web.received() - before
    assert got == count, f"expected the push service to receive {count} messages, got {got}"
