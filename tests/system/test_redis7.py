"""Redis 7 as the broker, with a real worker: the wheels bring Valkey, most people have Redis."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from pushops import tasks
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests import sweeping
from tests.made import make_settings

ROWS: Final = 500


@pytest.fixture
def settings(database_url: str, valkey_url: str) -> Settings:
    return sweeping.quick(make_settings(database_url), valkey_url)


@pytest.fixture
def publishing(settings: Settings) -> Iterator[None]:
    with sweeping.publishing(settings):
        yield


def test_the_server_is_redis_7(runtime: Runtime) -> None:
    assert runtime.redis is not None
    found: Any = runtime.redis.info("server")
    assert found["redis_version"].startswith("7.")
    assert "valkey_version" not in found


def test_the_eviction_policy_can_be_read(runtime: Runtime) -> None:
    assert runtime.redis is not None
    assert runtime.redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


@pytest.mark.usefixtures("publishing")
def test_the_queue_is_counted_until_a_worker_has_purged_all(
    runtime: Runtime, settings: Settings, pg: psycopg.Connection[Any]
) -> None:
    sweeping.make_rows(pg, ROWS)
    assert runtime.redis is not None
    assert tasks.queue_depth(settings.queue) == 0
    found = sweeping.start(runtime)
    assert found.batches == ROWS // 20
    assert tasks.queue_depth(settings.queue) == sweeping.queue_length(runtime.redis) >= found.batches / 4
    run_id = sweeping.run_of(found)
    with sweeping.workers(settings, 2) as worker:
        sweeping.wait_until(lambda: sweeping.closed(pg, run_id), expected="the run's end")
        sweeping.wait_until(lambda: tasks.queue_depth(settings.queue) == 0, expected="an empty queue")
        assert worker.events("sweep.batch", outcome="applied")
    sweeping.assert_purged(pg, run_id, ROWS)


@pytest.mark.usefixtures("publishing")
def test_messages_of_every_priority_are_counted(settings: Settings) -> None:
    for priority in (0, 3, 6, 9):
        tasks.tend_sweeps.apply_async(priority=priority)
    assert tasks.queue_depth(settings.queue) == 4
