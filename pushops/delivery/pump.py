"""The pump: sends what is due for a few seconds at a time, at most so many shifts at once in the whole fleet."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID, uuid4

from pushops.deadletters.letter import ErrorClass
from pushops.deadletters.store import parking as store
from pushops.deadletters.writer import park
from pushops.delivery.retry import End
from pushops.delivery.shift import NAME, Shift, Tools
from pushops.delivery.store import ledger
from pushops.delivery.store.ledger import Reaped
from pushops.delivery.valves import reading
from pushops.runtime import Runtime
from pushops.sweeps import store as sweeps_store
from pushops.sweeps.sql import PLAN_INDEX
from pushops.sweeps.valves import Reading

SHIFT: Final = timedelta(seconds=5)
DEATHS: Final = 3  # a row that took so many workers with it goes no further
LOST: Final = ErrorClass.POISON  # nobody is to try it once more unasked
REAP_ROWS: Final = 1_000
REAP_WAIT: Final = timedelta(seconds=30)


class Outcome(StrEnum):
    SENT = "sent"
    NOTHING_DUE = "nothing_due"
    NO_SLOT = "no_slot"
    HELD = "held"


@dataclass(frozen=True)
class Pumped:
    """What a shift did; ``more``: rows were still due when it ended, so ring again."""

    outcome: Outcome
    rows: int = 0
    more: bool = False
    reading: Reading | None = None


def pump(rt: Runtime, tools: Tools, *, length: timedelta = SHIFT, on_full: Callable[[], None] | None = None) -> Pumped:
    """Send what is due for up to ``length`` and settle all of it. ``on_full`` is called once if there is work for two.

    Raises SettingsError, and children of DatabaseError where the database stays away: what was claimed then is
    ambiguous once its lease is over.
    """
    closed = reading(rt, NAME)
    if closed is not None:
        _say_held(rt, closed)
        return Pumped(Outcome.HELD, reading=closed)
    holder = uuid4()
    if not _take_slot(rt, holder):
        return Pumped(Outcome.NO_SLOT)
    try:
        with rt.events.span("send.shift") as span:
            shift = Shift(rt, tools, length, on_full or _nobody)
            shift.run()
            span["rows"], span["more"] = shift.rows, shift.more
    finally:
        with rt.db.transaction(asynchronous=True) as tx:
            sweeps_store.free_slot(tx, NAME, holder, timedelta())
    if shift.closed is not None:
        _say_held(rt, shift.closed)
    return Pumped(Outcome.SENT if shift.rows else Outcome.NOTHING_DUE, shift.rows, shift.more, shift.closed)


def _say_held(rt: Runtime, closed: Reading) -> None:
    rt.events.emit("send.held", valve=closed.valve, reading=closed.state, reason=closed.reason)


def _nobody() -> None:
    """Nobody else is rung."""


def _take_slot(rt: Runtime, holder: UUID) -> bool:
    slots, lease = rt.settings.senders, rt.settings.send_lease
    with rt.db.transaction(asynchronous=True) as tx:
        if sweeps_store.take_slot(tx, NAME, slots, holder, lease) is not None:
            return True
        sweeps_store.ensure_control(tx, NAME, "{}", slots)
        return sweeps_store.take_slot(tx, NAME, slots, holder, lease) is not None


def reap(rt: Runtime) -> list[Reaped]:
    """Take back what dead workers had claimed. Where a POST may have begun, the message says whether to try again."""
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        found = ledger.reap(tx, limit=REAP_ROWS, wait=REAP_WAIT, deaths=DEATHS)
        killers = {(row.message_id, row.endpoint_hash): LOST for row in found if row.outcome == End.WORKER_LOST}
        letters = store.owe(tx, killers) if killers else ()
        ledger.forget_throttles(tx)
    if found:
        ended = sum(row.outcome is not None for row in found)
        rt.events.emit("send.claims_expired", rows=len(found), ended=ended)
    park(rt, letters)
    return found
