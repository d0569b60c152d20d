"""PostgreSQL and the broker go away in the middle of a run, and come back."""

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo

from pushops.db.migrate import migrate
from pushops.runtime import runtime
from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.settings import Settings
from tests.made import make_settings
from tests.sweeping import (
    DEADLINE,
    TEND,
    Process,
    assert_every_batch_has_one_receipt,
    assert_purged,
    beat,
    closed,
    count,
    finish,
    make_rows,
    publishing,
    quick,
    run_of,
    start,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

ROWS: Final = 600
RECEIPTS: Final = "SELECT count(*) FROM sweep_receipt"
SCHEDULE: Final = {"tend": TEND}


def some_batches_done(pg: psycopg.Connection[Any], at_least: int) -> None:
    wait_until(lambda: count(pg, RECEIPTS) >= at_least, expected=f"{at_least} batches")


def look_at(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(make_conninfo(url, options="-c search_path=pushops"), autocommit=True)


@pytest.fixture
def own_database(fresh_postgres: PostgresServer) -> str:
    url = fresh_postgres.create_database("mine")
    migrate(make_settings(url))
    return url


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_a_run_survives_a_restart_of_postgresql(
    own_database: str, fresh_postgres: PostgresServer, valkey_url: str, end: Callable[[PostgresServer], None]
) -> None:
    """A crash may take the last asynchronous commits, effect and receipt together: they are done again (C15)."""
    slow = quick(make_settings(own_database), valkey_url, sweep_pause_ms=50)
    with look_at(own_database) as pg:
        make_rows(pg, ROWS)
    with publishing(slow), runtime(slow) as rt, workers(slow, 2) as pool, beat(slow, SCHEDULE):
        run = run_of(start(rt))
        with look_at(own_database) as pg:
            some_batches_done(pg, 5)
        end(fresh_postgres)
        fresh_postgres.start()
        with look_at(own_database) as pg:
            assert not closed(pg, run), "expected to stop it in the middle"
            wait_until(lambda: closed(pg, run), expected="the run's end")
            assert_purged(pg, run, rows=ROWS)
        assert pool.popen.poll() is None


def killed_and_emptied(server: ValkeyServer, pool: Process) -> None:
    """Nothing of it is on disk: what comes back is an empty broker."""
    server.kill()
    pool.wait_for_text("Connection to broker lost")
    server.start()


def restarted_three_times(server: ValkeyServer, _pool: Process) -> None:
    for _ in range(3):
        server.restart()


def flushed(server: ValkeyServer, _pool: Process) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()


def cut_off(server: ValkeyServer, _pool: Process) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.client_kill_filter(_type="normal", skipme=True)


@pytest.fixture
def patient(settings: Settings, fresh_valkey: ValkeyServer) -> Settings:
    return quick(settings, fresh_valkey.url(), sweep_pause_ms=50)


@pytest.mark.parametrize("trouble", [killed_and_emptied, restarted_three_times, flushed, cut_off])
def test_a_run_survives_trouble_with_the_broker(
    patient: Settings,
    pg: psycopg.Connection[Any],
    fresh_valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer, Process], None],
) -> None:
    """No batch in hand is killed, lost messages are rung for again, and the worker goes on consuming (D09)."""
    make_rows(pg, ROWS)
    with publishing(patient), runtime(patient) as rt, workers(patient, 2) as pool, beat(patient, SCHEDULE) as clock:
        run = run_of(start(rt))
        some_batches_done(pg, 5)
        assert not closed(pg, run), "expected the trouble in the middle"
        trouble(fresh_valkey, pool)
        wait_until(lambda: closed(pg, run), expected=lambda: f"the run's end\n{pool.tail()}\n{clock.tail()}")
        assert_purged(pg, run, rows=ROWS)
        make_rows(pg, 20)
        again = run_of(start(rt))
        wait_until(lambda: closed(pg, again), expected=lambda: f"a second run's end\n{pool.tail()}\n{clock.tail()}")
        assert pool.popen.poll() is None
    assert_every_batch_has_one_receipt(pg, again, rows=20)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1


def test_a_broker_that_a_stranger_made_a_replica_ends_its_workers_loudly(
    patient: Settings, pg: psycopg.Connection[Any], fresh_valkey: ValkeyServer
) -> None:
    """They exit with an error rather than stay and consume nothing; others finish when it is taken back (D09, D25)."""
    make_rows(pg, ROWS)
    with publishing(patient), runtime(patient) as rt, redis.Redis.from_url(fresh_valkey.url()) as broker:
        with workers(patient, 1) as pool:
            run = run_of(start(rt))
            some_batches_done(pg, 2)
            broker.replicaof("127.0.0.1", 1)
            assert pool.popen.wait(DEADLINE) != 0
        broker.replicaof("NO", "ONE")
        with workers(patient, 2) as pool:
            finish(rt, pg, run, pool)
    assert_purged(pg, run, rows=ROWS)


def test_messages_that_were_lost_before_anybody_saw_them_are_rung_for_again(
    patient: Settings, pg: psycopg.Connection[Any], fresh_valkey: ValkeyServer
) -> None:
    """The rows say what is due: an empty queue beside due batches is noticed by the next tending (D04)."""
    make_rows(pg, 100)
    with publishing(patient), runtime(patient) as rt:
        run = run_of(start(rt))
        with redis.Redis.from_url(fresh_valkey.url()) as client:
            client.flushall()
        with workers(patient, 1) as pool:
            finish(rt, pg, run, pool)
    assert_purged(pg, run, rows=100)
