"""How every verb reaches the database: in the caller's transaction, or in one of its own that a deadlock may repeat."""

import random
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from psycopg import Connection

from pushops.db import Tx
from pushops.db.pool import NO_OPTIONS
from pushops.errors import ContendedError
from pushops.runtime import Runtime

Result = TypeVar("Result")
Conn = Connection[Any]

ATTEMPTS: Final = 6  # with the pauses between, under a second: nobody at a browser waits longer
_PAUSE: Final = 0.02
# Twice PostgreSQL's deadlock_timeout: with a shorter one a deadlock would look like a queue and not be done again.
_LOCK_TIMEOUT: Final = timedelta(seconds=2)


def in_transaction(
    rt: Runtime, conn: Conn | None, work: Callable[[Tx], Result], *, planner: Mapping[str, str] = NO_OPTIONS
) -> Result:
    """Do the work in one transaction. What lost a deadlock did nothing, so it is done again, a few times.

    With ``conn`` the deadlock is the caller's: their transaction is lost, not only our part; so is the ``planner``.
    """
    if conn is not None:
        with rt.db.transaction(conn=conn) as tx:
            return work(tx)
    for attempt in range(1, ATTEMPTS):
        try:
            return _once(rt, work, planner)
        except ContendedError:
            time.sleep(random.uniform(0, _PAUSE * 2**attempt))  # noqa: S311  (apart from each other, not secret)
    return _once(rt, work, planner)


def _once(rt: Runtime, work: Callable[[Tx], Result], planner: Mapping[str, str]) -> Result:
    with rt.db.transaction(lock_timeout=max(rt.settings.lock_timeout, _LOCK_TIMEOUT), planner=planner) as tx:
        return work(tx)
