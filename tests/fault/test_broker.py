"""A broker that is down, paused, read-only, full of old or foreign messages; and how long its queue really is."""

import time
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
import redis

from pushops import tasks
from pushops.errors import BrokerError
from pushops.runtime import runtime
from pushops.sandbox import ValkeyServer
from pushops.settings import Settings
from tests.sweeping import (
    assert_purged,
    beat,
    count,
    finish,
    make_rows,
    publishing,
    queue_length,
    quick,
    run_of,
    start,
    tombstones,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

A_FEW: Final = 5.0  # seconds that a publisher may lose to a broker that does not answer
DUE: Final = "SELECT count(*) FROM sweep_batch WHERE state = 'due' AND attempts = 0"


def down(server: ValkeyServer) -> Callable[[], None]:
    server.kill()
    return server.start


def silent(server: ValkeyServer) -> Callable[[], None]:
    """It keeps its connections and answers nobody."""
    client = redis.Redis.from_url(server.url())
    client.client_pause(60_000)
    client.close()
    return server.restart


def read_only(server: ValkeyServer) -> Callable[[], None]:
    client = redis.Redis.from_url(server.url())
    client.replicaof("127.0.0.1", 1)

    def mend() -> None:
        client.replicaof("NO", "ONE")
        client.close()

    return mend


def out_of_memory(server: ValkeyServer) -> Callable[[], None]:
    """Noeviction: it refuses what would need more (D15)."""
    client = redis.Redis.from_url(server.url())
    client.config_set("maxmemory", "1")

    def mend() -> None:
        client.config_set("maxmemory", "0")
        client.close()

    return mend


@pytest.mark.parametrize("trouble", [down, silent, read_only, out_of_memory])
def test_a_dispatcher_without_a_broker_says_so_within_seconds_and_the_rows_stay_due(
    settings: Settings,
    pg: psycopg.Connection[Any],
    fresh_valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer], Callable[[], None]],
) -> None:
    """Failure is reported as failure, twice (a retry policy once held for the first time only); D10, D15, D25."""
    hurried = quick(settings, fresh_valkey.url())
    make_rows(pg, 60)
    with publishing(hurried), runtime(hurried) as rt:
        tasks.bell(rt).depth()  # a connection that stands when the trouble begins
        mend = trouble(fresh_valkey)
        for _ in range(2):
            began = time.monotonic()
            found = start(rt)
            assert found.outcome == "no_broker"
            assert found.why
            assert time.monotonic() - began < A_FEW
        assert count(pg, "SELECT count(*) FROM sweep_receipt") == 0
        mend()
        with workers(hurried, 1) as pool:
            finish(rt, pg, run_of(found), pool)
    assert_purged(pg, run_of(found), rows=60)


def test_a_message_that_a_dead_broker_did_not_take_is_an_error_of_ours(
    settings: Settings, fresh_valkey: ValkeyServer
) -> None:
    """Its text names the kind of error, not the broker's address or password."""
    hurried = quick(settings, fresh_valkey.url())
    fresh_valkey.kill()
    with publishing(hurried), runtime(hurried) as rt, pytest.raises(BrokerError) as raised:
        tasks.bell(rt).ring(uuid4(), ())
    assert "127.0.0.1" not in str(raised.value)
    assert "redis" not in str(raised.value)


def test_the_queue_s_depth_counts_every_priority_and_what_is_in_hand(hurried: Settings, valkey_url: str) -> None:
    """With a global key prefix and a separator of one's own too; LLEN alone sees a few of them (D17)."""
    options: dict[str, Any]
    for options in ({}, {"global_keyprefix": "site-a:"}, {"sep": ":"}):
        with publishing(hurried, **options), redis.Redis.from_url(valkey_url) as broker:
            broker.flushall()
            assert tasks.queue_depth("pushops") == 0
            for priority in range(10):
                tasks.sweep_batches.apply_async([str(uuid4())], priority=priority)
            assert tasks.queue_depth("pushops") == 10, options
            assert broker.llen(options.get("global_keyprefix", "") + "pushops") == 3
            with tasks.app.connection_for_read() as connection, connection.SimpleQueue("pushops") as queue:
                queue.get(timeout=5)
                assert tasks.queue_depth("pushops") == 10, "one is in hand"
                assert broker.hlen(options.get("global_keyprefix", "") + "unacked") == 1


def test_a_queue_of_another_name_is_not_counted(hurried: Settings, valkey_url: str) -> None:
    with publishing(hurried), redis.Redis.from_url(valkey_url) as broker:
        broker.lpush("pushops-other", "x")
        assert tasks.queue_depth("pushops") == 0


MALFORMED: Final[list[tuple[str, list[Any]]]] = [
    ("pushops.sweep_batches", ["no uuid"]),
    ("pushops.sweep_batches", [None]),
    ("pushops.sweep_batches", [7]),
    ("pushops.sweep_batches", [["nested"]]),
    ("pushops.sweep_batches", [str(uuid4()), "letters"]),
    ("pushops.sweep_batches", [str(uuid4()), None]),
    ("pushops.sweep_batches", [str(uuid4()), [{"a": 1}]]),
    ("pushops.sweep_batches", [str(uuid4()), 7]),
    ("pushops.sweep_batches", [str(uuid4())]),
    ("pushops.more_pages", ["; DROP TABLE push_subscription"]),
    ("pushops.dispatch_sweep", ["no-such-sweep"]),
    ("pushops.dispatch_sweep", [["purge-tombstones"]]),
    ("pushops.send.v2", ["x"]),
]


def test_malformed_and_unknown_messages_are_acknowledged_counted_and_not_retried(
    hurried: Settings, pg: psycopg.Connection[Any], valkey_url: str
) -> None:
    """One event each, nothing left in the broker, and its keys do not grow with the messages (D16, D27)."""
    make_rows(pg, 5)
    with publishing(hurried), workers(hurried, 1) as pool, redis.Redis.from_url(valkey_url) as broker:
        for name, args in MALFORMED:
            tasks.app.send_task(name, args)
        wait_until(lambda: len(pool.events("sweep.unknown_id")) == len(MALFORMED), expected="an event for each")
        wait_until(lambda: queue_length(broker) == 0, expected="an empty queue")
        keys = set(broker.scan_iter())
        for _ in range(300):
            tasks.sweep_batches.apply_async(["junk"])
        wait_until(lambda: queue_length(broker) == 0, expected="an empty queue")
        assert set(broker.scan_iter()) == keys
        assert "Traceback" not in pool.text().replace(UNREGISTERED, "")
    assert tombstones(pg) == 5


UNREGISTERED: Final = "Traceback (most recent call last):\n"


def test_ticks_that_nobody_took_do_not_pile_up(hurried: Settings, pg: psycopg.Connection[Any], valkey_url: str) -> None:
    """A beat went on for a night without workers; the first worker drops the old ticks and opens one run (D14)."""
    tick = {"task": "pushops.dispatch_sweep", "schedule": 0.1, "args": ["purge-tombstones"]}
    with beat(hurried, {"purge": {**tick, "options": {"expires": 0.1}}}), redis.Redis.from_url(valkey_url) as broker:
        wait_until(lambda: queue_length(broker) >= 10, expected="ticks in the queue")
    with redis.Redis.from_url(valkey_url) as broker, publishing(hurried), workers(hurried, 1) as pool:
        pool.wait_for_text("revoked")
        tasks.dispatch_sweep.apply_async(["purge-tombstones"])
        wait_until(lambda: queue_length(broker) == 0, expected="an empty queue")
        pool.wait_for_event("sweep.dispatched")
    assert count(pg, "SELECT count(*) FROM sweep_run") <= 2


def test_every_tick_of_the_schedule_expires_before_its_second_successor() -> None:
    """What expires is not worked on: catching up takes two runs of a sweep at most, however long workers were away."""
    for name, entry in tasks.app.conf.beat_schedule.items():
        schedule = entry["schedule"]
        period = schedule if isinstance(schedule, float) else _period(schedule)
        assert 0 < entry["options"]["expires"] < 2 * period, name


def _period(schedule: Any) -> float:
    """Seconds between two ticks of a crontab that is regular within a day."""
    return 86_400 / (len(schedule.hour) * len(schedule.minute))
