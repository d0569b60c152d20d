"""The end of messages: what is left of one that expired or was cancelled is ended, and one that is through is closed.

A page at a time, each a transaction with the message's row locked. What a sender has in hand is its own to settle.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery.retry import End
from pushops.delivery.store import finishing as store
from pushops.delivery.store.finishing import OpenMessage
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_PAGES

BUDGET: Final = timedelta(seconds=2)
PAGE: Final = 5_000
SOON: Final = timedelta(seconds=10)
LONGEST: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Finished:
    """What a look at messages did; ``more``: the time was spent before everything was looked at."""

    closed: int
    ended: int
    more: bool


@dataclass
class Walk:
    """A look at one message. ``position`` runs ahead of what a sender has in hand; ``open`` is the first such row."""

    message_id: UUID
    position: bytes | None = None
    open: bytes | None = None
    ended: int = 0
    closed: bool = False
    over: bool = False


def finish(rt: Runtime, *, budget: timedelta = BUDGET) -> Finished:
    """Look at every message whose time to be looked at has come, for about ``budget``."""
    until = time.monotonic() + budget.total_seconds()
    closed = ended = 0
    while time.monotonic() < until:
        with rt.db.transaction() as tx:
            message_id = store.next_one(tx)
        if message_id is None:
            return Finished(closed, ended, more=False)
        walk = finish_one(rt, message_id, until)
        closed, ended = closed + walk.closed, ended + walk.ended
    return Finished(closed, ended, more=True)


def finish_one(rt: Runtime, message_id: UUID, until: float) -> Walk:
    """Walk a message's rows from where the last look stopped, until they are all seen or the time is over."""
    walk = Walk(message_id)
    while not walk.over:
        with rt.db.transaction(planner=PLAN_PAGES) as tx:
            found = store.lock(tx, message_id)
            if found is None:
                break
            _look(tx, found, walk, late=time.monotonic() > until)
    if walk.ended:
        rt.events.emit("message.ended", message=str(message_id), rows=walk.ended)
    if walk.closed:
        rt.events.emit("message.closed", message=str(message_id))
    return walk


def reopen(tx: Tx, message_ids: Sequence[UUID]) -> int:
    """Say that rows of these messages that had ended are due again; call it where that is done."""
    return store.reopen(tx, message_ids, SOON)


def _look(tx: Tx, found: OpenMessage, walk: Walk, *, late: bool) -> None:
    """One page; ``late`` leaves the rest to the next look, which begins at the first row without an end."""
    if found.cancelled or found.expired:
        _end(tx, found, walk)
    else:
        _seek(tx, found, walk)
    if walk.position is None:
        walk.over = True
        if walk.open is None:
            walk.closed = True
            store.close(tx, found.message_id)
        else:
            store.look_again(tx, found.message_id, walk.open, soon=SOON, longest=LONGEST)
    elif late:
        walk.over = True
        store.go_on(tx, found.message_id, walk.open or walk.position)


def _end(tx: Tx, found: OpenMessage, walk: Walk) -> None:
    """End a page of what nobody has in hand, and go on behind what somebody has."""
    cursor = found.cursor if walk.position is None else walk.position
    page = store.end_page(tx, found.message_id, cursor, PAGE, End.CANCELLED if found.cancelled else None)
    walk.ended += page.ended
    walk.open = walk.open or page.open
    walk.position = page.last if page.read == PAGE else None


def _seek(tx: Tx, found: OpenMessage, walk: Walk) -> None:
    """Look for the first row without an end: one is enough to know that the message is not over."""
    cursor = found.cursor if walk.position is None else walk.position
    walk.open = store.find_open(tx, found.message_id, cursor, PAGE)
    walk.position = None if walk.open else store.page_end(tx, found.message_id, cursor, PAGE)
