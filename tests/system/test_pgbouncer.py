"""Behind a transaction-mode pooler (failure cases C10 and C11): a session is another backend in each transaction."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

import psycopg
import pytest

from pushops.db.errors import classify
from pushops.db.migrate import current, migrate, pending
from pushops.errors import PushopsError
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox import PostgresServer
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.sweeps.work import work
from tests import servers, sweeping
from tests.browser import subscribe
from tests.conftest import FAST
from tests.made import make_settings
from tests.migrating import write_revisions
from tests.system import bouncer as bouncers
from tests.system.bouncer import SIZE, Bouncer

THREADS: Final = 6
ROWS: Final = 3000

# A named statement or a session lock, as the server's log of all statements would show them.
NAMED: Final = re.compile(r"(parse|bind|execute) (?!<unnamed>)\w+: ")
SESSION_LOCK: Final = re.compile(r"pg_(try_)?advisory_(un)?lock")

# What PgBouncer itself sets in a session, for its client. Everything else must be as the server started.
OF_POOLER: Final = ("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings")
LEFT_BEHIND: Final = "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> ALL (%s)"

# An advisory lock of a backend that is in no transaction was taken for the session.
STRANDED: Final = """
SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND a.xact_start IS NULL"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """The wheel's PostgreSQL; its log tells each statement."""
    with servers.postgres(FAST | {"log_statement": "all"}) as started:
        yield started


@pytest.fixture(scope="module")
def bouncer(server: PostgresServer) -> Iterator[Bouncer]:
    with bouncers.before(server) as started:
        yield started


@pytest.fixture(scope="module")
def migrated(server: PostgresServer) -> str:
    migrate(make_settings(server.create_database("migrated")))
    return "migrated"


@pytest.fixture
def database(server: PostgresServer, migrated: str) -> str:
    """A database of the test's own, by name: there are two ways to it."""
    name = f"pooled_{next(_numbers)}"
    server.create_database(name, migrated)
    return name


@pytest.fixture
def settings(bouncer: Bouncer, database: str) -> Settings:
    made = make_settings(bouncer.url(database), pooler=True, pool_size=THREADS + 2, max_live_per_user=3)
    return sweeping.quick(made, sweep_max_parallel=THREADS, sweep_batch_rows=50)


@pytest.fixture
def runtime(settings: Settings, bouncer: Bouncer, database: str) -> Iterator[Runtime]:
    assert len(backends(bouncer, database)) == SIZE
    opened = open_runtime(settings)
    yield opened
    opened.close()


@pytest.fixture
def pg(server: PostgresServer, database: str) -> Iterator[psycopg.Connection[Any]]:
    """Past the pooler."""
    with psycopg.connect(server.url(database), autocommit=True, options="-c search_path=pushops") as conn:
        yield conn


def on_every_backend(bouncer: Bouncer, database: str, look: Callable[[psycopg.Connection[Any]], Any]) -> list[Any]:
    """What ``look`` sees in each server connection of the pool, all held at once."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(psycopg.connect(bouncer.url(database), prepare_threshold=None)) for _ in range(SIZE)
        ]
        pids = {client: client.execute("SELECT pg_backend_pid()").fetchone() for client in clients}
        assert len(set(pids.values())) == SIZE
        return [look(client) for client in clients]


def backends(bouncer: Bouncer, database: str) -> set[int]:
    return {
        row[0]
        for row in on_every_backend(bouncer, database, lambda c: c.execute("SELECT pg_backend_pid()"))
        for row in [row.fetchone()]
    }


class Log:
    """What the server logged since."""

    def __init__(self, server: PostgresServer) -> None:
        self._path = server.log
        self._start = server.log.stat().st_size

    def text(self) -> str:
        return self._path.read_bytes()[self._start :].decode(errors="replace")

    def pids(self, statement: str) -> set[str]:
        """The backends that ran it."""
        return set(re.findall(rf"\[(\d+)\] LOG:  execute \S+: \s*{statement}", self.text()))


# The pooler ------------------------------------------------------------------------------------------------------


def test_a_session_moves_between_backends(runtime: Runtime) -> None:
    pids = set()
    for _ in range(4 * SIZE):
        with runtime.db.transaction() as tx:
            pids.add(tx.scalar("SELECT pg_backend_pid()", {}))
    assert len(pids) == SIZE


def test_a_prepared_statement_is_lost_on_the_way(bouncer: Bouncer, database: str) -> None:
    backends(bouncer, database)
    with (
        psycopg.connect(bouncer.url(database), autocommit=True) as conn,
        pytest.raises(psycopg.errors.InvalidSqlStatementName) as raised,
    ):
        repeat(conn)
    error = classify(raised.value)
    assert error.retryable
    assert "PUSHOPS_POOLER=true" in str(error)


def repeat(conn: psycopg.Connection[Any]) -> None:
    for _ in range(4 * SIZE):
        conn.execute("SELECT 1")


def test_without_the_setting_statements_are_prepared(
    settings: Settings, server: PostgresServer, bouncer: Bouncer, database: str
) -> None:
    """So that the tests below would see it."""
    backends(bouncer, database)
    log, rt = Log(server), open_runtime(settings.model_copy(update={"pooler": False}))
    with suppress(PushopsError), closing(rt):
        for _ in range(20):
            service.save_subscription(rt, subscribe())
    assert NAMED.search(log.text())


# The runtime -----------------------------------------------------------------------------------------------------


def test_the_upsert_may_be_repeated(runtime: Runtime, pg: psycopg.Connection[Any], server: PostgresServer) -> None:
    log, first = Log(server), subscribe()
    for _ in range(40):
        service.save_subscription(runtime, subscribe(first["endpoint"]), user_id="u", origin="https://example.org")
    assert sweeping.count(pg, "SELECT registration_no FROM push_subscription") == 40
    assert len(log.pids('(?s:.{0,2000}?)INSERT INTO "pushops".push_subscription')) == SIZE


def test_limits_of_a_transaction_stay_in_it(runtime: Runtime, bouncer: Bouncer, database: str) -> None:
    for n in range(4 * SIZE):
        limit = timedelta(milliseconds=200 + n)
        with runtime.db.transaction(statement_timeout=limit, lock_timeout=limit, asynchronous=True) as tx:
            assert tx.scalar("SELECT current_setting('statement_timeout')", {}) == f"{200 + n}ms"
            assert tx.scalar("SELECT current_setting('synchronous_commit')", {}) == "off"
    assert left_behind(bouncer, database) == []


def test_a_setting_that_stayed_would_be_seen(bouncer: Bouncer, database: str) -> None:
    backends(bouncer, database)
    with psycopg.connect(bouncer.url(database), autocommit=True) as conn:
        conn.execute("SET statement_timeout = '123ms'")
    assert left_behind(bouncer, database) == [("statement_timeout", "123")]


def left_behind(bouncer: Bouncer, database: str) -> list[tuple[str, str]]:
    found = on_every_backend(bouncer, database, lambda c: c.execute(LEFT_BEHIND, [list(OF_POOLER)]).fetchall())
    return list(itertools.chain.from_iterable(found))


# The engine ------------------------------------------------------------------------------------------------------


def test_a_purge_by_several_workers_beside_registrations(
    runtime: Runtime, pg: psycopg.Connection[Any], server: PostgresServer, bouncer: Bouncer, database: str
) -> None:
    sweeping.make_rows(pg, ROWS)
    old = sweeping.hashes(pg)
    run_id = sweeping.run_of(sweeping.start(runtime))
    with Traffic(runtime) as traffic, Watch(server.url(database)) as watch, ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: carry(runtime, run_id), range(THREADS)))
    assert sweeping.state_of(pg, run_id) == ("done", None)
    sweeping.assert_every_batch_has_one_receipt(pg, run_id, rows=ROWS)
    assert sweeping.count(pg, "SELECT sum(ended) FROM subscription_ended_daily") == ROWS
    assert not old & sweeping.hashes(pg)
    assert sweeping.count(pg, "SELECT count(*) FROM push_subscription") == traffic.saved
    assert sweeping.count(pg, "SELECT count(*) FROM push_subscription WHERE deleted_at IS NULL") == 3
    assert watch.looks > 10
    assert watch.stranded == 0
    assert sweeping.count(pg, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
    assert left_behind(bouncer, database) == []


def carry(rt: Runtime, run_id: UUID) -> None:
    """Work as a worker does, and dispatch as the tending does, until the run has ended."""
    deadline = time.monotonic() + sweeping.DEADLINE
    while sweeping.start(rt, opening=False).run is not None:
        assert time.monotonic() < deadline, "expected the run to end"
        work(rt, SWEEPS, run_id)


def test_the_server_saw_no_named_statement_and_no_session_lock(
    runtime: Runtime, pg: psycopg.Connection[Any], server: PostgresServer
) -> None:
    """The log does not depend on the moment at which one looks."""
    log = Log(server)
    service.save_subscription(runtime, subscribe(), user_id="u", origin="https://example.org")
    sweeping.make_rows(pg, ROWS // 10)
    carry(runtime, sweeping.run_of(sweeping.start(runtime)))
    text = log.text()
    assert "execute <unnamed>: " in text
    assert "pg_advisory_xact_lock" in text
    assert "DELETE FROM" in text
    assert not NAMED.search(text)
    assert not SESSION_LOCK.search(text)


class Traffic:
    """One user who registers from new devices all the time, at most three of which may live."""

    def __init__(self, rt: Runtime) -> None:
        self.saved = 0
        self._rt = rt
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._done = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._done.result(30)
        self._threads.shutdown()

    def _run(self) -> None:
        while not self._stop.is_set() or self.saved <= 10:
            service.save_subscription(self._rt, subscribe(), user_id="u", origin="https://example.org")
            self.saved += 1


class Watch:
    """Looks for stranded locks, past the pooler, as often as it can."""

    def __init__(self, url: str) -> None:
        self.looks = self.stranded = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._stop.wait(0.005):
                self.stranded += sweeping.count(conn, STRANDED)
                self.looks += 1


# Migrations ------------------------------------------------------------------------------------------------------


def test_migrations_apply_through_the_pooler(server: PostgresServer, bouncer: Bouncer) -> None:
    server.create_database("empty")
    pooled = make_settings(bouncer.url("empty"), pooler=True)
    todo = pending(pooled)
    assert todo
    assert migrate(pooled) == todo
    assert migrate(pooled) == []
    assert current(make_settings(server.url("empty"))) == todo[-1]
    assert left_behind(bouncer, "empty") == []


def test_two_migrations_at_once_with_a_concurrent_index(
    server: PostgresServer, bouncer: Bouncer, tmp_path: Path
) -> None:
    server.create_database("twice")
    versions = write_revisions(
        tmp_path / "versions",
        "CREATE TABLE {schema}.t (a int);",
        "CREATE INDEX CONCURRENTLY t_a ON {schema}.t (a);",
    )
    pooled = make_settings(bouncer.url("twice"), pooler=True)
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(lambda _: migrate(pooled, versions=versions), range(2)))
    assert sorted(done) == [[], ["0001", "0002"]]
    assert left_behind(bouncer, "twice") == []


_numbers = itertools.count(1)
