"""PostgreSQL and the broker go away in the middle of a drain, and come back; every message twice."""

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest
import redis

from pushops.db.migrate import migrate
from pushops.deadletters.replay.pacing import HOLDS
from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.hostile import CONFIG
from tests.made import make_settings
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replay_faults import (
    OPENED,
    SCHEDULE,
    as_counted,
    ask,
    at_most_once,
    outcomes,
    reap,
    replaying,
    run_over,
    wait_for_the_dead,
)
from tests.replaying import parked, states
from tests.sweeping import Process, beat, count, publishing, wait_until, workers

pytestmark = pytest.mark.long

TWICE: Final[dict[str, Any]] = {"config": CONFIG, "environment": {"FAULT": "twice"}}
GOOGLE: Final = "fcm.googleapis.com"
LEFT: Final = "SELECT count(*) FROM pushops.push_dlq WHERE replay_state IN ('parked', 'claimed')"


def test_every_task_doubled_sends_every_letter_once(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """Two beats, four children, and every message goes into the queue twice (D01, D02)."""
    hurried = replaying(settings, pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out:
        parked(out, pg, 1200)
        clocks = beat(hurried, SCHEDULE), beat(hurried, SCHEDULE)
        with publishing(hurried), workers(hurried, 4, **TWICE) as pool, clocks[0], clocks[1]:
            ask(4)
            wait_until(lambda: run_over(pg), 60, pool.tail)
        assert states(pg) == {("replayed", "replayed"): 1200}
        assert out.service.received(out.endpoints) == [1] * 1200
    assert outcomes(pg) == {"replayed": 1200}


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_a_restart_of_postgresql_in_mid_drain_sends_nothing_twice(
    fresh_postgres: PostgresServer, pushed_to: PushService, valkey_url: str, end: Callable[[PostgresServer], None]
) -> None:
    """What was answered is settled once it is back; what could not be is in doubt, and nothing is lost (C15)."""
    url = fresh_postgres.create_database("mine")
    migrate(make_settings(url))
    hurried = replaying(make_settings(url), pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out, look_at(url) as pg:
        parked(out, pg, 1200)
    pushed_to.script("slow", host=GOOGLE, delay=0.3)
    with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, SCHEDULE):
        ask(2)
        wait_until(lambda: pushed_to.counts()["received"] >= 50, expected=pool.tail)
        end(fresh_postgres)
        fresh_postgres.start()
        pushed_to.clear()
        with look_at(url) as pg:
            wait_until(lambda: run_over(pg), 60, pool.tail)
            assert pool.popen.poll() is None
    with look_at(url) as pg, outgoing(hurried, pushed_to) as out:
        wait_for_the_dead(pg)
        reap(out.rt, pg)
        at_most_once(pg, pushed_to)
        as_counted(pg)
        found = states(pg)
        assert found["replayed", "replayed"] > 500
        assert found.keys() <= {("replayed", "replayed"), ("discarded", "in_doubt"), ("parked", None)}
        assert count(pg, OPENED) == 0


def look_at(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, options="-c search_path=pushops")


def flushed(server: ValkeyServer, _pool: Process) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()


def restarted(server: ValkeyServer, pool: Process) -> None:
    """Nothing of it is on disk: what comes back is an empty broker. A worker may end over it, and is started anew."""
    server.kill()
    pool.wait_for_text("Connection to broker lost")
    server.start()


@pytest.mark.parametrize("trouble", [flushed, restarted])
def test_the_pace_holds_and_the_run_goes_on_whatever_becomes_of_the_broker(
    settings: Settings,
    pushed_to: PushService,
    pg: Pg,
    fresh_valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer, Process], None],
) -> None:
    """The bucket is lost with the broker: no more than what it holds comes early."""
    rate = 60
    hurried = replaying(settings, pushed_to, fresh_valkey.url())
    with outgoing(hurried, pushed_to) as out:
        parked(out, pg, 400)
        with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, SCHEDULE) as clock:
            ask(error_class="retry_exhausted", rate=rate, ramp=0.001)
            wait_until(lambda: sent(out) >= 60, expected=pool.tail)
            trouble(fresh_valkey, pool)
            assert sent(out) < 300, "expected the trouble in mid-drain"
            with workers(hurried, 2) as supervised:
                wait_until(lambda: run_over(pg), 60, lambda: f"{supervised.tail()}\n{clock.tail()}")
        assert states(pg) == {("replayed", "replayed"): 400}
        assert out.service.received(out.endpoints) == [1] * 400
    busiest = count(pg, BUSIEST)
    lost_bucket, late = 2 * HOLDS, 0.2
    assert busiest <= rate * (3 + lost_bucket + late), f"{busiest} letters in three seconds"


def sent(out: Outgoing) -> int:
    return int(out.service.counts()["accepted"])


# Attempts of the busiest three seconds that begin with any of them.
BUSIEST: Final = """
SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND interval '3 seconds' FOLLOWING) AS n
                      FROM push_dlq_attempt WHERE kind = 'replay') AS seconds"""
