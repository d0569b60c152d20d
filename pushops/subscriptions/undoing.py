"""Taking back what push-service evidence or ageing ended, inside the undo window."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.lifecycle import UNDOABLE
from pushops.subscriptions.store import auditing, periods, undoing
from pushops.subscriptions.store.undoing import Group, Key, Which
from pushops.subscriptions.work import Conn, in_transaction

PAGE: Final = 500  # rows per transaction: registrations of the same browsers go on meanwhile
_FIRST: Final = Key(datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))


@dataclass(frozen=True)
class Undone:
    """``groups`` is what qualified when it was looked at, by service and reason; ``rows`` is what came back."""

    groups: tuple[Group, ...]
    rows: int
    dry_run: bool

    @property
    def eligible(self) -> int:
        return sum(group.rows for group in self.groups)


def undo(
    rt: Runtime,
    *,
    run: UUID | None = None,
    service: str | None = None,
    reason: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    dry_run: bool = True,
    actor: str,
    conn: Conn | None = None,
) -> Undone:
    """Bring rows back to the state before their end; by default only say how many. Raises RefusedError.

    Only ends by evidence or ageing (``gone``, ``voted_out``, ``aged_out``), not scrubbed, inside
    PUSHOPS_UNDO_WINDOW. A new consent period begins for each, since the old one has ended once and for all.
    """
    which = Which(run, service, reason, since, until)
    _check(which)
    window = rt.settings.undo_window
    groups = in_transaction(rt, conn, lambda tx: undoing.count(tx, which, window))
    rows = 0 if dry_run else _undo_all(rt, conn, which, actor)
    found = Undone(tuple(groups), rows, dry_run)
    if not dry_run:
        rt.events.emit("subscription.undone", rows=rows, skipped=max(0, found.eligible - rows), actor=actor)
    return found


def _check(which: Which) -> None:
    if which == Which():
        raise RefusedError("expected at least one of run, service, reason, since and until")
    if which.reason is not None and which.reason not in UNDOABLE:
        raise RefusedError(f"expected a reason of {', '.join(UNDOABLE)}, got {which.reason!r}")
    if any(when is not None and when.tzinfo is None for when in (which.since, which.until)):
        raise RefusedError("expected since and until with a time zone, got a time without")


def _undo_all(rt: Runtime, conn: Conn | None, which: Which, actor: str) -> int:
    rows, after = 0, _FIRST
    while True:
        keys, restored = _undo_page(rt, conn, which, actor, after)
        rows += restored
        if len(keys) < PAGE:
            return rows
        after = keys[-1]


def _undo_page(rt: Runtime, conn: Conn | None, which: Which, actor: str, after: Key) -> tuple[Sequence[Key], int]:
    window = rt.settings.undo_window

    def work(tx: Tx) -> tuple[Sequence[Key], int]:
        keys = undoing.page(tx, which, window, after, PAGE)
        restored = undoing.restore(tx, which, window, keys)
        hashes = [row.endpoint_hash for row in restored]
        periods.open_missing(tx, hashes, rt.settings.reconnection_window)
        auditing.write(tx, "undo", actor, [(row.endpoint_hash, row.user_id, {"state": row.state}) for row in restored])
        return keys, len(restored)

    return in_transaction(rt, conn, work)
