"""Who migrates: a row with an expiry, since a waiting lock would hold up CREATE INDEX CONCURRENTLY for ever."""

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, LiteralString

import psycopg
from psycopg import Connection

from pushops.db.transaction import render
from pushops.errors import DatabaseError, TransientDatabaseError

LEASE: Final = timedelta(seconds=30)
PATIENCE: Final = timedelta(hours=6)  # an index on a very large table, built by somebody else

TABLE: Final[LiteralString] = """
CREATE TABLE IF NOT EXISTS {schema}.migration_lease (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  token       uuid,
  holder      text,
  expires_at  timestamptz NOT NULL DEFAULT '-infinity',
  revision    text,
  steps_done  integer NOT NULL DEFAULT 0
)"""

ROW: Final[LiteralString] = "INSERT INTO {schema}.migration_lease DEFAULT VALUES ON CONFLICT DO NOTHING"

# SKIP LOCKED: a poller must not wait, not even for the moment in which the holder commits.
TAKE: Final[LiteralString] = """
UPDATE {schema}.migration_lease
   SET token = %(token)s::uuid, holder = %(holder)s::text, expires_at = clock_timestamp() + %(lease)s::interval
 WHERE only_row IN (SELECT only_row FROM {schema}.migration_lease
                     WHERE expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED)
RETURNING true"""

HOLDER: Final[LiteralString] = "SELECT holder FROM {schema}.migration_lease"

RENEW: Final[LiteralString] = """
UPDATE {schema}.migration_lease SET expires_at = clock_timestamp() + %(lease)s::interval
 WHERE token = %(token)s::uuid"""

RELEASE: Final[LiteralString] = """
UPDATE {schema}.migration_lease SET expires_at = '-infinity', token = NULL WHERE token = %(token)s::uuid"""

# In the step's own transaction: a holder that has lost its lease rolls its step back.
RECORD: Final[LiteralString] = """
UPDATE {schema}.migration_lease
   SET revision = %(revision)s::text, steps_done = %(steps)s::integer,
       expires_at = clock_timestamp() + %(lease)s::interval
 WHERE token = %(token)s::uuid"""

STEPS_DONE: Final[LiteralString] = """
SELECT steps_done FROM {schema}.migration_lease WHERE revision = %(revision)s::text"""

Progress = Callable[[str], None]
Connect = Callable[[], Connection[Any]]


class LeaseLostError(DatabaseError):
    """Another process took the lease over; what it does must not be done twice."""

    label = "migration_lease_lost"


@dataclass(frozen=True)
class Lease:
    schema: str
    token: uuid.UUID = field(default_factory=uuid.uuid4)

    def take(self, conn: Connection[Any]) -> bool:
        holder = f"{socket.gethostname()}:{os.getpid()}"
        return self._run(conn, TAKE, holder=holder).rowcount == 1

    def holder(self, conn: Connection[Any]) -> str:
        row = self._run(conn, HOLDER).fetchone()
        return str(row[0]) if row else "nobody"

    def steps_done(self, conn: Connection[Any], revision: str) -> int:
        """How many steps of a revision that was cut off are committed."""
        row = self._run(conn, STEPS_DONE, revision=revision).fetchone()
        return int(row[0]) if row else 0

    def record(self, conn: Connection[Any], revision: str, steps: int) -> None:
        """Note a step as done, renewing the lease. Raises LeaseLostError."""
        if self._run(conn, RECORD, revision=revision, steps=steps).rowcount != 1:
            raise LeaseLostError(f"expected to hold the migration lease, got it held by {self.holder(conn)}")

    def keep(self, connect: Connect, stop: threading.Event) -> None:
        """Renew until told to stop: one step may take longer than the lease. Lost connections are made again."""
        while not stop.is_set():
            with suppress(psycopg.Error), connect() as conn:
                while not stop.wait(LEASE.total_seconds() / 3):
                    self._run(conn, RENEW)
            stop.wait(1)

    def release(self, conn: Connection[Any]) -> None:
        self._run(conn, RELEASE)

    def _run(self, conn: Connection[Any], query: str, **params: object) -> psycopg.Cursor[Any]:
        return conn.execute(render(query, self.schema), {"token": self.token, "lease": LEASE, **params})


@contextmanager
def held(schema: str, connect: Connect, progress: Progress) -> Iterator[Lease]:
    """Wait for the lease, hold it for the block. No statement and no transaction is open while waiting."""
    lease, stop = Lease(schema), threading.Event()
    with connect() as conn:
        _wait(lease, conn, progress)
    renewal = threading.Thread(target=lease.keep, args=(connect, stop), name="migration-lease", daemon=True)
    renewal.start()
    try:
        yield lease
    finally:
        stop.set()
        renewal.join()
        with suppress(psycopg.Error), connect() as conn:  # it expires by itself where the server is gone
            lease.release(conn)


def _wait(lease: Lease, conn: Connection[Any], progress: Progress) -> None:
    deadline, told = time.monotonic() + PATIENCE.total_seconds(), None
    while not lease.take(conn):
        if (holder := lease.holder(conn)) != told:
            progress(f"waiting for {holder}, which migrates")
            told = holder
        if time.monotonic() > deadline:
            raise TransientDatabaseError(f"expected the migration by {holder} to end within {PATIENCE}, got it running")
        time.sleep(random.uniform(0.2, 0.6))  # noqa: S311  (spreads the pollers, nothing secret)
