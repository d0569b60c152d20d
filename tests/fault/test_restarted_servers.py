"""PostgreSQL and the broker go away in the middle of a run, and come back."""

import time
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
    TEND,
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


def killed_and_emptied(server: ValkeyServer) -> None:
    """Nothing of it is on disk: what comes back is an empty broker."""
    server.kill()
    time.sleep(0.3)  # an outage that workers notice
    server.start()


def restarted_three_times(server: ValkeyServer) -> None:
    for _ in range(3):
        server.restart()


def flushed(server: ValkeyServer) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()


def cut_off(server: ValkeyServer) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")


def taken_over(server: ValkeyServer) -> None:
    """A stranger makes it a replica of nothing (D25); an operator takes it back."""
    with redis.Redis.from_url(server.url()) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        time.sleep(0.5)
        client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def patient(settings: Settings, fresh_valkey: ValkeyServer) -> Settings:
    return quick(settings, fresh_valkey.url(), sweep_pause_ms=50)


@pytest.mark.parametrize("trouble", [killed_and_emptied, restarted_three_times, flushed, cut_off, taken_over])
def test_a_run_survives_trouble_with_the_broker(
    patient: Settings,
    pg: psycopg.Connection[Any],
    fresh_valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer], None],
) -> None:
    """Lost messages are rung for again, and the worker goes on consuming (D09)."""
    make_rows(pg, ROWS)
    with publishing(patient), runtime(patient) as rt, workers(patient, 2) as pool, beat(patient, SCHEDULE) as clock:
        run = run_of(start(rt))
        some_batches_done(pg, 5)
        trouble(fresh_valkey)
        assert not closed(pg, run), "expected the trouble in the middle"
        wait_until(lambda: closed(pg, run), expected=lambda: f"the run's end\n{pool.tail()}\n{clock.tail()}")
        assert pool.popen.poll() is None
    assert_purged(pg, run, rows=ROWS)


def test_messages_that_were_lost_before_anybody_saw_them_are_rung_for_again(
    patient: Settings, pg: psycopg.Connection[Any], fresh_valkey: ValkeyServer
) -> None:
    """The rows say what is due: an empty queue beside due batches is noticed by the next tending (D04)."""
    make_rows(pg, 100)
    with publishing(patient), runtime(patient) as rt:
        run = run_of(start(rt))
        flushed(fresh_valkey)
        with workers(patient, 1) as pool:
            finish(rt, pg, run, pool)
    assert_purged(pg, run, rows=100)
