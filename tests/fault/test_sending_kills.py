"""Workers, brokers and databases that end in mid-campaign: nobody is sent a message twice that the ledger knows of."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
import redis

from pushops import tasks
from pushops.db.migrate import migrate
from pushops.delivery import pump
from pushops.delivery.service import send
from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.hostile import CONFIG
from tests.made import make_settings
from tests.outgoing import Outgoing, Pg, ends, outgoing, rows_of
from tests.sweeping import beat, count, publishing, queue_length, wait_until, workers
from tests.unsettled import SCHEDULE, lose_leases, make_due, never_twice, sending

pytestmark = pytest.mark.long

PEOPLE: Final = 300
VENDORS: Final = ("fcm", "mozilla")


@pytest.fixture
def hurried(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return sending(settings, pushed_to, valkey_url)


@pytest.fixture
def out(hurried: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(hurried, pushed_to) as made:
        yield made


def register(out: Outgoing, pg: Pg, people: int = PEOPLE) -> list[str]:
    return [endpoint for vendor in VENDORS for endpoint in out.register(pg, vendor, people // len(VENDORS))]


def through(pg: Pg, message: Any, people: int = PEOPLE) -> bool:
    return ends(pg, message) == {"accepted": people}


def test_a_worker_killed_between_the_post_and_its_settling_leaves_what_it_had_sent_unknown(
    hurried: Settings, out: Outgoing, pg: Pg, pushed_to: PushService
) -> None:
    """SIGKILL while the push service thinks about answers that it has accepted; others send it again (D05, D07)."""
    endpoints = register(out, pg)
    pushed_to.script("slow", delay=3.0)
    message = out.send("hello")
    with publishing(hurried), workers(hurried, 1) as victim:
        tasks.send_due.delay()
        wait_until(lambda: pushed_to.counts()["received"] >= 100, expected="requests out")
        victim.kill()
    in_hand = rows_of(pg, message, "state")["claimed"]
    assert in_hand >= 100
    pushed_to.clear()
    lose_leases(pg)
    assert len(pump.reap(out.rt)) == in_hand
    assert rows_of(pg, message, "state", "wait", "ambiguous")["due", "ambiguous", 1] == in_hand
    make_due(pg)
    with publishing(hurried), workers(hurried, 2), beat(hurried, SCHEDULE):
        wait_until(lambda: through(pg, message), expected="all of it")
    never_twice(pg, pushed_to, endpoints, message)
    assert sum(pushed_to.accepted(endpoints)) > PEOPLE, "expected to kill it after something was accepted"


def test_a_flushed_broker_costs_no_retry(
    hurried: Settings, out: Outgoing, pg: Pg, pushed_to: PushService, valkey_url: str
) -> None:
    """Ten thousand rows wait to be tried again, none of them in the broker: flushed, it loses a doorbell (D04)."""
    register(out, pg)
    waiting = out.register(pg, "apple", 10_000)
    pushed_to.script("busy", answer="*-503")
    later = out.send("later", service="apple")
    pg.execute(
        "UPDATE pushops.push_dispatch SET attempts = 1, wait = 'retry', first_attempt_at = now(),"
        " next_attempt_at = now() + interval '1 hour'"
    )
    pushed_to.clear()
    message = out.send("hello", tags=None, service="fcm")
    with redis.Redis.from_url(valkey_url) as broker, publishing(hurried):
        assert queue_length(broker) == 0, "what waits is in no queue"
        tasks.send_due.delay()
        broker.flushall()
        with workers(hurried, 2), beat(hurried, SCHEDULE):
            wait_until(lambda: through(pg, message, PEOPLE // 2), expected="the campaign")
            broker.flushall()
            assert ends(pg, later) == {"due": 10_000}
            pg.execute(
                "UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE state = 'due' AND endpoint_hash IN"
                " (SELECT endpoint_hash FROM pushops.push_dispatch WHERE message_id = %s LIMIT 500)",
                [later],
            )
            wait_until(lambda: ends(pg, later)["accepted"] == 500, expected="those that are due")
    assert ends(pg, later) == {"accepted": 500, "due": 9_500}
    assert sum(pushed_to.accepted(waiting)) == 500
    assert max(pushed_to.accepted(waiting)) == 1


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_a_restart_of_postgresql_in_mid_campaign_loses_no_answer(
    fresh_postgres: PostgresServer, pushed_to: PushService, valkey_url: str, end: Any
) -> None:
    """What was answered is settled when it is back; what was claimed in a lost transaction is claimed again (C15)."""
    url = fresh_postgres.create_database("mine")
    migrate(make_settings(url))
    hurried = sending(make_settings(url), pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out, psycopg.connect(url, autocommit=True) as pg:
        endpoints = register(out, pg)
        message = out.send("hello")
    pushed_to.script("slow", delay=1.0)
    with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, SCHEDULE):
        wait_until(lambda: pushed_to.counts()["received"] >= 50, expected="requests out")
        end(fresh_postgres)
        fresh_postgres.start()
        pushed_to.clear()
        with psycopg.connect(url, autocommit=True) as pg:
            wait_until(lambda: _helped(pg, message), expected=lambda: f"all of it\n{pool.tail()}")
            never_twice(pg, pushed_to, endpoints, message)
            assert rows_of(pg, message, "ambiguous").keys() == {0}, "answers were kept until they could be written down"


def _helped(pg: Pg, message: Any) -> bool:
    make_due(pg)
    return through(pg, message)


def test_every_message_delivered_twice_at_once_sends_once(
    hurried: Settings, out: Outgoing, pg: Pg, pushed_to: PushService
) -> None:
    """fan_out, send_due and all that they ring for, by two beats, to four children (D01, D02, D13)."""
    endpoints = register(out, pg)
    message = send(out.rt, "hello", everyone=True, actor="test").message_id
    twice = {"FAULT": "twice"}
    with (
        publishing(hurried),
        workers(hurried, 4, config=CONFIG, environment=twice) as pool,
        beat(hurried, SCHEDULE),
        beat(hurried, SCHEDULE),
    ):
        for _ in range(2):
            tasks.fan_out.delay(str(message))
        wait_until(lambda: through(pg, message), expected=lambda: f"all of it\n{pool.tail()}")
    assert pushed_to.accepted(endpoints) == [1] * PEOPLE
    assert pushed_to.received(endpoints) == [1] * PEOPLE
    assert rows_of(pg, message, "attempts", "ambiguous") == {(1, 0): PEOPLE}


def test_pumps_at_once_share_the_rows_and_the_slots(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    """Four threads with their own connections; three slots, so that one of them finds none."""
    with outgoing(settings, pushed_to, senders=3, pool_size=20) as out:
        endpoints = register(out, pg, 1200)
        message = out.send("hello")
        barrier, outcomes = threading.Barrier(4), []

        def one() -> None:
            with outgoing(settings, pushed_to, senders=3) as own:
                barrier.wait(20)
                outcomes.append(own.pump(timedelta(seconds=5)).outcome)

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes).count("no_slot") == 1
        out.pump_all()
        assert ends(pg, message) == {"accepted": 1200}
        assert pushed_to.received(endpoints) == [1] * 1200


def test_a_stopped_worker_gives_back_what_it_had_not_begun(
    hurried: Settings, out: Outgoing, pg: Pg, pushed_to: PushService
) -> None:
    """SIGTERM in mid-shift: answers are waited for and written down, and no claim is left (D04, D05)."""
    endpoints = register(out, pg)
    pushed_to.script("slow", delay=1.0)
    message = out.send("hello")
    with publishing(hurried), workers(hurried, 1) as stopped:
        tasks.send_due.delay()
        wait_until(lambda: pushed_to.counts()["received"] >= 50, expected="requests out")
        assert stopped.terminate() == 0
    assert count(pg, "SELECT count(*) FROM pushops.push_dispatch WHERE state = 'claimed'") == 0
    assert rows_of(pg, message, "ambiguous").keys() == {0}
    pushed_to.clear()
    out.pump_all()
    assert ends(pg, message) == {"accepted": PEOPLE}
    assert pushed_to.accepted(endpoints) == [1] * PEOPLE


def test_a_broker_that_is_away_keeps_nobody_who_sends_from_settling(
    settings: Settings, pg: Pg, pushed_to: PushService, fresh_valkey: ValkeyServer
) -> None:
    """The broker dies in mid-shift; the shift ends well, and the next doorbell is beat's once it is back (D09, D10)."""
    hurried = sending(settings, pushed_to, fresh_valkey.url())
    with outgoing(hurried, pushed_to) as out:
        endpoints = register(out, pg)
        pushed_to.script("slow", delay=1.0)
        message = out.send("hello")
        with publishing(hurried), workers(hurried, 1) as pool, beat(hurried, SCHEDULE) as clock:
            wait_until(lambda: pushed_to.counts()["received"] >= 50, expected="requests out")
            fresh_valkey.kill()
            wait_until(lambda: ends(pg, message)["accepted"] >= 50, expected="settled answers")
            fresh_valkey.start()
            pushed_to.clear()
            wait_until(lambda: through(pg, message), 40, lambda: f"all of it\n{pool.tail()}\n{clock.tail()}")
        assert pushed_to.accepted(endpoints) == [1] * PEOPLE
