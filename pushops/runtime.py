"""What a process works with: opened once, after fork, and passed down."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from pushops.db import Database
from pushops.events import Events, Sink
from pushops.events.log import log_sink
from pushops.events.sentry import sentry_sink
from pushops.sandbox import Sandbox
from pushops.settings import Settings, load_settings


@dataclass(frozen=True)
class Runtime:
    """Settings, the database, Redis (None where no broker is configured) and events. Never looked up, always passed."""

    settings: Settings
    db: Database
    redis: "redis.Redis | None"
    events: Events

    def close(self) -> None:
        self.db.close()
        if self.redis is not None:
            self.redis.close()


def settings_or_sandbox() -> Settings:
    """Settings; with no database or broker named, those of a sandbox that is up, which is said on stderr.

    Raises SettingsError. Never falls back on anything else: a purge must not find a database by accident.
    """
    found = load_settings()
    if found.database_url is not None or found.broker_url is not None:
        return found
    sandbox = Sandbox().info()
    if sandbox is None:
        return found
    print(f"pushops: no PUSHOPS_DATABASE_URL is set, using the sandbox in {sandbox.folder}", file=sys.stderr)  # noqa: T201
    return load_settings(database_url=sandbox.database_url, broker_url=sandbox.broker_url)


def open_runtime(settings: Settings | None = None, *, sinks: tuple[Sink, ...] = ()) -> Runtime:
    """Open a runtime in this process. Raises SettingsError; nothing is connected before the first use."""
    found = settings or load_settings()
    return Runtime(found, Database(found), _redis(found), Events((*_sinks(found), *sinks)))


@contextmanager
def runtime(settings: Settings | None = None) -> Iterator[Runtime]:
    """A runtime for the length of a block."""
    opened = open_runtime(settings)
    try:
        yield opened
    finally:
        opened.close()


def _redis(settings: Settings) -> "redis.Redis | None":
    url = settings.redis_url or settings.broker_url
    if url is None or not url.get_secret_value().startswith(("redis", "unix", "valkey")):
        return None
    limit = settings.broker_timeout.total_seconds()
    return redis.Redis.from_url(url.get_secret_value(), socket_timeout=limit, socket_connect_timeout=limit)


def _sinks(settings: Settings) -> tuple[Sink, ...]:
    log = log_sink(settings.log_format, settings.log_level)
    return (log,) if settings.sentry_dsn is None else (log, sentry_sink(settings.sentry_dsn.get_secret_value()))
