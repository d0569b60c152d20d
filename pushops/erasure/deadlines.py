"""Requests that are not done in time: a ticket after a day, a page after three."""

from dataclasses import dataclass
from datetime import timedelta

from pushops.erasure.store import deadlines as store
from pushops.erasure.store.deadlines import Late
from pushops.erasure.words import PAGE_AFTER, TICKET_AFTER
from pushops.events import Level
from pushops.runtime import Runtime


@dataclass(frozen=True)
class Standing:
    """How many requests are open, held by law, older than a day and older than three; the age of the oldest."""

    open: int
    held: int
    late: int
    very_late: int
    oldest: timedelta | None


def standing(rt: Runtime) -> Standing:
    """Held requests are not late: somebody decided so."""
    with rt.db.transaction() as tx:
        return store.standing(tx, TICKET_AFTER, PAGE_AFTER, Standing)


def tell(rt: Runtime) -> list[Late]:
    """Emit ``erasure.late`` once as a warning and once as a page for each request; those that were told of now."""
    with rt.db.transaction() as tx:
        found = store.late(tx, TICKET_AFTER, PAGE_AFTER)
    for each in found:
        level = Level.PAGE if each.told == "page" else None
        hours = int(each.age.total_seconds() // 3600)
        rt.events.emit("erasure.late", level, request=str(each.request_id), hours=hours, why=each.waits or "")
    return found
