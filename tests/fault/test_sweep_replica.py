"""A purge beside a real streaming replica that stops replaying (C19, F39)."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pushops.db.migrate import migrate
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.sandbox import PostgresServer
from pushops.settings import Settings
from pushops.sweeps import gauge
from pushops.sweeps.dispatch import Order, Outcome, dispatch
from pushops.sweeps.valves import State
from pushops.sweeps.work import Outcome as WorkOutcome
from pushops.sweeps.work import work
from tests import servers
from tests.made import make_settings
from tests.sweepdb import (
    Conn,
    add_tombstones,
    drive,
    ids,
    make_role,
    opened,
    receipts,
    run_of,
    scalar,
    settings_for,
)
from tests.sweeping import wait_until

TEST = Order(started_by="test")
DAY = timedelta(days=1)
ALLOWED = 100_000  # bytes
MUCH = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 300000))"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with servers.postgres({"wal_level": "logical"}) as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with servers.replica(primary) as server:
        yield server


@pytest.fixture
def replica(standby: PostgresServer) -> Iterator[Conn]:
    """The replica, replaying again afterwards whatever a test did to it."""
    with psycopg.connect(standby.url(), autocommit=True) as conn:
        yield conn
        if scalar(conn, "SELECT pg_is_wal_replay_paused()"):
            conn.execute("SELECT pg_wal_replay_resume()")


@pytest.fixture
def settings(primary: PostgresServer) -> Iterator[Settings]:
    found = make_settings(primary.create_database("app"))
    migrate(found)
    yield found.model_copy(update={"sweep_max_lag_bytes": ALLOWED})
    primary.query("DROP DATABASE app WITH (FORCE)")


@pytest.fixture
def pg(settings: Settings) -> Iterator[Conn]:
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    with psycopg.connect(url, autocommit=True, options="-c search_path=pushops") as conn:
        yield conn


def pause_replay(replica: Conn, pg: Conn) -> None:
    """Stop replaying, and write more than is allowed."""
    wait_caught_up(pg)
    replica.execute("SELECT pg_wal_replay_pause()")
    wait_until(lambda: scalar(replica, "SELECT pg_get_wal_replay_pause_state()") == "paused", expected="a pause")
    pg.execute(MUCH)


def wait_caught_up(pg: Conn) -> None:
    query = "SELECT count(*) FROM pg_stat_replication WHERE pg_current_wal_lsn() - replay_lsn < 1000"
    wait_until(lambda: scalar(pg, query), expected="the replica to catch up")


def test_lag_holds_the_purge_at_dispatch_and_at_a_batch_and_releases_it(
    settings: Settings, pg: Conn, replica: Conn
) -> None:
    add_tombstones(pg, 40)
    with opened(settings, sweep_batch_rows=10, expected_replicas=1) as rt:
        wait_caught_up(pg)
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        pause_replay(replica, pg)
        worked = work(rt, SWEEPS, run.run_id)
        assert (worked.outcome, worked.batches) == (WorkOutcome.HELD, 0)
        assert worked.reading is not None
        assert worked.reading.state is State.HOLD
        assert f"bytes behind, {ALLOWED} allowed" in worked.reading.reason
        assert dispatch(rt, PURGE_TOMBSTONES, None, TEST).outcome is Outcome.HELD
        assert run_of(rt, run.run_id).why is not None
        assert len(ids(pg)) == 30
        assert scalar(pg, "SELECT sum(attempts) FROM sweep_batch") == 1
        replica.execute("SELECT pg_wal_replay_resume()")
        wait_until(lambda: gauge.read_lag(rt).open, expected="the replica to catch up")
        after = drive(rt, PURGE_TOMBSTONES)
    assert (after.run_id, after.state, after.why) == (run.run_id, "done", None)
    assert receipts(pg, run.run_id) == (40, 0)


def test_lag_that_lasts_stops_the_run_and_the_next_one_does_what_is_left(
    settings: Settings, pg: Conn, replica: Conn
) -> None:
    add_tombstones(pg, 40)
    with opened(settings, sweep_batch_rows=10, sweep_max_lag_give_up=timedelta(milliseconds=200)) as rt:
        wait_caught_up(pg)
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        pause_replay(replica, pg)

        def stopped() -> bool:
            work(rt, SWEEPS, run.run_id)
            return run_of(rt, run.run_id).closed_at is not None

        wait_until(stopped, expected="the run to be given up")
        found = run_of(rt, run.run_id)
        assert found.state == "stopped"
        assert (found.why or "").startswith("lag: ")
        assert "bytes behind" in (found.why or "")
        replica.execute("SELECT pg_wal_replay_resume()")
        wait_caught_up(pg)
        again = drive(rt, PURGE_TOMBSTONES)
    assert (again.state, receipts(pg, run.run_id), receipts(pg, again.run_id)) == ("done", (10, 0), (30, 0))


def test_a_role_that_may_not_see_the_replicas_positions_does_not_know_and_holds(
    settings: Settings, pg: Conn, replica: Conn
) -> None:
    """NULL for lack of rights is not zero lag, even where there is none."""
    wait_caught_up(pg)
    assert replica is not None
    add_tombstones(pg, 5)
    make_role(pg, "plain")
    with opened(settings_for(settings, "plain")) as rt:
        found = dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        assert found.outcome is Outcome.HELD
        assert "grant pg_monitor" in found.why
        assert gauge.read_lag(rt).state is State.UNKNOWN
    make_role(pg, "watcher")
    pg.execute("GRANT pg_monitor TO watcher")
    with opened(settings_for(settings, "watcher")) as rt:
        assert gauge.read_lag(rt).open
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
    pg.execute("DROP OWNED BY plain, watcher")
    pg.execute("DROP ROLE plain, watcher")


def test_a_logical_slot_that_nobody_reads_holds_by_what_was_confirmed(settings: Settings, pg: Conn) -> None:
    pg.execute("SELECT pg_create_logical_replication_slot('reader', 'pgoutput')")
    try:
        with opened(settings) as rt:
            wait_caught_up(pg)
            assert gauge.read_lag(rt).open
            pg.execute(MUCH)
            wait_caught_up(pg)  # the replica is not what lags
            reading = gauge.read_lag(rt)
    finally:
        pg.execute("SELECT pg_drop_replication_slot('reader')")
    assert reading.state is State.HOLD
    assert reading.reason.startswith("slot reader is ")


def test_a_reader_on_a_replica_that_feeds_back_its_snapshot_is_reported_by_transactions(
    settings: Settings, pg: Conn, replica: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C09: nothing on the primary is old, and vacuum removes nothing all the same; there is no time to hold by."""
    monkeypatch.setattr(gauge, "OLD_TRANSACTIONS", 50)
    recorded: list[Any] = []
    feed_back(replica, on=True)
    try:
        with psycopg.connect(replica.info.dsn) as reader, opened(settings, recorded, snapshot_hold_after=DAY) as rt:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            for _ in range(60):
                pg.execute("SELECT pg_current_xact_id()")
            wait_until(lambda: gauge.tell_old_snapshots(rt) or recorded, expected="an event")
            assert gauge.read_snapshot(rt).open
    finally:
        feed_back(replica, on=False)
    level, name, fields = recorded[0]
    assert (level, name) == ("warning", "sweep.snapshot")
    assert fields["owner"]
    assert fields["transactions"] > 50


def feed_back(replica: Conn, *, on: bool) -> None:
    """As a replica for long reports is set up, in a hurry."""
    for setting in (f"hot_standby_feedback = {on}", f"wal_receiver_status_interval = {1 if on else 10}"):
        replica.execute(f"ALTER SYSTEM SET {setting}".encode())
    replica.execute("SELECT pg_reload_conf()")


def test_a_replica_with_a_slot_that_goes_away_holds_by_what_its_slot_retains(
    primary: PostgresServer, settings: Settings, pg: Conn
) -> None:
    """C19: with the standby off, pg_stat_replication says nothing, and WAL piles up."""
    with servers.replica(primary, slot="standby"), opened(settings) as rt:
        wait_until(lambda: gauge.read_lag(rt).open, expected="the replica to catch up")
    try:
        pg.execute(MUCH)
        with opened(settings) as rt:  # a standby that is up has all of it in a moment, and is no reason any more
            reading = wait_until(
                lambda: found if (found := gauge.read_lag(rt)).reason.startswith("slot standby is ") else None,
                expected=lambda: gauge.read_lag(rt).reason,
            )
    finally:
        wait_until(
            lambda: not scalar(pg, "SELECT active FROM pg_replication_slots WHERE slot_name = 'standby'"),
            expected="the slot to be let go",
        )
        pg.execute("SELECT pg_drop_replication_slot('standby')")
    assert reading.state is State.HOLD
