"""Fan-out: a message's recipients go into the ledger, one transaction for each page, from where the last one ended.

The message's row is the run: whoever holds its lock works, a second worker leaves it alone, and what was killed in the
middle of a page begins that page again.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import partitions
from pushops.delivery.message import PRIORITY, Audience, MessageState, Urgency
from pushops.delivery.store import fanning as store
from pushops.delivery.store.fanning import MessageRun, Page
from pushops.delivery.valves import reading
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_PAGES
from pushops.sweeps.valves import Reading

NAME: Final = "fan-out"  # as operators call it: pushops sweep pause fan-out
BUDGET: Final = timedelta(seconds=2)  # of one task: other messages wait behind it
VALVES_FOR: Final = 1.0  # seconds that a look at the valves is good for
LOOK_AFTER: Final = timedelta(seconds=10)  # before that, no message of any size is through
COUNT_PAGE: Final = 5_000  # fits into the work memory that PostgreSQL has by default
RUNG_AT_ONCE: Final = 50  # messages that one look rings for


class FanOut(StrEnum):
    """How a slice of fan-out ended."""

    DONE = "done"
    MORE = "more"  # the time is spent: ring again
    NOTHING = "nothing"  # unknown, not yet due, through, cancelled, or in somebody else's hands
    HELD = "held"


@dataclass(frozen=True)
class Fanned:
    outcome: FanOut
    rows: int = 0
    reading: Reading | None = None


@dataclass(frozen=True)
class Step:
    """One page: recipients written, and whether it was the last."""

    made: int
    done: bool


def fan_out(rt: Runtime, message_id: UUID, *, budget: timedelta = BUDGET) -> Fanned:
    """Write pages of a message's recipients for about ``budget``."""
    closed = reading(rt, NAME)
    if closed is not None:
        rt.events.emit("message.held", message=str(message_id), valve=closed.valve, reason=closed.reason)
        return Fanned(FanOut.HELD, reading=closed)
    with rt.events.span("message.fanned_out", message=str(message_id)) as span:
        found = _slice(rt, message_id, time.monotonic() + budget.total_seconds())
        span["outcome"], span["rows"] = found.outcome, found.rows
    return found


def _slice(rt: Runtime, message_id: UUID, until: float) -> Fanned:
    rows, looked = 0, time.monotonic()
    while True:
        step = _step(rt, message_id)
        if step is None:
            return Fanned(FanOut.NOTHING, rows)
        rows += step.made
        if step.done:
            return Fanned(FanOut.DONE, rows)
        if time.monotonic() > until:
            return Fanned(FanOut.MORE, rows)
        if time.monotonic() > looked + VALVES_FOR:
            looked = time.monotonic()
            if closed := reading(rt, NAME):
                return Fanned(FanOut.HELD, rows, closed)


def _step(rt: Runtime, message_id: UUID) -> Step | None:
    return partitions.with_partition(rt, message_id, lambda: _one_page(rt, message_id))


def _one_page(rt: Runtime, message_id: UUID) -> Step | None:
    with rt.db.transaction(planner=PLAN_PAGES) as tx:
        return step(tx, message_id, rt.settings.sweep_batch_rows)


def step(tx: Tx, message_id: UUID, limit: int) -> Step | None:
    """The next page of a message that may fan out now; None where there is nothing to do here."""
    run = store.lock(tx, message_id)
    if run is None:
        return None
    if run.first_dispatched_at is None:
        store.begin(tx, message_id)
    page = Page(run.audience, run.cursor, limit)
    placed = _place(tx, run, page)
    if placed.homeless:  # a host under a key that nobody was sent to before
        store.make_lanes(tx, page)
        placed = _place(tx, run, page)
    done = placed.read < limit
    store.advance(tx, message_id, last=placed.last, made=placed.made, done=done, look_after=LOOK_AFTER)
    return Step(placed.made, done)


def _place(tx: Tx, run: MessageRun, page: Page) -> store.Placed:
    begun = run.first_dispatched_at or tx.now
    expires_at = run.expires_at or begun + timedelta(seconds=run.ttl)
    priority = PRIORITY[Urgency(run.urgency)]
    return store.place(tx, run.message_id, page, priority=priority, begun=begun, expires_at=expires_at)


def at_once(tx: Tx, message_id: UUID, limit: int) -> MessageState:
    """Fan out a message of few recipients in the transaction that made it; the state after."""
    while (found := step(tx, message_id, limit)) is not None:
        if found.done:
            return MessageState.SENDING
    return MessageState.WAITING


def count(rt: Runtime, audience: Audience) -> Mapping[str, int]:
    """How many would be sent to now, by push service; reads all of them, a page at a time."""
    found: Counter[str] = Counter()
    cursor = b""
    while True:
        with rt.db.transaction() as tx:
            counted = store.count(tx, Page(audience, cursor, COUNT_PAGE))
        found.update(counted.services)
        if counted.read < COUNT_PAGE or counted.last is None:
            return dict(found)
        cursor = counted.last


def due(rt: Runtime, limit: int) -> list[UUID]:
    """Messages whose fan-out may begin or go on, and that nobody is at."""
    with rt.db.transaction() as tx:
        return store.due(tx, limit)
