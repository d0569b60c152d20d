"""What tests of sweeps share: rows in bulk, workers and beats as processes, and what must hold at the end of a run."""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID

import psycopg
import redis
from pydantic import SecretStr

from pushops import tasks
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings, format_duration
from pushops.sweeps import service
from pushops.sweeps.dispatch import Dispatched, Order, dispatch
from pushops.sweeps.sweep import Sweep

ROOT: Final = Path(__file__).resolve().parent.parent
DEADLINE: Final = 20.0  # seconds; far above what any wait here takes
POLL: Final = 0.02
TENDING: Final = 0.1  # between two looks of a test that does beat's work

# The shortest times that the settings accept, small pages, and a table that may go as a whole.
QUICK: Final[Mapping[str, Any]] = {
    "statement_timeout": timedelta(milliseconds=2500),
    "sweep_lease": timedelta(seconds=5),
    "sweep_grace": timedelta(seconds=1),
    "sweep_pause_ms": 0,
    "sweep_batch_rows": 20,
    "sweep_max_share": 1.0,
    "sweep_walk": "index",
    "broker_timeout": timedelta(milliseconds=500),
}
TEND: Final = {"task": "pushops.tend_sweeps", "schedule": 0.3}


def quick(settings: Settings, broker_url: str | None = None, **changes: Any) -> Settings:
    """The same settings, in a hurry; values are not validated again before a worker reads them."""
    broker = {} if broker_url is None else {"broker_url": SecretStr(broker_url)}
    return settings.model_copy(update={**QUICK, **broker, **changes})


# Rows ------------------------------------------------------------------------------------------------------------

# One statement whatever the number: the hash is of a name that no other call gives.
MAKE_ROWS: Final = """
INSERT INTO push_subscription
       (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, vapid_key_id, user_id, origin,
        state, created_at, registered_at, last_seen_at, state_since, revoked_at, deleted_at, scrubbed_at, end_reason)
SELECT sha256(convert_to(name, 'UTF8')), CASE WHEN NOT %(scrubbed)s THEN 'https://push.example.org/' || name END,
       'other', CASE WHEN NOT %(scrubbed)s THEN repeat('B', 87) END,
       CASE WHEN NOT %(scrubbed)s THEN decode(repeat('00', 44), 'hex') END, CASE WHEN NOT %(scrubbed)s THEN 1 END,
       'test', %(user)s, '', %(state)s, began, began, began, began, ended, ended,
       CASE WHEN %(scrubbed)s THEN ended + interval '3 days' END, CASE WHEN ended IS NOT NULL THEN 'gone' END
  FROM (SELECT %(salt)s || '-' || n AS name,
               now() - interval '200 days' AS began,
               CASE WHEN %(state)s IN ('expired', 'revoked')
                    THEN now() - %(ended_ago)s::interval + n * interval '1 millisecond' END AS ended
          FROM generate_series(1, %(count)s) AS n) AS rows"""


def make_rows(  # every column that a sweep looks at
    pg: psycopg.Connection[Any],
    count: int,
    *,
    state: str = "revoked",
    ended_ago: timedelta = timedelta(days=100),
    scrubbed: bool = True,
    user: str | None = None,
) -> str:
    """Insert rows; ended states make tombstones that ended a millisecond after each other. Returns their salt."""
    salt = secrets.token_hex(8)
    ended = state in ("expired", "revoked")
    values = {"salt": salt, "count": count, "state": state, "ended_ago": ended_ago, "scrubbed": scrubbed and ended}
    pg.execute(MAKE_ROWS, values | {"user": user})
    return salt


def hashes(pg: psycopg.Connection[Any]) -> set[bytes]:
    """Who is in the table: what a test compares before and after."""
    return {row[0] for row in pg.execute("SELECT endpoint_hash FROM push_subscription")}


def count(pg: psycopg.Connection[Any], query: str, *params: Any) -> int:
    row = pg.execute(query, params or None).fetchone()
    return int(row[0]) if row else 0


def tombstones(pg: psycopg.Connection[Any]) -> int:
    return count(pg, "SELECT count(*) FROM push_subscription WHERE deleted_at IS NOT NULL")


# Runs ------------------------------------------------------------------------------------------------------------


def start(rt: Runtime, sweep: Sweep = PURGE_TOMBSTONES, **order: Any) -> Dispatched:
    """Open or join a run and ring for workers through the app's own bell, as beat's task does."""
    bell = tasks.bell(rt) if rt.settings.broker_url else None
    return dispatch(rt, sweep, bell, Order(started_by="test", **order))


def run_of(found: Dispatched) -> UUID:
    assert found.run is not None
    return found.run.run_id


def tend(rt: Runtime) -> list[Dispatched]:
    return service.tend(rt, SWEEPS, tasks.bell(rt), granting=True)


def finish(rt: Runtime, pg: psycopg.Connection[Any], run_id: UUID, *crew: "Process") -> None:
    """Tend as beat does, until the run is closed; where that fails, say what the crew wrote."""

    def done() -> bool:
        tend(rt)
        return closed(pg, run_id)

    wait_until(done, expected=lambda: "\n".join(["the run's end", *(it.tail() for it in crew)]), poll=TENDING)


def open_runs(pg: psycopg.Connection[Any]) -> int:
    return count(pg, "SELECT count(*) FROM sweep_run WHERE closed_at IS NULL")


def closed(pg: psycopg.Connection[Any], run_id: UUID) -> bool:
    return count(pg, "SELECT count(*) FROM sweep_run WHERE run_id = %s AND closed_at IS NOT NULL", run_id) == 1


def state_of(pg: psycopg.Connection[Any], run_id: UUID) -> tuple[str, str | None]:
    """The run's state and why."""
    row = pg.execute("SELECT state, why FROM sweep_run WHERE run_id = %s", [run_id]).fetchone()
    assert row is not None
    return row[0], row[1]


def expire_leases(pg: psycopg.Connection[Any], batch_id: UUID | None = None) -> None:
    """Age the leases that a dead worker left: the rows, not the clock."""
    pg.execute(
        "UPDATE sweep_batch SET claimed_until = clock_timestamp() - interval '1 ms'"
        " WHERE state = 'claimed' AND (%s::uuid IS NULL OR batch_id = %s::uuid)",
        [batch_id, batch_id],
    )
    if batch_id is None:
        pg.execute("UPDATE sweep_slot SET free_at = clock_timestamp() WHERE holder IS NOT NULL")


def assert_every_batch_has_one_receipt(
    pg: psycopg.Connection[Any], run_id: UUID | None = None, *, rows: int | None = None
) -> None:
    """Done batches and receipts are the same set, nothing is in hand, and the receipts' rows are the rows gone.

    Of one run, or of all runs together.
    """
    mine = {"run": run_id}
    done = _ids(pg, "SELECT batch_id FROM sweep_batch WHERE state = 'done'", mine)
    receipts = _ids(pg, "SELECT batch_id FROM sweep_receipt WHERE true", mine)
    assert len(receipts) == len(set(receipts)), "a batch with two receipts"
    assert set(done) == set(receipts), "done batches and receipts differ"
    left = pg.execute(
        "SELECT state, count(*) FROM sweep_batch WHERE state IN ('due', 'claimed')"
        " AND (%(run)s::uuid IS NULL OR run_id = %(run)s::uuid) GROUP BY state",
        mine,
    ).fetchall()
    assert not left, f"batches left over: {left}"
    if rows is not None:
        found = pg.execute(
            "SELECT coalesce(sum(rows_done), 0) FROM sweep_receipt"
            " WHERE %(run)s::uuid IS NULL OR run_id = %(run)s::uuid",
            mine,
        ).fetchone()
        assert found is not None
        assert found[0] == rows, "the receipts do not add up to the rows that are gone"


def _ids(pg: psycopg.Connection[Any], query: str, values: Mapping[str, Any]) -> list[UUID]:
    query += " AND (%(run)s::uuid IS NULL OR run_id = %(run)s::uuid)"
    return [row[0] for row in pg.execute(query, values)]


def assert_purged(pg: psycopg.Connection[Any], run_id: UUID, rows: int) -> None:
    """A purge of ``rows`` tombstones ended well: all gone, folded into the counters, every batch with one receipt."""
    assert state_of(pg, run_id) == ("done", None)
    assert tombstones(pg) == 0
    assert count(pg, "SELECT coalesce(sum(ended), 0) FROM subscription_ended_daily") == rows
    assert_every_batch_has_one_receipt(pg, run_id, rows=rows)


# Waiting ---------------------------------------------------------------------------------------------------------


def wait_until(
    condition: Callable[[], Any],
    timeout: float = DEADLINE,
    expected: str | Callable[[], str] = "the condition",
    *,
    poll: float = POLL,
) -> Any:
    """Poll until the condition is true and return what it returned; AssertionError at the deadline."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            what = expected if isinstance(expected, str) else expected()
            raise AssertionError(f"expected within {timeout:g} s: {what}")
        time.sleep(poll)
    return found


@dataclass(frozen=True)
class Process:
    """A worker or a beat with a log that holds its events, one JSON object each among Celery's own lines."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Its events of that name whose fields have these values, oldest first."""
        found = [event for event in map(_event, self.text().splitlines()) if event and event["event"] == name]
        return [e for e in found if all(e.get(key) == _plain(value) for key, value in fields.items())]

    def tail(self) -> str:
        return self.text()[-3000:]

    def wait_for_event(self, name: str, *, timeout: float = DEADLINE, **fields: Any) -> dict[str, Any]:
        found: list[dict[str, Any]] = wait_until(
            lambda: self.events(name, **fields), timeout, lambda: f"an event {name} {fields} in\n{self.tail()}"
        )
        return found[0]

    def wait_for_text(self, text: str, timeout: float = DEADLINE) -> None:
        wait_until(lambda: text in self.text() or self._gone(text), timeout, lambda: f"{text!r} in\n{self.tail()}")

    def children(self) -> list[int]:
        """The pids of a prefork pool."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def kill(self) -> None:
        """SIGKILL for the process and its pool, as the kernel's or an operator's would be."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()

    def terminate(self, timeout: float = DEADLINE) -> int:
        """SIGTERM (warm shutdown), and the exit code."""
        self.popen.terminate()
        return self.popen.wait(timeout)

    def _gone(self, text: str) -> bool:
        assert self.popen.poll() is None, f"expected {text!r}, but it ended with\n{self.tail()}"
        return False


def _event(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        found = json.loads(line[line.index('{"') :])
        return found if isinstance(found, dict) and "event" in found else None
    return None


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


# Processes -------------------------------------------------------------------------------------------------------


@contextmanager
def workers(
    settings: Settings,
    n: int = 2,
    *,
    pool: str = "prefork",
    config: str = "",
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Process]:
    """A worker process with a pool of ``n``; ``config`` is Python that follows the package's own celeryconfig.

    Killed at the end. Without ``ready`` it is not waited for.
    """
    arguments = ["worker", "-P", pool, "-c", str(n), "-l", "info", "--without-mingle", "--without-gossip"]
    arguments += ["-n", f"w{next(_numbers)}@test"]
    with _celery(settings, arguments, config, environment or {}) as process:
        if ready:
            process.wait_for_text(" ready.")
        yield process


@contextmanager
def beat(settings: Settings, schedule: Mapping[str, Mapping[str, Any]]) -> Iterator[Process]:
    """A beat with this schedule in the place of the nightly one. Killed at the end."""
    config = f"beat_schedule = {dict(schedule)!r}\nbeat_max_loop_interval = 0.2\n"
    with _celery(settings, ["beat", "-l", "info", "-s", "schedule"], config, {}) as process:
        yield process


@contextmanager
def _celery(
    settings: Settings, arguments: Sequence[str], config: str, environment: Mapping[str, str]
) -> Iterator[Process]:
    with TemporaryDirectory(prefix="pushops-celery-") as name:
        folder = Path(name)
        (folder / "celeryconfig.py").write_text(f"from pushops.celeryconfig import *\n{config}")
        paths = os.pathsep.join([str(folder), str(ROOT)])
        env = {**os.environ, **as_environment(settings), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **environment}
        log = folder / "log"
        with log.open("wb") as sink:
            command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "pushops.tasks", *arguments]
            popen = subprocess.Popen(
                command, cwd=folder, env=env, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, start_new_session=True
            )
            process = Process(popen, log)
            try:
                yield process
            finally:
                process.kill()


def as_environment(settings: Settings) -> dict[str, str]:
    """The variables that make a process read the same settings; defaults are left out."""
    defaults = type(settings).model_fields
    changed = {name: getattr(settings, name) for name in defaults if getattr(settings, name) != defaults[name].default}
    return {f"PUSHOPS_{name.upper()}": _text(value) for name, value in changed.items()}


def _text(value: Any) -> str:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case timedelta():
            return format_duration(value)
        case dict():
            return json.dumps({key: _text(inner) for key, inner in value.items()})
        case _:
            return str(value)


@contextmanager
def publishing(settings: Settings, **options: Any) -> Iterator[None]:
    """Let this process publish to the settings' broker through the app itself; ``options`` are the transport's."""
    assert settings.broker_url is not None
    before = {name: tasks.app.conf[name] for name in ("broker_url", "broker_transport_options")}
    limit = settings.broker_timeout.total_seconds()
    limits = {"socket_timeout": limit, "socket_connect_timeout": limit}
    transport = {**before["broker_transport_options"], **limits, **options}
    url = settings.broker_url.get_secret_value()
    _point(broker_url=url, broker_read_url=url, broker_write_url=url, broker_transport_options=transport)
    try:
        yield
    finally:
        _point(**before, broker_read_url=None, broker_write_url=None)


def _point(**conf: Any) -> None:
    tasks.app.conf.update(conf)
    tasks.app._after_fork()  # pools are made anew, as in a child


def queue_length(client: "redis.Redis", queue: str = "pushops") -> int:
    """Messages that wait, of every priority, and those in hand: as the broker itself sees them."""
    lists: list[bytes] = [key for key in client.scan_iter(f"{queue}*") if client.type(key) == b"list"]
    return sum(int(client.llen(key)) for key in lists) + int(client.hlen("unacked"))


_numbers = itertools.count(1)
