"""Valves that close while everything is queued."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from pushops.sweeps import service
from tests.sweeping import (
    assert_purged,
    count,
    finish,
    make_rows,
    publishing,
    queue_length,
    quick,
    run_of,
    start,
    state_of,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long


@contextmanager
def paused(rt: Runtime, _stop: Path) -> Iterator[str]:
    service.pause_sweep(rt, PURGE_TOMBSTONES, actor="operator", why="the database is busy")
    yield "paused by operator: the database is busy"
    service.resume_sweep(rt, PURGE_TOMBSTONES, actor="operator")


@contextmanager
def stop_file(_rt: Runtime, stop: Path) -> Iterator[str]:
    stop.touch()
    yield "the file that PUSHOPS_STOP_FILE names exists"
    stop.unlink()


@pytest.mark.parametrize("valve", [paused, stop_file])
def test_a_valve_that_closes_while_200_batches_are_queued_leaves_them_due_with_no_attempt_counted(
    settings: Settings, pg: psycopg.Connection[Any], valkey_url: str, tmp_path: Path, valve: Any
) -> None:
    """Every message is consumed, none starts a batch; opened again, the tending brings them all back."""
    stop = tmp_path / "stop"
    hurried = quick(settings, valkey_url, sweep_batch_rows=3, stop_file=stop)
    make_rows(pg, 600)
    with publishing(hurried), runtime(hurried) as rt, redis.Redis.from_url(valkey_url) as broker:
        found = start(rt)
        assert found.batches == 200
        assert queue_length(broker) >= 50
        with workers(hurried, 2) as pool:
            with valve(rt, stop) as reason:
                wait_until(lambda: queue_length(broker) == 0, expected="every message consumed")
                pool.wait_for_event("sweep.held", run=run_of(found), reason=reason)
                assert state_of(pg, run_of(found)) == ("running", reason)
                states = "SELECT state, attempts, count(*) FROM sweep_batch GROUP BY 1, 2"
                assert pg.execute(states).fetchall() == [("due", 0, 200)]
            finish(rt, pg, run_of(found))
    assert_purged(pg, run_of(found), rows=600)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1
