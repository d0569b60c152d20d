"""The connection pool: opened after fork, checked at every checkout, closed at shutdown."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from pushops.db.errors import translated
from pushops.db.transaction import Params, Tx, render
from pushops.errors import SettingsError
from pushops.settings import Settings

Row = TypeVar("Row")
MAX_LIFETIME: Final = timedelta(minutes=30)  # a failover is noticed within this even where nothing fails
IDLE_IN_TRANSACTION: Final = timedelta(seconds=30)  # our own bug must not hold back vacuum

# One round trip sets everything; SET LOCAL, since a pooler may hand the session to somebody else afterwards. In UTC,
# since Python subtracts on the wall clock: where that was put forward meanwhile, 90 days would be an hour short.
BEGIN: Final[LiteralString] = """
SELECT set_config('statement_timeout', %(statement_timeout)s::text, true),
       set_config('lock_timeout', %(lock_timeout)s::text, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s::text, true),
       set_config('TimeZone', 'UTC', true),
       set_config('synchronous_commit', coalesce(%(synchronous)s::text, current_setting('synchronous_commit')), true),
       now()"""

# A demoted primary answers SELECT 1 and refuses every write: such a connection is not one.
CHECK: Final[LiteralString] = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean"


class ReadOnlyServerError(psycopg.OperationalError):
    """The pool's check found a server that cannot be written to."""


class Database:
    """A pool of our own settings. Make it in the process that uses it: it refuses to be used across a fork."""

    def __init__(self, settings: Settings) -> None:
        self.schema = settings.db_schema
        self._settings = settings
        self._pid = os.getpid()
        self._pool = _make_pool(settings)

    @contextmanager
    def transaction(
        self,
        *,
        statement_timeout: timedelta | None = None,
        lock_timeout: timedelta | None = None,
        asynchronous: bool = False,
        conn: Connection[Any] | None = None,
    ) -> Iterator[Tx]:
        """One transaction with its limits; ``conn`` joins the caller's instead (its limits stay).

        ``asynchronous`` commits without waiting for the flush: sound only where effect and receipt vanish together.
        Errors leave as children of DatabaseError.
        """
        if conn is not None:
            with translated(), _begun(conn).transaction():
                yield Tx(conn, _now(conn), self.schema)
            return
        limits = {
            "statement_timeout": _milliseconds(statement_timeout or self._settings.statement_timeout),
            "lock_timeout": _milliseconds(lock_timeout or self._settings.lock_timeout),
            "idle": _milliseconds(IDLE_IN_TRANSACTION),
            "synchronous": "off" if asynchronous else None,
        }
        with translated(), self._connection() as own, own.transaction():
            row = own.execute(BEGIN, limits).fetchone()
            assert row is not None  # noqa: S101  (a SELECT without FROM)
            yield Tx(own, row[-1], self.schema)

    @contextmanager
    def autocommit(self) -> Iterator[Connection[Any]]:
        """A connection outside any transaction, for what PostgreSQL refuses inside one."""
        with translated(), self._connection() as conn:
            conn.autocommit = True
            try:
                yield conn
            finally:
                _end_autocommit(conn)

    def statement(self, query: LiteralString) -> str:
        """A constant with our schema in it, for EXPLAIN and printing."""
        return render(query, self.schema).decode()

    def execute_all(self, query: LiteralString, params: Params) -> list[tuple[Any, ...]]:
        with self.transaction() as tx:
            return tx.conn.execute(render(query, self.schema), params).fetchall()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._pool.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        if self._pid != os.getpid():
            raise RuntimeError("expected a Database made in this process, got one that was inherited through fork")
        with self._pool.connection() as conn:
            yield conn


def _make_pool(settings: Settings) -> ConnectionPool[Connection[Any]]:
    if settings.database_url is None:
        raise SettingsError("expected PUSHOPS_DATABASE_URL to be set (or a sandbox that is up: pushops sandbox up)")
    pool: ConnectionPool[Connection[Any]] = ConnectionPool(
        make_conninfo(settings.database_url.get_secret_value(), application_name="pushops", connect_timeout=5),
        min_size=0,
        max_size=settings.pool_size,
        timeout=10,
        max_lifetime=MAX_LIFETIME.total_seconds(),
        # Behind a transaction-mode pooler a prepared statement may not be there next time.
        kwargs={"prepare_threshold": None if settings.pooler else 5},
        check=_check,
        open=False,
        name="pushops",
    )
    pool.open()
    return pool


def _check(conn: Connection[Any]) -> None:
    conn.autocommit = True
    try:
        row = conn.execute(CHECK).fetchone()
    finally:
        _end_autocommit(conn)
    if row is not None and row[0]:
        raise ReadOnlyServerError("expected a server that can be written to, got one in recovery or read-only")


def _end_autocommit(conn: Connection[Any]) -> None:
    """Not where a Ctrl-C left a query running: psycopg's complaint would take the interruption's place."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        conn.autocommit = False


def _begun(conn: Connection[Any]) -> Connection[Any]:
    """Begin the caller's transaction where psycopg would with their first statement: ours must not end as one."""
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        conn.execute("SELECT")
    return conn


def _now(conn: Connection[Any]) -> Any:  # noqa: ANN401  (datetime, but the row factory is the caller's)
    with conn.cursor(row_factory=psycopg.rows.scalar_row) as cursor:
        return cursor.execute("SELECT now()").fetchone()


def _milliseconds(value: timedelta) -> str:
    return str(value // timedelta(milliseconds=1))
