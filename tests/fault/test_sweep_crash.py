"""Processes killed in the middle: of a dispatcher's steps, and of a worker's transaction (F07, F09)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from pushops.errors import LockTimeoutError
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.settings import Settings
from pushops.subscriptions.reading import stats
from pushops.sweeps import runs
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.service import cancel_run
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
    run_of,
    scalar,
    wait_at_gate,
)
from tests.sweeping import ROOT, as_environment, expire_leases, wait_until

TEST = Order(started_by="test")
BOTH = pytest.mark.parametrize("walk", ["index", pytest.param("blocks", marks=pytest.mark.long)])
UNFOLDED: Final = {PURGE_TOMBSTONES.name: replace(PURGE_TOMBSTONES, fold=None)}  # counters that wait to be folded
BLOCKED: Final = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
SLOW_FOLD: Final = """
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE TRIGGER dawdle AFTER INSERT ON subscription_ended FOR EACH STATEMENT EXECUTE FUNCTION dawdle()"""
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)
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


def test_two_batches_that_count_on_the_same_day_do_not_wait_for_each_other(settings: Settings, pg: Conn) -> None:
    """One stands in the middle of its transaction, its counters written; the other goes by, and both are folded."""
    add_tombstones(pg, 40)
    close_gate(pg, "AFTER INSERT", "subscription_ended_batch")
    with opened(settings, sweep_batch_rows=20) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            assert work(rt, SWEEPS, run.run_id).batches == 1
            assert batch_states(pg, run.run_id) == {"done": 1, "claimed": 1}
            open_gate(pg)
        after = run_of(rt, run.run_id)
    assert (after.state, after.why) == ("done", None)
    assert receipts(pg, run.run_id) == (40, 0)
    assert scalar(pg, "SELECT max(attempts) FROM sweep_batch") == 1
    assert_folded(pg, 40)


@pytest.fixture
def fold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little waits to be folded."""
    monkeypatch.setattr(runs, "FOLD_FROM", 1)


@pytest.mark.usefixtures("fold_at_once")
def test_two_folds_at_once_lose_nothing_and_count_nothing_twice(settings: Settings, pg: Conn) -> None:
    """The second waits for the first, finds its counters gone, and adds to the same days what came since."""
    add_tombstones(pg, 60)
    with opened(settings, sweep_batch_rows=20, lock_timeout=timedelta(seconds=20)) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        for _ in range(2):
            work(rt, UNFOLDED, run.run_id, shift=timedelta(0))
        close_gate(pg, "AFTER INSERT", "subscription_ended")
        with in_background(lambda: runs.fold(rt, PURGE_TOMBSTONES)):
            wait_at_gate(pg)
            work(rt, UNFOLDED, run.run_id, shift=timedelta(0))
            with in_background(lambda: runs.fold(rt, PURGE_TOMBSTONES)):
                wait_until(lambda: scalar(pg, BLOCKED) == 1, expected="the second fold to wait")
                open_gate(pg)
    assert receipts(pg, run.run_id) == (60, 0)
    assert_folded(pg, 60)


@pytest.mark.usefixtures("fold_at_once")
def test_a_fold_that_cannot_get_its_lock_is_made_good_by_the_next(settings: Settings, pg: Conn) -> None:
    """A shift goes on without it; the run itself stays open until its last counters are folded."""
    add_tombstones(pg, 60)
    with opened(settings, sweep_batch_rows=20, lock_timeout=timedelta(milliseconds=100)) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, UNFOLDED, run.run_id, shift=timedelta(0))
        close_gate(pg, "AFTER INSERT", "subscription_ended")
        with in_background(lambda: runs.fold(rt, PURGE_TOMBSTONES)):
            wait_at_gate(pg)
            assert work(rt, SWEEPS, run.run_id, shift=timedelta(0)).batches == 1
            with pytest.raises(LockTimeoutError):
                work(rt, SWEEPS, run.run_id, shift=timedelta(0))
            assert run_of(rt, run.run_id).state == "running"
            open_gate(pg)
        assert scalar(pg, "SELECT count(*) FROM subscription_ended_batch") == 2
        after = drive(rt, PURGE_TOMBSTONES)
    assert (after.run_id, after.state) == (run.run_id, "done")
    assert receipts(pg, run.run_id) == (60, 0)
    assert_folded(pg, 60)


@pytest.mark.usefixtures("fold_at_once")
def test_a_fold_that_outlasts_the_statement_timeout_is_not_cut_off(settings: Settings, pg: Conn) -> None:
    """One that failed would leave more for the next, and a run would never end."""
    add_tombstones(pg, 40)
    pg.execute(SLOW_FOLD)
    limit = timedelta(milliseconds=200)
    with opened(settings, sweep_batch_rows=20, statement_timeout=limit) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        assert work(rt, SWEEPS, run.run_id, shift=timedelta(0)).batches == 1
        assert_folded(pg, 20)
        work(rt, SWEEPS, run.run_id)
        assert run_of(rt, run.run_id).state == "done"
    assert_folded(pg, 40)


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
def test_what_a_run_that_did_not_end_well_had_counted_is_folded_by_the_next(
    end: str, settings: Settings, pg: Conn
) -> None:
    """Even by one that finds no row; until then the figures count it all the same."""
    add_tombstones(pg, 40)
    later = {"tombstone_retention": timedelta(days=99)} if end == "stopped" else {}
    with opened(settings, sweep_batch_rows=20) as rt, opened(settings, **later) as then:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, UNFOLDED, run.run_id, shift=timedelta(0))
        if end == "cancelled":
            cancel_run(rt, run.run_id, actor="test", why="test")
        else:
            dispatch(then, PURGE_TOMBSTONES, None, TEST)
        assert run_of(rt, run.run_id).state == end
        assert len(ids(pg)) == 20
        assert scalar(pg, "SELECT count(*) FROM subscription_ended") == 0
        assert sum(day.purged.total() for day in stats(rt, LONG_AGO, run.opened_at)) == 20
        pg.execute("DELETE FROM push_subscription")
        again = drive(then, PURGE_TOMBSTONES)
    assert again.run_id != run.run_id
    assert (again.state, receipts(pg, again.run_id)) == ("done", (0, 0))
    assert_folded(pg, 20)


def assert_folded(pg: Conn, rows: int) -> None:
    assert scalar(pg, "SELECT count(*) FROM subscription_ended_batch") == 0
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == rows
