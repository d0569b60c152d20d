"""Closing letters that nobody wants to send any more: all that a filter means, with who said so and why."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from pushops.deadletters.filters import Filter, read_reason
from pushops.deadletters.looking import FIRST, count_letters
from pushops.deadletters.store import closing as store
from pushops.deadletters.store.closing import Discarded as Closed
from pushops.deadletters.triage import PATIENCE, PLANNER
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.store import auditing

PAGE: Final = 5_000
PASSES: Final = 2  # the second is for those that were locked in the first

Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Discarded:
    """``matched``: what was parked and meant. Left alone: ``claimed``, by a drain, and ``locked``, by somebody else."""

    matched: int
    discarded: int
    claimed: int
    locked: int
    dry_run: bool


def discard(
    rt: Runtime,
    meant: Filter,
    *,
    reason: str,
    actor: str,
    dry_run: bool = True,
    told: Told = lambda _done, _of: None,
) -> Discarded:
    """Discard every parked letter that is meant; by default only count them. What is parked later is not meant.

    In transactions of 5,000, each of which stands: safe to interrupt and to repeat. ``told`` hears how many are done,
    of how many. Raises RefusedError without any condition or reason.
    """
    why = _checked(meant, reason)
    with rt.db.transaction() as tx:
        asked = tx.now
    fixed = replace(meant, until=asked if meant.until is None else min(asked, meant.until))
    before = count_letters(rt, fixed)
    if dry_run or not before.parked:
        return Discarded(before.parked, 0, before.claimed, 0, dry_run)
    with rt.db.transaction() as tx:
        detail = {"filter": meant.words(), "until": asked.isoformat(), "matched": before.parked, "why": why}
        auditing.note(tx, "dead_letters_discard", actor, detail)
    done = 0
    for _ in range(PASSES):
        done = _pass(rt, fixed, why, actor, done, lambda rows: told(rows, before.parked))
        left = count_letters(rt, fixed)
        if not left.parked:
            break
    rt.events.emit("dlq.discarded", rows=done, claimed=left.claimed, locked=left.parked, actor=actor, why=why)
    return Discarded(before.parked, done, left.claimed, left.parked, dry_run)


def _pass(rt: Runtime, meant: Filter, why: str, actor: str, done: int, told: Callable[[int], None]) -> int:
    """Once over all that is parked, which adds to what is done; what is locked by others is passed over."""
    rows, after = done, FIRST
    while True:
        page = _page(rt, meant, why, actor, after)
        rows += page.rows
        told(rows)
        if page.last is None:
            return rows
        after = page.last


def _page(rt: Runtime, meant: Filter, why: str, actor: str, after: UUID) -> Closed:
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLANNER) as tx:
        return store.discard(tx, meant, actor=actor, note=why, after=after, limit=PAGE)


def _checked(meant: Filter, reason: str) -> str:
    if not meant.words():
        raise RefusedError("expected a condition that says which letters are meant, got none: --since means all since")
    return read_reason(reason)
