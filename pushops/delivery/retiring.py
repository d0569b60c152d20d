"""``purge-ledger``: weeks that are over leave the ledger as whole partitions, and are dropped."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from pushops.db.patience import outside
from pushops.delivery.partitions import WEEK
from pushops.delivery.store import partitions as store
from pushops.delivery.store.partitions import Standing
from pushops.delivery.valves import reading
from pushops.errors import DatabaseError
from pushops.runtime import Runtime

NAME: Final = "purge-ledger"
# Detaching waits for who reads the ledger; cut off, it is finalised the next time.
PATIENCE: Final = timedelta(seconds=60)


class Retirement(StrEnum):
    """What became of a week."""

    DROPPED = "dropped"
    KEPT = "kept"  # it lies back far enough, but something in it is not over
    FAILED = "failed"  # the next run goes on from there


@dataclass(frozen=True)
class Retired:
    partition: str
    outcome: Retirement
    why: str | None = None


def retire(rt: Runtime) -> list[Retired]:
    """Drop the weeks whose newest message expired PUSHOPS_LEDGER_RETENTION ago; never the last one of the ledger."""
    closed = reading(rt, NAME)
    if closed is not None:
        rt.events.emit("ledger.partition", did="held", error=closed.reason)
        return []
    old, attached = _old(rt)
    done: list[Retired] = []
    for each in old:
        if each.attached and attached == 1:
            break
        retired = _retire(rt, each)
        attached -= each.attached and retired.outcome is Retirement.DROPPED
        rt.events.emit("ledger.partition", partition=each.name, did=str(retired.outcome), error=retired.why)
        done.append(retired)
    return done


def preview(rt: Runtime) -> list[Retired]:
    """What ``retire`` would do now; nothing changes."""
    old, attached = _old(rt)
    done: list[Retired] = []
    for each in old:
        if each.attached and attached == 1:
            break
        why = _why_not(rt, each)
        attached -= each.attached and not why
        done.append(Retired(each.name, Retirement.KEPT if why else Retirement.DROPPED, why))
    return done


def _old(rt: Runtime) -> tuple[list[Standing], int]:
    """Weeks that lie back far enough, and how many are attached at all."""
    with rt.db.transaction() as tx:
        found = store.listed(tx)
        old = [each for each in found if week_of(each.name) + WEEK < tx.now - rt.settings.ledger_retention]
    return old, sum(each.attached for each in found)


def week_of(name: str) -> datetime:
    return datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)


def _retire(rt: Runtime, week: Standing) -> Retired:
    """Look, detach, look again now that nobody can write there any more, drop. What failed is tried again next time."""
    try:
        if why := _why_not(rt, week):
            return Retired(week.name, Retirement.KEPT, why)
        if week.attached:
            with outside(rt.settings, PATIENCE) as conn:
                store.detach(conn, rt.settings.db_schema, week.name, finalize=week.pending)
        return _drop(rt, week)
    except DatabaseError as error:
        return Retired(week.name, Retirement.FAILED, error.label)


def _why_not(rt: Runtime, week: Standing) -> str | None:
    begin = week_of(week.name)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        if not store.over(tx, begin, begin + WEEK, rt.settings.ledger_retention):
            return "a message of it is not over"
        return "a row of it is not over" if store.actionable(tx, week.name) else None


def _drop(rt: Runtime, week: Standing) -> Retired:
    begin = week_of(week.name)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        if store.actionable(tx, week.name):  # written between the look and the detaching
            store.attach(tx, week.name, begin, begin + WEEK)
            return Retired(week.name, Retirement.KEPT, "a row of it is not over")
        store.drop(tx, week.name)
    return Retired(week.name, Retirement.DROPPED)
