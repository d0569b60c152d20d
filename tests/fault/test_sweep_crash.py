"""Processes killed in the middle: of a dispatcher's steps, and of a worker's transaction (F07, F09)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.work import work
from tests.sweepdb import (
    Conn,
    add_tombstones,
    batch_states,
    close_gate,
    drive,
    ids,
    in_background,
    open_gate,
    opened,
    receipts,
    scalar,
    wait_at_gate,
)
from tests.sweeping import ROOT, as_environment, expire_leases, wait_until

TEST = Order(started_by="test")
BOTH = pytest.mark.parametrize("walk", ["index", "blocks"])
QUICK = {"sweep_pause_ms": 0, "sweep_batch_rows": 10, "sweep_max_share": 1.0}

# A dispatcher that is killed when it would ring for its third step's pages: they are committed, nobody knows.
DISPATCHER = """
import os, signal
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import runtime
from pushops.sweeps.dispatch import Bell, Order, dispatch
rung = []
def ring(run_id, batches):
    rung.append(batches)
    if len(rung) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
with runtime() as rt:
    dispatch(rt, PURGE_TOMBSTONES, Bell(ring, lambda: 0), Order(started_by="child"))
"""
WORKER = """
import sys
from uuid import UUID
from pushops.retention.policies import SWEEPS
from pushops.runtime import runtime
from pushops.sweeps.work import work
with runtime() as rt:
    work(rt, SWEEPS, UUID(sys.argv[1]))
"""


@contextmanager
def child(script: str, settings: Settings, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process with the same settings, killed at the end of the block at the latest."""
    environment = {**os.environ, **as_environment(settings), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@BOTH
def test_a_dispatcher_killed_after_a_commit_is_followed_by_another_without_gap_or_overlap(
    walk: str, settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 400)
    quick = settings.model_copy(update=QUICK | {"sweep_walk": walk})
    with child(DISPATCHER, quick) as process:
        assert process.wait(20) == -signal.SIGKILL
    before = ids(pg, "sweep_batch", "batch_id")
    assert len(before) >= 3
    assert scalar(pg, "SELECT NOT walked FROM sweep_run")
    with opened(quick, sweep_walk=walk, sweep_batch_rows=10) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    assert (run.state, run.started_by) == ("done", "child")
    assert before < ids(pg, "sweep_batch", "batch_id")
    assert not ids(pg)
    assert receipts(pg, run.run_id) == (400, 0)
    if walk == "index":
        assert scalar(pg, "SELECT count(*) FROM sweep_batch WHERE expected <> 10") == 0
        assert len(ids(pg, "sweep_batch", "batch_id")) == 40


@BOTH
def test_a_worker_killed_in_mid_transaction_leaves_nothing_behind_but_its_attempt(
    walk: str, settings: Settings, pg: Conn
) -> None:
    made = add_tombstones(pg, 50)
    quick = settings.model_copy(update=QUICK | {"sweep_walk": walk})
    close_gate(pg)
    with opened(quick, sweep_walk=walk, sweep_batch_rows=10) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        with child(WORKER, quick, str(run.run_id)) as process:
            wait_at_gate(pg)
            process.kill()
            process.wait()
        open_gate(pg)
        others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pushops' AND xact_start IS NOT NULL"
        wait_until(lambda: scalar(pg, others) == 0, expected="the dead worker's transaction to be rolled back")
        assert ids(pg) == set(made)
        assert batch_states(pg, run.run_id)["claimed"] == 1
        assert scalar(pg, "SELECT count(*) FROM subscription_ended_daily") == 0
        expire_leases(pg)
        run = drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)
    assert receipts(pg, run.run_id) == (50, 0)
    assert scalar(pg, "SELECT max(attempts) FROM sweep_batch") == 2
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == 50


def test_two_workers_that_want_the_same_counter_wait_briefly_and_lose_nothing(settings: Settings, pg: Conn) -> None:
    """The second gives up at its lock timeout, comes back, and every row is folded once."""
    add_tombstones(pg, 40)
    close_gate(pg, "AFTER INSERT", "subscription_ended_daily")
    with opened(settings, sweep_batch_rows=20) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            work(rt, SWEEPS, run.run_id)
            assert scalar(pg, "SELECT last_error FROM sweep_batch WHERE state = 'due'").startswith("55P03")
            open_gate(pg)
        after = drive(rt, PURGE_TOMBSTONES)
    assert (after.state, after.why) == ("done", None)
    assert receipts(pg, run.run_id) == (40, 0)
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == 40
