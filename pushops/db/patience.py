"""Statements that need a lock which traffic holds: they give up soon, so that nobody queues behind, and try again."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, LiteralString, TypeVar

from psycopg import Connection

from pushops.db import migrate
from pushops.db.errors import translated
from pushops.db.pool import Database
from pushops.db.transaction import Tx
from pushops.errors import DatabaseError, LockTimeoutError
from pushops.settings import Settings

Result = TypeVar("Result")

ATTEMPTS: Final = 5
PAUSE: Final = 0.2  # seconds, before somebody else's lock is tried again

# Of the session: what is done with it cannot be done in a transaction, to which a limit could be bound. 0 is for ever.
LIMIT: Final[LiteralString] = """
SELECT set_config(name, %(milliseconds)s::text, false)
  FROM unnest(ARRAY['statement_timeout', 'lock_timeout']) AS name"""


def persist(
    db: Database, work: Callable[[Tx], Result], *, patience: timedelta | None = None, attempts: int = ATTEMPTS
) -> Result:
    """Try until it is done; what another process did meanwhile is seen by the next look of ``work``."""
    for attempt in range(1, attempts + 1):
        try:
            with db.transaction(statement_timeout=patience) as tx:
                return work(tx)
        except DatabaseError as error:
            if attempt == attempts:
                raise
            if isinstance(error, LockTimeoutError):
                time.sleep(PAUSE * attempt * random.uniform(0.5, 1))  # noqa: S311  (not a secret)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def outside(settings: Settings, patience: timedelta | None) -> Iterator[Connection[Any]]:
    """A connection of its own, in autocommit. Behind a pooler the session is not ours to set limits on."""
    with translated(), migrate.connect(settings) as conn:
        if not settings.pooler:
            limit = 0 if patience is None else patience // timedelta(milliseconds=1)
            conn.execute(LIMIT, {"milliseconds": str(limit)})
        yield conn
