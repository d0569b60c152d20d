"""The connection pool: opened after fork, checked at every checkout, closed at shutdown."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, LiteralString

import psycopg
from psycopg import Connection, Rollback
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from pushops.db.errors import translated
from pushops.db.target import conninfo
from pushops.db.transaction import Tx
from pushops.settings import Settings

MAX_LIFETIME: Final = timedelta(minutes=30)  # a failover is noticed within this even where nothing fails
IDLE_IN_TRANSACTION: Final = timedelta(seconds=30)  # our own bug must not hold back vacuum
MILLISECOND: Final = timedelta(milliseconds=1)

# SET LOCAL, since a pooler may hand the session to somebody else afterwards. In UTC, since Python subtracts on the
# wall clock: where that was put forward meanwhile, 90 days would be an hour short. In ISO, since psycopg reads no other
# form, and a database or a role may have one.
LIMITS: Final = {
    "TimeZone": "'UTC'",
    "DateStyle": "'ISO'",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION // MILLISECOND),
}

# A demoted primary answers SELECT 1 and refuses every write: such a connection is not one.
CHECK: Final[LiteralString] = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean"


NO_OPTIONS: Final[Mapping[str, str]] = {}


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
        planner: Mapping[str, str] = NO_OPTIONS,
        on: Connection[Any] | None = None,
        conn: Connection[Any] | None = None,
    ) -> Iterator[Tx]:
        """One transaction with its limits; ``conn`` joins the caller's instead (its limits stay).

        ``asynchronous`` commits without waiting for the flush: sound only where effect and receipt vanish together.
        ``planner`` sets options of the planner for its length; ``on`` is a connection that was borrowed for several.
        Errors leave as children of DatabaseError.
        """
        if conn is not None:
            with translated(), _begun(conn).transaction():
                yield Tx(conn, _now(conn), self.schema)
            return
        limits = {
            "statement_timeout": str((statement_timeout or self._settings.statement_timeout) // MILLISECOND),
            "lock_timeout": str((lock_timeout or self._settings.lock_timeout) // MILLISECOND),
        }
        flush = {"synchronous_commit": "off"} if asynchronous else {}
        with translated(), self.borrowed(on) as own, _transaction(own, {**LIMITS, **limits, **flush, **planner}) as now:
            yield Tx(own, now, self.schema)

    @contextmanager
    def borrowed(self, own: Connection[Any] | None = None) -> Iterator[Connection[Any]]:
        """A checked connection for several transactions in a row, in autocommit between them."""
        if own is not None:
            yield own
            return
        with translated(), self._connection() as conn:
            yield conn

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
    pool: ConnectionPool[Connection[Any]] = ConnectionPool(
        conninfo(settings, "pushops"),
        min_size=0,
        max_size=settings.pool_size,
        timeout=10,
        max_lifetime=MAX_LIFETIME.total_seconds(),
        # Behind a transaction-mode pooler a prepared statement may not be there next time.
        kwargs={"prepare_threshold": None if settings.pooler else 5, "autocommit": True},
        check=_check,
        open=False,
        name="pushops",
    )
    pool.open()
    return pool


def _check(conn: Connection[Any]) -> None:
    row = conn.execute(CHECK).fetchone()
    if row is not None and row[0]:
        raise ReadOnlyServerError("expected a server that can be written to, got one in recovery or read-only")


@contextmanager
def _transaction(conn: Connection[Any], options: Mapping[str, str]) -> Iterator[Any]:
    """Begin, set and look at the clock in one round trip; commit, or roll back what raised. Gives ``now``."""
    settings = "".join(f"SET LOCAL {name} = {value}; " for name, value in options.items())
    cursor = conn.execute(f"BEGIN; {settings}SELECT now()".encode(), prepare=False)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None  # noqa: S101  (a SELECT without FROM)
    try:
        yield row[0]
    except Rollback:
        conn.execute("ROLLBACK", prepare=False)
    except BaseException:
        _roll_back(conn)
        raise
    else:
        _commit(conn)


def _commit(conn: Connection[Any]) -> None:
    """PostgreSQL answers ROLLBACK to the COMMIT of a failed transaction, without an error."""
    if conn.execute("COMMIT", prepare=False).statusmessage != "COMMIT":
        raise psycopg.errors.InFailedSqlTransaction("expected a transaction to commit, it had failed")


def _roll_back(conn: Connection[Any]) -> None:
    """Not where an interruption left a query running: the pool throws such a connection away."""
    if conn.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            conn.execute("ROLLBACK", prepare=False)


def _begun(conn: Connection[Any]) -> Connection[Any]:
    """Begin the caller's transaction where psycopg would with their first statement: ours must not end as one."""
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        conn.execute("SELECT")
    return conn


def _now(conn: Connection[Any]) -> Any:  # noqa: ANN401  (datetime, but the row factory is the caller's)
    with conn.cursor(row_factory=psycopg.rows.scalar_row) as cursor:
        return cursor.execute("SELECT now()").fetchone()
