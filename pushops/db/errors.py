"""The one place where a driver's error becomes one of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from pushops.errors import (
    ContendedError,
    DatabaseError,
    DataError,
    LockTimeoutError,
    SetupError,
    StatementTimeoutError,
    TransientDatabaseError,
)

_CONTENDED: Final = (pg.DeadlockDetected, pg.SerializationFailure)
# A transaction-mode pooler that the settings do not know of: no row is to blame, so none may be set apart for it.
_UNPREPARED: Final = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
_TRANSIENT: Final = (
    *_UNPREPARED,
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.IdleInTransactionSessionTimeout,
    pg.ReadOnlySqlTransaction,  # a demoted primary: its connection is discarded, another one may be writable
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)
_SETUP: Final = (
    pg.InsufficientPrivilege,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedFunction,
    pg.UndefinedObject,
    pg.InvalidSchemaName,
)
_DATA: Final = (psycopg.IntegrityError, psycopg.DataError, pg.RaiseException)
_PASSING: Final = {"08", "25", "26", "40", "53", "55", "57"}  # classes of SQLSTATE that a moment may mend
_KINDS: Final[tuple[tuple[tuple[type[Exception], ...], type[DatabaseError]], ...]] = (
    (_CONTENDED, ContendedError),
    (_SETUP, SetupError),
    (_DATA, DataError),
    (_TRANSIENT, TransientDatabaseError),
)


def classify(error: Exception) -> DatabaseError:
    """Our error for a driver's: timeouts ask for less work, data errors for isolation, the rest may pass.

    The text names the SQLSTATE and the constraint, never the row: PostgreSQL's DETAIL repeats values.
    """
    text = describe(error)
    match error:
        case pg.LockNotAvailable():
            return LockTimeoutError(text)
        case pg.QueryCanceled():
            return StatementTimeoutError(text)
        case psycopg.OperationalError(sqlstate=str() as state) if state[:2] not in _PASSING:
            return DatabaseError(text)  # a damaged block, a row too large: the same again, and perhaps one row's
        case _:
            found = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), DatabaseError)
            return found(text)


def describe(error: Exception) -> str:
    """``23503 ForeignKeyViolation on constraint orders_subscription_fkey``, without any value."""
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return type(error).__name__
    diagnosis = error.diag
    where = f" on constraint {diagnosis.constraint_name}" if diagnosis.constraint_name else ""
    table = f" of {diagnosis.schema_name}.{diagnosis.table_name}" if diagnosis.table_name else ""
    hint = ": behind a transaction-mode pooler set PUSHOPS_POOLER=true" if isinstance(error, _UNPREPARED) else ""
    return f"{error.sqlstate} {type(error).__name__}{where}{table}{hint}"


def words(error: Exception) -> str:
    """PostgreSQL's own words behind one of ours, for what an operator wrote; they may repeat it."""
    cause = error.__cause__ or error.__context__
    return (cause.diag.message_primary if isinstance(cause, psycopg.Error) else None) or str(error)


@contextmanager
def translated() -> Iterator[None]:
    """Driver errors leave the block as ours; the driver's own is not chained, since it may carry values."""
    try:
        yield
    except (psycopg.Error, PoolTimeout) as error:
        raise classify(error) from None
