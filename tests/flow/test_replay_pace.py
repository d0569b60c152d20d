"""The pace of a replay, with a real Valkey: the fleet's own, by one clock, and nothing where it cannot be seen."""

import itertools
import multiprocessing
import multiprocessing.queues
import multiprocessing.synchronize
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pydantic import SecretStr

from pushops.deadletters.replay.pacing import BLIND, FIRST, HOLDS, Grant, Pace
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox import ValkeyServer
from pushops.settings import Settings
from tests.conftest import Recorded
from tests.made import make_settings

RATE: Final = 400.0
SECONDS: Final = 3.0
NOBODY: Final = "postgresql://nobody@localhost/none"
NOW: Final = datetime(2026, 10, 21, 7, 26, 0, tzinfo=UTC)
OLD: Final = NOW - timedelta(hours=1)

Took = tuple[float, float, int]  # before and after the call, by the machine's clock; how many


def settings_of(url: str, **changes: Any) -> Settings:
    return make_settings(NOBODY, redis_url=SecretStr(url), provider_rate=RATE * 10, **changes)


def drain(settings: Settings, start: Any, took: Any, *, jumps: bool) -> None:
    """Take for some seconds whatever there is, as a worker does; with a wall clock that somebody sets."""
    if jumps:
        real = time.time
        time.time = lambda: real() + random.choice((-86_400, 0, 86_400))
    rt = open_runtime(settings)
    pace = Pace(rt, {}, OLD, NOW)
    taken: list[Took] = []
    start.wait()
    until = time.monotonic() + SECONDS
    while (before := time.monotonic()) < until:
        grant = pace.take("fcm", 250)
        taken.append((before, time.monotonic(), grant.granted))
        time.sleep(grant.wait)
    took.put(taken)
    rt.close()


@pytest.mark.long
def test_two_workers_together_keep_the_pace_and_never_burst_whatever_their_clocks_say(valkey_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    start, took = context.Barrier(2), context.Queue()
    settings = settings_of(valkey_url)
    workers = [
        context.Process(target=drain, args=(settings, start, took), kwargs={"jumps": jumps}) for jumps in (False, True)
    ]
    for worker in workers:
        worker.start()
    each = [took.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert all(sum(granted for *_, granted in taken) > 0 for taken in each)
    taken = sorted(itertools.chain.from_iterable(each))
    total = sum(granted for *_, granted in taken)
    assert abs(total - RATE * HOLDS - RATE * SECONDS) <= 0.05 * RATE * SECONDS
    for first, (began, *_) in enumerate(taken):
        came, ended = 0, began
        for _, after, granted in taken[first:]:
            came, ended = came + granted, max(ended, after)
            assert came <= RATE * (ended - began) + RATE * HOLDS + 1


def test_a_young_run_begins_at_a_tenth_and_its_key_goes_when_it_says_nothing_any_more(valkey_url: str) -> None:
    with pacing(settings_of(valkey_url, db_schema="other")) as (rt, _):
        assert Pace(rt, {}, NOW, NOW).take("fcm", 500).granted == RATE * FIRST * HOLDS
        assert rt.redis is not None
        assert rt.redis.keys("*") == [b"other:replay:fcm"]
        assert 0 < rt.redis.pttl("other:replay:fcm") <= HOLDS * 1_000 + 2
        assert Pace(rt, {}, NOW, NOW).take("mozilla", 500).granted == RATE * FIRST * HOLDS


def test_a_pace_below_one_a_second_sends_one_at_a_time(valkey_url: str) -> None:
    with pacing(settings_of(valkey_url)) as (rt, _):
        pace = Pace(rt, {"rate": 0.5}, OLD, NOW)
        assert pace.take("fcm", 9).granted == 1
        grant = pace.take("fcm", 9)
        assert grant.granted == 0
        assert 1.9 < grant.wait <= 2


def test_nothing_is_granted_where_the_pace_cannot_be_seen(fresh_valkey: ValkeyServer) -> None:
    settings = settings_of(fresh_valkey.url(), broker_timeout=timedelta(milliseconds=200))
    with pacing(settings) as (rt, recorded):
        pace = Pace(rt, {}, OLD, NOW)
        assert rt.redis is not None
        rt.redis.lpush(f"{settings.db_schema}:replay:fcm", "not a number")
        assert pace.take("fcm", 9) == Grant(0, BLIND)
        rt.redis.flushall()
        assert pace.take("fcm", 9).granted == 9
        rt.redis.client_pause(60_000)
        began = time.monotonic()
        assert pace.take("fcm", 9) == Grant(0, BLIND)
        assert time.monotonic() - began < 5
        fresh_valkey.kill()
        assert pace.take("fcm", 9) == Grant(0, BLIND)
        fresh_valkey.start()
        assert pace.take("fcm", 9).granted == 9
    assert [name for _, name, _ in recorded] == ["replay.held"] * 3
    assert {fields["service"] for *_, fields in recorded} == {"fcm"}


@contextmanager
def pacing(settings: Settings) -> Iterator[tuple[Runtime, list[Recorded]]]:
    recorded: list[Recorded] = []
    rt = open_runtime(settings, sinks=(lambda level, name, fields: recorded.append((level, name, dict(fields))),))
    yield rt, recorded
    rt.close()
