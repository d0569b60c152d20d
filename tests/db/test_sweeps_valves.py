"""What tells a run to wait, and what lets it go on: each valve on a real PostgreSQL, at dispatch and at a batch."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pushops.errors import RefusedError
from pushops.retention.policies import PURGE_RECEIPTS, PURGE_TOMBSTONES, SCRUB_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import gauge, probes, service
from pushops.sweeps.dispatch import Dispatched, Order, Outcome, dispatch
from pushops.sweeps.valves import State, first_closed
from pushops.sweeps.work import Outcome as WorkOutcome
from pushops.sweeps.work import Worked, work
from tests.sweepdb import (
    Conn,
    add_live,
    add_tombstones,
    batch_states,
    close_gate,
    drive,
    ids,
    in_background,
    make_role,
    open_gate,
    open_run,
    opened,
    receipts,
    run_of,
    scalar,
    settings_for,
    wait_at_gate,
)

TEST = Order(started_by="test")
DAY = timedelta(days=1)


def look(rt: Runtime, order: Order = TEST) -> Dispatched:
    return dispatch(rt, PURGE_TOMBSTONES, None, order)


def shift(rt: Runtime, found: Dispatched) -> Worked:
    assert found.run is not None
    return work(rt, SWEEPS, found.run.run_id)


def assert_held(rt: Runtime, pg: Conn, found: Dispatched, valve: str, reason: str) -> None:
    """Held at dispatch and at the batch, by the same valve, with the reason on the run row; nothing was tried."""
    assert found.outcome is Outcome.HELD
    assert reason in found.why
    assert found.run is not None
    held = work(rt, SWEEPS, found.run.run_id)
    assert held.outcome is WorkOutcome.HELD
    assert held.reading is not None
    assert held.reading.valve == valve
    run = run_of(rt, found.run.run_id)
    assert (run.state, run.held_by) == ("running", valve)
    assert reason in (run.why or "")
    assert scalar(pg, "SELECT coalesce(sum(attempts), 0) FROM sweep_batch") == 0


# The share brake (F02, F37) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "dead", "held"), [(750, 250, True), (850, 150, False), (800, 200, False), (749, 250, False)]
)
def test_a_large_share_of_a_table_of_a_thousand_rows_or_more_is_not_taken(
    live: int, dead: int, held: bool, settings: Settings, pg: Conn
) -> None:
    add_live(pg, live)
    add_tombstones(pg, dead)
    with opened(settings, sweep_max_share=0.2) as rt:
        if held:
            assert_held(rt, pg, look(rt), "share", f"{dead} of {live + dead} rows, more than 20%")
        else:
            assert drive(rt, PURGE_TOMBSTONES).state == "done"
    assert len(ids(pg)) == live + (dead if held else 0)


def test_force_takes_the_place_of_the_run_that_the_brake_held(settings: Settings, pg: Conn) -> None:
    add_live(pg, 750)
    add_tombstones(pg, 250)
    with opened(settings, sweep_max_share=0.2) as rt:
        held = look(rt).run
        run = drive(rt, PURGE_TOMBSTONES, Order(started_by="test", force=True))
        assert held is not None
        assert (run_of(rt, held.run_id).state, run_of(rt, held.run_id).why) == (
            "stopped",
            "a forced run took its place",
        )
    assert run.run_id != held.run_id
    assert receipts(pg, run.run_id) == (250, 0)


def test_the_setting_lifts_the_brake_of_the_open_run(settings: Settings, pg: Conn) -> None:
    add_live(pg, 750)
    add_tombstones(pg, 250)
    with opened(settings, sweep_max_share=0.2) as rt:
        held = look(rt).run
    with opened(settings, sweep_max_share=0.25) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    assert held is not None
    assert (run.run_id, run.state, run.held_by) == (held.run_id, "done", None)
    assert len(ids(pg)) == 750


def test_raising_the_limit_a_little_does_not_let_nearly_everything_go(settings: Settings, pg: Conn) -> None:
    """The run knows how much it would take, not only that it is more than the old limit."""
    add_live(pg, 400)
    add_tombstones(pg, 1600)
    with opened(settings, sweep_max_share=0.2) as rt:
        assert "1600 of 2000 rows" in look(rt).why
    with opened(settings, sweep_max_share=0.6) as rt:
        assert_held(rt, pg, look(rt), "share", "1600 of 2000 rows, more than 60%")
    assert len(ids(pg)) == 2000


def test_what_cannot_be_counted_in_time_is_unknown_and_holds(
    settings: Settings, pg: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tombstones(pg, 2000)
    pg.execute("ALTER TABLE push_subscription RENAME TO slow_subscription")
    pg.execute(
        """CREATE FUNCTION slow() RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(0.05) IS NOT NULL';
           CREATE VIEW push_subscription AS SELECT * FROM slow_subscription WHERE slow()"""
    )
    monkeypatch.setattr("pushops.sweeps.runs.COUNT_TIMEOUT", timedelta(milliseconds=200))
    with opened(settings, sweep_max_share=0.2) as rt:
        found = look(rt)
    assert found.outcome is Outcome.HELD
    assert "could not be counted in time" in found.why


# Retention ------------------------------------------------------------------------------------------------------------


def test_a_shortened_window_holds_until_somebody_acknowledges_it(settings: Settings, pg: Conn) -> None:
    """F02: the first run after a shorter window takes nothing."""
    with opened(settings) as rt:
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
    add_tombstones(pg, 10, deleted_at="now() - interval '70 days'")
    with opened(settings, tombstone_retention=60 * DAY) as rt:
        found = look(rt)
        assert_held(rt, pg, found, "retention", "window cutoff shortened from 90d to 60d: pushops sweep acknowledge")
        assert len(ids(pg)) == 10
        service.acknowledge(rt, PURGE_TOMBSTONES, actor="test")
        run = drive(rt, PURGE_TOMBSTONES)
    assert found.run is not None
    assert (run.run_id, run.state, run.why) == (found.run.run_id, "done", None)
    assert receipts(pg, run.run_id) == (10, 0)


def test_a_lengthened_window_does_not_hold_and_is_what_the_next_is_compared_with(settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        drive(rt, PURGE_TOMBSTONES)
    add_tombstones(pg, 3)
    with opened(settings, tombstone_retention=120 * DAY) as rt:
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
        assert len(ids(pg)) == 3
    with opened(settings) as rt:
        assert_held(rt, pg, look(rt), "retention", "shortened from 120d to 90d")


def test_settings_that_change_while_a_run_is_open_stop_it(settings: Settings, pg: Conn) -> None:
    """Its cut-off is not what anybody wants now; what it has done stays done, the rest is cancelled."""
    add_tombstones(pg, 20)
    with opened(settings, sweep_batch_rows=5) as rt:
        first = look(rt).run
        assert first is not None
        work(rt, SWEEPS, first.run_id, shift=timedelta(0))
    with opened(settings, tombstone_retention=120 * DAY) as rt:
        second = drive(rt, PURGE_TOMBSTONES)
        stopped = run_of(rt, first.run_id)
        assert work(rt, SWEEPS, first.run_id).batches == 0
    assert (stopped.state, stopped.why) == ("stopped", "the retention settings changed while the run was open")
    assert batch_states(pg, first.run_id) == {"done": 1, "cancelled": 3}
    assert (second.state, receipts(pg, second.run_id)) == ("done", (0, 0))
    assert len(ids(pg)) == 15


# An operator ----------------------------------------------------------------------------------------------------------


def test_a_paused_sweep_holds_with_the_operators_words_until_it_is_resumed(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 5)
    with opened(settings) as rt:
        service.pause_sweep(rt, PURGE_TOMBSTONES, actor="ada", why="migrating")
        assert_held(rt, pg, look(rt), "pause", "paused by ada: migrating")
        assert drive(rt, SCRUB_TOMBSTONES).state == "done"  # the others go on
        assert service.resume_sweep(rt, PURGE_TOMBSTONES, actor="ada")
        assert not service.resume_sweep(rt, PURGE_TOMBSTONES, actor="ada")
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
    assert not ids(pg)


@pytest.fixture
def stop_file(tmp_path: Path) -> Path:
    return tmp_path / "stop"


def test_a_stop_file_holds_every_sweep(settings: Settings, pg: Conn, stop_file: Path) -> None:
    add_tombstones(pg, 5)
    with opened(settings, stop_file=stop_file) as rt:
        stop_file.touch()
        assert_held(rt, pg, look(rt), "stop_file", "PUSHOPS_STOP_FILE")
        assert dispatch(rt, SCRUB_TOMBSTONES, None, TEST).outcome is Outcome.HELD
        stop_file.unlink()
        assert drive(rt, PURGE_TOMBSTONES).state == "done"


def test_a_stop_file_is_seen_without_the_database(settings: Settings, stop_file: Path) -> None:
    with opened(settings, stop_file=stop_file) as rt:
        run = open_run(rt, PURGE_TOMBSTONES)
        rt.db.close()
        without = gauge.read(rt, PURGE_TOMBSTONES, run)
        stop_file.touch()
        with_it = gauge.read(rt, PURGE_TOMBSTONES, run)
    assert [(r.valve, r.state) for r in without] == [("stop_file", State.OPEN), ("database", State.UNKNOWN)]
    closed = first_closed(with_it)
    assert closed is not None
    assert closed.valve == "stop_file"


def test_a_run_is_pausing_while_a_batch_is_in_hand_and_paused_after_it(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 20)
    close_gate(pg)
    with opened(settings, sweep_batch_rows=5) as rt:
        run = look(rt).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            assert service.pause_run(rt, run.run_id, actor="ada", why="look").state == "pausing"
            assert look(rt).outcome is Outcome.SKIPPED
            open_gate(pg)
        paused = run_of(rt, run.run_id)
        assert (paused.state, paused.why) == ("paused", "paused by ada: look")
        assert batch_states(pg, run.run_id) == {"done": 1, "due": 3}
        assert work(rt, SWEEPS, run.run_id).outcome is WorkOutcome.NOTHING_DUE
        assert service.resume_run(rt, run.run_id, actor="ada").state == "running"
        assert drive(rt, PURGE_TOMBSTONES).run_id == run.run_id
    assert receipts(pg, run.run_id) == (20, 0)


def test_a_run_is_cancelling_while_a_batch_is_in_hand_and_leaves_the_rest_alone(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 20)
    close_gate(pg)
    with opened(settings, sweep_batch_rows=5) as rt:
        run = look(rt).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            assert service.cancel_run(rt, run.run_id, actor="ada", why="wrong table").state == "cancelling"
            open_gate(pg)
        cancelled = run_of(rt, run.run_id)
    assert (cancelled.state, cancelled.why) == ("cancelled", "cancelled by ada: wrong table")
    assert batch_states(pg, run.run_id) == {"done": 1, "cancelled": 3}
    assert receipts(pg, run.run_id) == (5, 0)
    assert len(ids(pg)) == 15


def test_what_is_asked_of_an_idle_run_is_done_at_once(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 5)
    with opened(settings) as rt:
        run = look(rt).run
        assert run is not None
        assert service.pause_run(rt, run.run_id, actor="ada", why="look").state == "paused"
        assert service.resume_run(rt, run.run_id, actor="ada").state == "running"
        assert service.cancel_run(rt, run.run_id, actor="ada", why="no").state == "cancelled"
        with pytest.raises(RefusedError, match="got one that is cancelled"):
            service.resume_run(rt, run.run_id, actor="ada")
    assert len(ids(pg)) == 5


# Snapshots and replication --------------------------------------------------------------------------------------------


@pytest.fixture
def idle(database_url: str) -> Iterator[Conn]:
    """Somebody else's session."""
    with psycopg.connect(database_url, options="-c search_path=pushops") as conn:
        yield conn
        conn.rollback()


NOW = timedelta(microseconds=1)


@pytest.mark.parametrize("begun", ["snapshot", "write"])
def test_an_old_snapshot_is_reported_and_holds_only_where_that_is_configured(
    begun: str, settings: Settings, pg: Conn, idle: Conn
) -> None:
    """C09: idle in a transaction, having read at repeatable read or written anything; both keep vacuum back."""
    add_tombstones(pg, 5)
    if begun == "snapshot":
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT count(*) FROM push_subscription")
    else:
        idle.execute("INSERT INTO audit (verb, actor) VALUES ('test', 'test')")
    recorded: list[Any] = []
    with opened(settings, recorded, snapshot_report_after=NOW, snapshot_hold_after=NOW) as rt:
        held = look(rt)
        assert_held(rt, pg, held, "snapshot", f"session {idle.info.backend_pid} holds a snapshot")
    assert {f["owner"] for _, name, f in recorded if name == "sweep.snapshot"} == {f"session {idle.info.backend_pid}"}
    with opened(settings, snapshot_report_after=NOW) as rt:
        assert drive(rt, PURGE_TOMBSTONES).state == "done"


def test_a_role_that_cannot_see_others_snapshots_does_not_know(settings: Settings, pg: Conn, idle: Conn) -> None:
    idle.execute("SELECT 1")
    make_role(pg, "plain")
    with opened(settings_for(settings, "plain"), snapshot_hold_after=DAY) as rt:
        reading = gauge.read_snapshot(rt)
        assert reading.state is State.UNKNOWN
        assert "pg_monitor" in reading.reason
    with opened(settings_for(settings, "plain")) as rt:
        assert gauge.read_snapshot(rt).open


def test_without_replicas_and_slots_there_is_no_lag_for_any_role(settings: Settings, pg: Conn) -> None:
    """C19: a role without rights is not held up by what is not there."""
    make_role(pg, "plain")
    for found in (settings, settings_for(settings, "plain")):
        with opened(found) as rt:
            assert (gauge.read_lag(rt).state, gauge.read_lag(rt).reason) == (State.OPEN, "no replicas and no slots")


def test_a_replica_that_is_expected_and_not_there_is_unknown(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 1)
    with opened(settings, expected_replicas=1) as rt:
        assert_held(rt, pg, look(rt), "lag", "expected 1 replica(s), 0 visible")


@pytest.fixture
def slot(pg: Conn) -> Iterator[str]:
    yield "forgotten"
    pg.execute("SELECT pg_drop_replication_slot('forgotten')")


def test_a_slot_that_was_never_connected_is_no_lag(settings: Settings, pg: Conn, slot: str) -> None:
    pg.execute("SELECT pg_create_physical_replication_slot(%s)", [slot])
    pg.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 200000))")
    with opened(settings, sweep_max_lag_bytes=100_000) as rt:
        assert gauge.read_lag(rt).open


def test_an_inactive_slot_that_retains_wal_holds_for_any_role(settings: Settings, pg: Conn, slot: str) -> None:
    """C19: pg_stat_replication is empty, and the disk fills up all the same."""
    pg.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
    pg.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 200000))")
    make_role(pg, "plain")
    for found in (settings, settings_for(settings, "plain")):
        with opened(found, sweep_max_lag_bytes=100_000) as rt:
            assert_held(rt, pg, look(rt), "lag", "slot forgotten is")


@pytest.mark.parametrize("probe", ["lag", "oldest_snapshot"])
def test_a_probe_that_fails_is_unknown_and_holds(
    probe: str, settings: Settings, pg: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_tx: object) -> Any:
        raise ValueError("a secret")

    add_tombstones(pg, 1)
    with opened(settings) as rt:
        monkeypatch.setattr(probes, probe, fail)
        held = look(rt)
        assert_held(rt, pg, held, "lag" if probe == "lag" else "snapshot", "the probe failed: ValueError")
        assert "secret" not in held.why


def test_lag_past_the_limit_of_patience_stops_the_run_with_its_reason(settings: Settings, pg: Conn) -> None:
    """F39: waiting for ever hides the problem; the next tick opens a run of its own."""
    add_tombstones(pg, 1)
    with opened(settings, expected_replicas=1) as rt:
        run = look(rt).run
        assert run is not None
        assert run_of(rt, run.run_id).state == "running"
        pg.execute("UPDATE sweep_run SET held_since = now() - interval '59 s'")
        look(rt)
        assert run_of(rt, run.run_id).state == "running"
        pg.execute("UPDATE sweep_run SET held_since = now() - interval '61 s'")
        look(rt)
        stopped = run_of(rt, run.run_id)
        assert stopped.state == "stopped"
        assert stopped.why == "lag: expected 1 replica(s), 0 visible"
        again = look(rt)
    assert again.opened
    assert len(ids(pg)) == 1


def test_a_sweep_without_a_brake_takes_what_it_is_due(settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        for _ in range(3):
            add_tombstones(pg, 3)
            drive(rt, PURGE_TOMBSTONES)
    pg.execute("UPDATE sweep_batch SET finished_at = finished_at - interval '40 days'")
    with opened(settings, sweep_max_share=0.0001) as rt:
        run = drive(rt, PURGE_RECEIPTS)
    assert receipts(pg, run.run_id) == (3, 0)
