"""What a worker is: pools after the fork, errors that survive pickling, a schedule in UTC, events as JSON lines."""

import importlib
import inspect
import json
import os
import pickle
import pkgutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
from celery.schedules import crontab
from celery.utils.serialization import get_pickleable_exception

import pushops
from pushops import tasks
from pushops.errors import PushopsError
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from pushops.sweeps.work import SHIFT, SOON
from tests.sweeping import assert_purged, count, finish, make_rows, publishing, quick, run_of, start, workers

pytestmark = pytest.mark.long

WORKERS: Final = "SELECT DISTINCT split_part(worker, ':', 2)::int FROM sweep_receipt"


def test_the_children_of_a_worker_open_pools_of_their_own(
    settings: Settings, pg: psycopg.Connection[Any], valkey_url: str
) -> None:
    """Every batch is done by a child, none by the parent, and none met a connection that it inherited (C14)."""
    make_rows(pg, 400)
    hurried = quick(settings, valkey_url, sweep_pause_ms=20)
    with publishing(hurried), runtime(hurried) as rt, workers(hurried, 2) as pool:
        run = run_of(start(rt))
        finish(rt, pg, run)
        used = {pid for (pid,) in pg.execute(WORKERS)}
        assert used == set(pool.children())
        assert not [event for event in pool.events("sweep.batch") if event.get("error")]
    assert_purged(pg, run, rows=400)


def test_a_runtime_is_not_used_across_a_fork(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is refused the parent's pool and gets a runtime of its own (C14)."""
    monkeypatch.setattr(tasks, "_opened", {os.getpid(): runtime})
    monkeypatch.setattr(tasks, "settings_or_sandbox", lambda: runtime.settings)
    assert tasks.current_runtime() is runtime
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(_in_the_child(runtime)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        refused, own, works = json.loads(answers.read())
    assert "inherited through fork" in refused
    assert own
    assert works == 1


def one(rt: Runtime) -> Any:
    with rt.db.transaction() as tx:
        return tx.scalar("SELECT 1", {})


def _in_the_child(inherited: Runtime) -> tuple[str, bool, Any]:
    try:
        one(inherited)
    except RuntimeError as error:
        refused = str(error)
    else:
        refused = ""
    mine = tasks.current_runtime()
    return refused, mine is not inherited, one(mine)


def test_the_threads_of_a_worker_share_one_runtime(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``-P threads`` several meet at the first use: one opens, and none is lost with its pool."""
    both = threading.Barrier(2)

    def open_slowly(_: Settings) -> Runtime:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # in time for the other thread, if it opens one as well
        return Runtime(runtime.settings, runtime.db, None, runtime.events)

    monkeypatch.setattr(tasks, "_opened", {})
    monkeypatch.setattr(tasks, "settings_or_sandbox", lambda: runtime.settings)
    monkeypatch.setattr(tasks, "open_runtime", open_slowly)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(tasks.current_runtime) for _ in range(2)]
    assert found[0].result() is found[1].result()
    assert both.broken


def errors() -> Iterator[type[PushopsError]]:
    for module in pkgutil.walk_packages(pushops.__path__, "pushops."):
        if not module.name.endswith("__main__") and ".migrations." not in module.name:
            importlib.import_module(module.name)
    found = [PushopsError]
    for error in found:
        found += [child for child in error.__subclasses__() if child not in found]
    yield from found


PARTICULAR: Final = {"advice": "keep"}  # what a constructor checks


def parameters(error: type[PushopsError]) -> list[str]:
    """What its constructor asks for; one message where it has none of its own."""
    own = next((base for base in error.__mro__ if "__init__" in vars(base) and issubclass(base, PushopsError)), None)
    return ["message"] if own is None else list(inspect.signature(own).parameters)


@pytest.mark.parametrize("error", list(errors()), ids=lambda error: error.__name__)
def test_every_error_survives_pickling(error: type[PushopsError]) -> None:
    """What Celery cannot unpickle would kill a worker in a loop (D19)."""
    made = error(*(PARTICULAR.get(name, f"the {name}") for name in parameters(error)))
    again = pickle.loads(pickle.dumps(made))  # noqa: S301  (our own)
    assert type(again) is error
    assert (again.args, str(again), vars(again)) == (made.args, str(made), vars(made))
    assert type(get_pickleable_exception(made)) is error


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the host; the schedule must not care."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("day", [datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)])
@pytest.mark.usefixtures("host_zone")
def test_the_schedule_has_nights_of_24_hours(day: datetime) -> None:
    """Through both changes of summer time every entry ticks as often as on any other day (D11)."""
    assert tasks.app.conf.timezone == "UTC"
    assert tasks.app.conf.enable_utc
    for name, entry in tasks.app.conf.beat_schedule.items():
        if isinstance(schedule := entry["schedule"], crontab):
            expected = len(schedule.hour) * len(schedule.minute)
            assert ticks(schedule, day, day + timedelta(days=1)) == expected, name


def ticks(schedule: crontab, since: datetime, until: datetime) -> int:
    """How often beat would send it, looking every five minutes, as often as anything here is due."""
    clock = [since]
    found, last = 0, since
    simulated = crontab(schedule._orig_minute, schedule._orig_hour, nowfun=lambda: clock[0], app=tasks.app)
    while clock[0] < until:
        clock[0] += timedelta(minutes=5)
        if simulated.is_due(last).is_due:
            found, last = found + 1, clock[0]
    return found


def test_a_worker_writes_events_as_json_lines(settings: Settings, pg: psycopg.Connection[Any], valkey_url: str) -> None:
    """Each stands on a line of its own, at its own level, with nothing of Celery before it."""
    make_rows(pg, 20)
    hurried = quick(settings, valkey_url)
    with publishing(hurried), runtime(hurried) as rt, workers(hurried, 1) as pool:
        finish(rt, pg, run_of(start(rt)))
        pool.wait_for_event("sweep.batch", outcome="applied", rows=20, level="info")
        lines = [line for line in pool.text().splitlines() if '"event"' in line]
    assert all(json.loads(line) for line in lines)


def test_children_that_are_replaced_lose_and_double_nothing(
    settings: Settings, pg: psycopg.Connection[Any], valkey_url: str
) -> None:
    """A child that made way after its task leaves no batch in hand (D21)."""
    make_rows(pg, 300)
    hurried = quick(settings, valkey_url, sweep_pause_ms=200)
    with (
        publishing(hurried),
        runtime(hurried) as rt,
        workers(hurried, 2, config="worker_max_tasks_per_child = 1") as pool,
    ):
        run = run_of(start(rt))
        finish(rt, pg, run, pool)
        assert len(pg.execute(WORKERS).fetchall()) > 2
    assert_purged(pg, run, rows=300)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1


def test_a_task_ends_long_before_its_message_is_delivered_again() -> None:
    """No wait that the broker holds, and no task, comes near the visibility timeout (D01, D02)."""
    conf = tasks.app.conf
    again = conf.broker_transport_options["visibility_timeout"]
    assert SHIFT.total_seconds() < conf.task_soft_time_limit < conf.task_time_limit
    assert conf.task_time_limit * 2 < again
    assert SOON.total_seconds() * 10 < again
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert conf.result_backend is None
    assert conf.task_ignore_result
