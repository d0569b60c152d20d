"""PushopsError and its children: each knows a metric label, whether to retry and whether to report."""

from typing import ClassVar


class PushopsError(Exception):
    """Something pushops can name. Messages say what was expected and what came, never a secret or an endpoint.

    Children pass every argument to ``super().__init__`` so that Celery can pickle them.
    """

    label: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True


class SettingsError(PushopsError):
    """One or more settings are wrong; the message lists all of them."""

    label = "settings"
    reportable = False


class RefusedError(PushopsError):
    """A request was understood and refused; the caller can mend it."""

    label = "refused"
    reportable = False


class NotFoundError(RefusedError):
    """What was named does not exist."""

    label = "not_found"


class DatabaseError(PushopsError):
    """PostgreSQL said no; ``label`` of the child says how."""

    label = "database"


class TransientDatabaseError(DatabaseError):
    """The connection, a deadlock or a lock: the same work may succeed in a moment."""

    label = "database_transient"
    retryable = True
    reportable = False


class LockTimeoutError(TransientDatabaseError):
    """Somebody else holds a lock for longer than we wait."""

    label = "lock_timeout"


class ContendedError(TransientDatabaseError):
    """PostgreSQL chose this transaction to break a deadlock or a serialization conflict: nothing of it happened."""

    label = "database_contended"


class StatementTimeoutError(DatabaseError):
    """The statement ran longer than it was allowed: ask for less work at a time."""

    label = "statement_timeout"
    retryable = True
    reportable = False


class SetupError(DatabaseError):
    """A right, a table or a column is missing: no row is to blame, and none may be set apart for it."""

    label = "database_setup"


class DataError(DatabaseError):
    """A row or a constraint is in the way: the same work fails again until the row is set apart."""

    label = "database_data"


class BrokerError(PushopsError):
    """The broker could not be reached or refused; the rows stay due and are found again."""

    label = "broker"
    retryable = True
    reportable = False
