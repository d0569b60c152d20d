"""The nightly purge end to end: beat, broker, two workers, and what their messages look like."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import redis

from pushops.settings import Settings
from tests.sweeping import (
    TEND,
    assert_every_batch_has_one_receipt,
    beat,
    count,
    hashes,
    make_rows,
    quick,
    wait_until,
    workers,
)

# What kombu keeps for itself: bindings of queues, what is in hand, and the queue.
BROKER_KEYS: Final = ("_kombu.binding", "unacked", "pushops")
NIGHT: Final = {
    "purge": {"task": "pushops.dispatch_sweep", "schedule": 0.5, "args": ["purge-tombstones"]},
    "tend": TEND,
}


@contextmanager
def pushed(url: str) -> Iterator[list[bytes]]:
    """Every message that anybody puts into the queue meanwhile, as the broker sees it."""
    found: list[bytes] = []
    stop = threading.Event()
    ready = threading.Event()

    def watch() -> None:
        with redis.Redis.from_url(url, socket_timeout=None) as client, client.monitor() as monitor:
            ready.set()
            while not stop.is_set():
                command = monitor.next_command()["command"]
                if command.upper().startswith("LPUSH PUSHOPS"):
                    found.append(command.split(" ", 2)[2].encode("latin-1"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    ready.wait()
    try:
        yield found
    finally:
        stop.set()
        with redis.Redis.from_url(url) as client:
            client.ping()  # one more command, so that the watcher looks up
        watcher.join()


def args_of(message: bytes) -> bytes:
    args, kwargs, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
    return json.dumps([args, kwargs]).encode()


def test_beat_and_two_workers_purge_a_table(settings: Settings, pg: psycopg.Connection[Any], valkey_url: str) -> None:
    """Live rows and younger tombstones stay; messages are small ids; nothing is left in the broker (D16)."""
    make_rows(pg, 30, state="active")
    make_rows(pg, 10, ended_ago=settings.tombstone_retention / 2)
    kept = hashes(pg)
    make_rows(pg, 1_000)
    fast = quick(settings, valkey_url, sweep_pause_ms=20)
    with redis.Redis.from_url(valkey_url) as broker, pushed(valkey_url) as messages:
        with workers(fast, 1), workers(fast, 1), beat(fast, NIGHT):
            wait_until(lambda: count(pg, "SELECT count(*) FROM sweep_run WHERE state = 'done'"), expected="a run's end")
        keys = {key.decode() for key in broker.scan_iter()}
    ((run,),) = pg.execute("SELECT run_id FROM sweep_run ORDER BY opened_at LIMIT 1").fetchall()
    assert hashes(pg) == kept
    assert count(pg, "SELECT coalesce(sum(ended), 0) FROM subscription_ended_daily") == 1_000
    assert_every_batch_has_one_receipt(pg, run, rows=1_000)
    assert count(pg, "SELECT count(DISTINCT worker) FROM sweep_receipt") == 2
    assert messages
    assert max(map(len, messages)) < 4096
    assert max(len(args_of(message)) for message in messages) < 256
    assert all(key.startswith(BROKER_KEYS) for key in keys), keys
