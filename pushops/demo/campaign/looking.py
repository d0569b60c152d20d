"""Looking at what is so: the campaign's rows, the guards, what evidence did, and whom the workers' logs would wake."""

from typing import Final

from pushops.demo.campaign import store
from pushops.demo.campaign.judging import Kept
from pushops.demo.campaign.subscribers import PATIENCE
from pushops.demo.crew import Crew
from pushops.runtime import Runtime

PAGE: Final = "critical"  # as the log calls it


def guards(rt: Runtime) -> list[store.Guard]:
    with rt.db.transaction() as tx:
        return store.guards(tx)


def rows(rt: Runtime) -> dict[bytes, store.Row]:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return {row.endpoint_hash: row for row in store.rows(tx)}


def believed(rt: Runtime) -> Kept:
    """What the evidence of the last hour did and still does."""
    return _kept(rt, "applied", turned_back=False)


def taken_back(rt: Runtime) -> Kept:
    """What it had done until the guard opened."""
    return _kept(rt, "pending", turned_back=True)


def pages(hired: Crew) -> list[str]:
    """The events that wake somebody, by name."""
    events = [event for worker in hired.workers for event in worker.events()]
    return [str(event.get("event")) for event in events if event.get("level") == PAGE]


def _kept(rt: Runtime, state: str, *, turned_back: bool) -> Kept:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        found = store.evidence(tx, state, turned_back=turned_back)
    ended = frozenset(one.endpoint_hash for one in found if one.finding == "gone")
    return Kept(ended, frozenset(one.endpoint_hash for one in found if one.finding == "vote"))
