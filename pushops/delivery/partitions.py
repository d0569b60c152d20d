"""The ledger's weeks: made ahead of time by a job of its own, on demand where that did not run, retired when over."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.store import partitions as store
from pushops.errors import DatabaseError, DataError, LockTimeoutError
from pushops.runtime import Runtime

Result = TypeVar("Result")

AHEAD: Final = 2  # weeks beyond this one: whoever repairs beat has two weekends
WEEK: Final = timedelta(days=7)
ATTEMPTS: Final = 5
PAUSE: Final = 0.2  # seconds, before somebody else's lock is tried again
_NO_PARTITION: Final = "23514"  # check_violation, which names no constraint where it is a partition's bound


def make_ahead(rt: Runtime, *, ahead: int = AHEAD) -> list[str]:
    """Make what is missing of this week's partition and those of the next weeks; the names of those made."""
    with rt.db.transaction() as tx:
        weeks = store.weeks(tx, None, ahead)
    return [name for name in (_make(rt, week) for week in weeks) if name is not None]


def make_for(rt: Runtime, message_id: UUID) -> str | None:
    """Make the partition that a message's rows belong to, if it is missing."""
    with rt.db.transaction() as tx:
        (week,) = store.weeks(tx, made_at(message_id), 0)
    return _make(rt, week)


def with_partition(rt: Runtime, message_id: UUID, work: Callable[[], Result]) -> Result:
    """Do work that writes to the ledger; where its partition is missing, make it and do the work again."""
    try:
        return work()
    except DataError as error:
        if not str(error).startswith(_NO_PARTITION) or " on constraint " in str(error):
            raise
    make_for(rt, message_id)
    return work()


def made_at(message_id: UUID) -> datetime:
    """When a UUIDv7 was made: its first 48 bits are milliseconds."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=message_id.int >> 80)


def name_of(week: datetime) -> str:
    return f"{store.LEDGER}_{week.astimezone(UTC):%Y%m%d}"


def _make(rt: Runtime, week: datetime) -> str | None:
    """Each step in a transaction of its own, and nothing where somebody else was faster."""
    name = name_of(week)
    made = False
    for wanted in (_create, _attach):
        made = _persist(rt, name, lambda tx, wanted=wanted: wanted(tx, name, week)) or made  # type: ignore[misc]
    if made:
        rt.events.emit("ledger.partition", partition=name, did="made")
    return name if made else None


def _create(tx: Tx, name: str, _week: datetime) -> bool:
    if store.stands(tx, name) is not None:
        return False
    store.create(tx, name)
    return True


def _attach(tx: Tx, name: str, week: datetime) -> bool:
    standing = store.stands(tx, name)
    if standing is None or standing.attached:
        return False
    store.attach(tx, name, week, week + WEEK)
    return True


def _persist(rt: Runtime, name: str, work: Callable[[Tx], bool]) -> bool:
    """Try until it is done; what another process did meanwhile is seen by the next look."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with rt.db.transaction() as tx:
                return work(tx)
        except DatabaseError as error:
            rt.events.emit("ledger.partition", partition=name, did="again", error=error.label)
            if attempt == ATTEMPTS:
                raise
            if isinstance(error, LockTimeoutError):
                time.sleep(PAUSE * attempt)
    raise AssertionError("the last attempt returns or raises")
