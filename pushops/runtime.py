"""What a process works with: opened once, after fork, and passed down."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import redis

from pushops.db import Database
from pushops.errors import SettingsError
from pushops.events import Events, Sink
from pushops.events.log import log_sink
from pushops.events.sentry import sentry_sink
from pushops.sandbox import Sandbox
from pushops.settings import Settings, load_settings

KEYS: Final = ("seal_keys", "log_hmac_key", "vapid_keys", "key_provider")
OWN: Final = ("vapid_subject", "payload_store", "spool")  # what is set stays, beside a sandbox too
NO_DATABASE: Final = "expected PUSHOPS_DATABASE_URL to be set, or a sandbox that is up (pushops sandbox up)"


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
    """Settings; with no database and no broker named, those of a sandbox that is up, which is said on stderr.

    Raises SettingsError. All or nothing: a purge must not find a database by accident, nor a database of one's own
    meet the sandbox's broker. The sandbox's own keys are used where none are set.
    """
    found = load_settings()
    if any((found.database_url, found.broker_url, found.redis_url)):
        return found
    sandbox = Sandbox()
    info = sandbox.info()
    if info is None:
        return found
    own_keys = any(getattr(found, name) for name in KEYS)
    _say_sandbox(info.folder, "; the keys are those that are set, none of its own" if own_keys else "")
    lent = {**info.settings(), **({} if own_keys else sandbox.keys())}
    kept = [name for name in OWN if getattr(found, name) is not None]
    return load_settings(**{name: value for name, value in lent.items() if name not in kept})


@cache
def _say_sandbox(folder: Path, keys: str) -> None:
    """Once in a process is enough."""
    print(f"pushops: no PUSHOPS_DATABASE_URL is set, using the sandbox in {folder}{keys}", file=sys.stderr)  # noqa: T201


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
    try:
        return redis.Redis.from_url(url.get_secret_value(), socket_timeout=limit, socket_connect_timeout=limit)
    except ValueError:  # its text repeats parts of what it could not read
        name = "PUSHOPS_REDIS_URL" if settings.redis_url else "PUSHOPS_BROKER_URL"
        raise SettingsError(
            f"expected {name} to be a URL such as redis://host:6379/0 (percent-encode special characters in the"
            " password), got a value that is not shown"
        ) from None


def _sinks(settings: Settings) -> tuple[Sink, ...]:
    log = log_sink(settings.log_format, settings.log_level)
    return (log,) if settings.sentry_dsn is None else (log, sentry_sink(settings.sentry_dsn.get_secret_value()))
