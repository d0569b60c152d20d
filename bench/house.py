"""The benchmark's own servers, its clones and the environment of what it starts; nothing of it is left behind."""

import atexit
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.subscriptions.keys import generate_log_key, generate_seal_key, generate_vapid_key

DATABASE: Final = "bench_run"
# fsync, full_page_writes, synchronous_commit, wal_level and compression stay as PostgreSQL ships them. A checkpoint
# within a timing would hit whoever is at work: every contender starts right after one and meets none. Autovacuum
# likewise; the live window puts it back.
OPTIONS: Final[Mapping[str, str]] = {
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",
    "min_wal_size": "2GB",  # segments are recycled: nobody pays for making new ones
    "checkpoint_timeout": "1h",
    "maintenance_work_mem": "256MB",
}

Answer = TypeVar("Answer")


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def wait_for(look: Callable[[], Answer | None], seconds: float, expected: str, every: float = 0.01) -> Answer:
    """Poll until ``look`` answers; RuntimeError saying what was expected when it does not in time."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected {expected} within {seconds:g} s, got none")
        time.sleep(every)
    return found


class House:
    """A private PostgreSQL and Valkey, and one database at a time that contenders work on."""

    def __init__(self, options: Mapping[str, str] = OPTIONS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pushops-bench-"))  # logs, and what workers leave behind
        self.postgres = PostgresServer(self.folder.with_name(self.folder.name + "-pg"), options=options)
        self.valkey = ValkeyServer(self.folder.with_name(self.folder.name + "-broker"))
        self.keys = _new_keys()

    @property
    def url(self) -> str:
        return self.postgres.url(DATABASE)

    def environment(self, **settings: object) -> dict[str, str]:
        """Settings of the database under test; the caller's own PUSHOPS_* and PG* reach nothing that is measured."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PUSHOPS_", "PG", "CELERY_", "SENTRY_"))}
        fixed = {
            "PUSHOPS_DATABASE_URL": self.url,
            "PUSHOPS_BROKER_URL": self.valkey.url(),
            "PUSHOPS_CONFIG": os.devnull,
        }
        return kept | self.keys | fixed | {f"PUSHOPS_{k.upper()}": str(v) for k, v in settings.items()}

    def admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres.url(), autocommit=True)

    def clone(self, template: str, *, synchronous: bool = True) -> None:
        """A fresh copy of a template, file by file."""
        with self.admin() as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {template} STRATEGY file_copy")
            if not synchronous:
                conn.execute(f"ALTER DATABASE {DATABASE} SET synchronous_commit = off")

    def keep(self, template: str) -> None:
        """Make the database as it is now a template of its own."""
        with self.admin() as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {template}")
            conn.execute(f"ALTER DATABASE {DATABASE} RENAME TO {template}")

    def autovacuum(self, *, on: bool) -> None:
        with self.admin() as conn:
            conn.execute(f"ALTER SYSTEM SET autovacuum = {'on' if on else 'off'}")
            conn.execute("SELECT pg_reload_conf()")

    def remove(self) -> None:
        self.valkey.remove()
        self.postgres.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(options: Mapping[str, str] = OPTIONS) -> Iterator[House]:
    """Servers that run for the length of the block, and are removed after it whatever happens."""
    house = House(options)
    atexit.register(house.remove)
    try:
        house.postgres.start()
        house.valkey.start()
        house.autovacuum(on=False)
        yield house
    finally:
        house.remove()
        atexit.unregister(house.remove)


def conditions() -> str:
    """What all contenders share, for the reader of the numbers."""
    set_here = ", ".join(f"{name}={value}" for name, value in OPTIONS.items())
    return (
        f"PostgreSQL: {set_here}; fsync, full_page_writes and wal_level at their defaults; each contender starts on a"
        " fresh file copy right after a CHECKPOINT and meets no other; autovacuum off except in the live window"
    )


def _new_keys() -> dict[str, str]:
    return {
        "PUSHOPS_LOG_HMAC_KEY": generate_log_key(),
        "PUSHOPS_SEAL_KEYS": json.dumps({"1": generate_seal_key()}),
        "PUSHOPS_VAPID_KEYS": json.dumps({"bench": generate_vapid_key().private_text}),
        "PUSHOPS_VAPID_KEY_ID": "bench",
        "PUSHOPS_VAPID_SUBJECT": "mailto:bench@example.org",
    }
