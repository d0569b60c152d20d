"""Servers, databases and settings that tests share. Nothing of the developer's machine reaches a test."""

import atexit
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
import pytest
import redis

from pushops.db import Database, Tx
from pushops.db.migrate import migrate
from pushops.events import Level
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests import servers
from tests.made import make_settings
from tests.pushing import push_service

LEAKS: Final = ("PUSHOPS_", "PG", "SENTRY_", "CELERY_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_")

# No test of the shared server is about losing power; those that are bring a server of their own.
FAST: Final = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}

Recorded = tuple[Level, str, Mapping[str, Any]]


def pytest_configure() -> None:
    """Clean the environment, for this process and for those that tests start."""
    for name in [name for name in os.environ if name.startswith(LEAKS) or name.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ["PUSHOPS_CONFIG"] = os.devnull
    os.environ["PUSHOPS_SANDBOX_DIR"] = str(servers.new_folder("no-sandbox"))
    state = servers.new_folder("state")  # where payloads lie
    os.environ["XDG_STATE_HOME"] = str(state)
    atexit.register(shutil.rmtree, state, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process (pytest-xdist: one per worker)."""
    with servers.postgres(FAST) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    with servers.valkey() as server:
        yield server


@pytest.fixture(scope="session")
def admin(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="session")
def template(postgres_server: PostgresServer) -> str:
    """The name of a migrated database to clone."""
    migrate(make_settings(postgres_server.create_database("template_pushops")))
    return "template_pushops"


@pytest.fixture
def database_url(postgres_server: PostgresServer, admin: psycopg.Connection[Any], template: str) -> Iterator[str]:
    """A fresh, migrated database of the test's own; about 40 ms."""
    name = f"test_{next(_numbers)}"
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield postgres_server.url(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """The same without any migration."""
    name = f"empty_{next(_numbers)}"
    admin.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    yield postgres_server.url(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """The shared broker, emptied."""
    with redis.Redis.from_url(valkey_server.url()) as client:
        client.flushall()
    return valkey_server.url()


@pytest.fixture
def settings(database_url: str) -> Settings:
    """Settings with keys of their own and no broker; change them with ``settings.model_copy(update={...})``."""
    return make_settings(database_url)


@pytest.fixture
def recorded() -> list[Recorded]:
    """What ``runtime`` emitted: level, name, fields."""
    return []


@pytest.fixture
def runtime(settings: Settings, recorded: list[Recorded]) -> Iterator[Runtime]:
    opened = open_runtime(settings, sinks=(lambda level, name, fields: recorded.append((level, name, dict(fields))),))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def shared_database(
    postgres_server: PostgresServer, admin: psycopg.Connection[Any], template: str
) -> Iterator[Database]:
    """A migrated database that no test leaves anything in."""
    admin.execute(f"CREATE DATABASE shared TEMPLATE {template}")
    database = Database(make_settings(postgres_server.url("shared")))
    yield database
    database.close()


@pytest.fixture
def tx(shared_database: Database) -> Iterator[Tx]:
    """A transaction that is rolled back: for tests of one statement that need no second connection."""
    with shared_database.transaction() as opened:
        yield opened
        raise psycopg.Rollback


@pytest.fixture
def pg(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to look at the test's tables, in autocommit, with their schema on its search path."""
    with psycopg.connect(database_url, autocommit=True, options="-c search_path=pushops") as conn:
        yield conn


@pytest.fixture(scope="module")
def push_server() -> Iterator[PushService]:
    """One push service for a file of tests; ``pushed_to`` is what they use."""
    with push_service() as service:
        yield service


@pytest.fixture
def pushed_to(push_server: PushService) -> PushService:
    """The file's push service, in good health and with nothing counted."""
    push_server.outage(None)
    push_server.clear()
    push_server.reset_counts()
    return push_server


@pytest.fixture
def fresh_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, durable as in production: to kill, restart, replicate. Not migrated."""
    with servers.postgres() as server:
        yield server


@pytest.fixture
def fresh_valkey() -> Iterator[ValkeyServer]:
    with servers.valkey() as server:
        yield server


_numbers = itertools.count(1)
