"""A batch of a sweep that acts: I/O between two transactions, with none open meanwhile."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import DatabaseError
from pushops.sweeps import runs, sql, store
from pushops.sweeps.shift import Applied, LostClaimError, Shift, settle
from pushops.sweeps.store import BatchRow
from pushops.sweeps.sweep import Acted, Acting, Batch, Page, Settled

ACT: Final = timedelta(seconds=5)  # what is begun by then may take its network deadline
LOOK: Final = 1.0  # seconds between two looks at what was asked


class Asked:
    """Whether somebody paused or cancelled since; what was seen once stays seen, and who cannot see stops."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._looked_at = time.monotonic()
        self._asked = False

    def __call__(self) -> bool:
        if not self._asked and time.monotonic() - self._looked_at >= LOOK:
            self._asked = self._look()
            self._looked_at = time.monotonic()
        return self._asked

    def _look(self) -> bool:
        stop_file = self._shift.rt.settings.stop_file
        if stop_file is not None and stop_file.exists():
            return True
        try:
            with self._shift.rt.db.transaction(asynchronous=True) as tx:
                return store.asked(tx, self._shift.run.run_id)
        except DatabaseError:
            return True


def act(shift: Shift, acting: Acting, row: BatchRow, token: UUID) -> Applied:
    """Claim the rows, act on them, settle: both commit synchronously, since what was done outside cannot vanish."""
    batch = shift.bind(row)
    with shift.rt.db.transaction(planner=sql.plan_for(shift.run.walked_along), on=shift.own) as tx:
        rows = acting.claim(tx, batch)
    acted = acting.act(shift.rt, _page(shift, batch, rows)) if rows else Acted(0)
    with shift.rt.db.transaction(on=shift.own) as tx:
        if acted.stop is not None:  # the run before its batches, as everybody locks them
            store.close_run(tx, shift.run.run_id, "stopped", acted.stop)
        settled = acting.settle(tx, batch, acted) if rows else 0
        done = settled if isinstance(settled, Settled) else Settled(settled)
        applied = _end(tx, shift, row, token, acted, done)
        if acted.stop is not None:
            runs.cancel_rest(tx, shift.run.run_id)
    if acted.stop is not None:
        runs.tell_closed(shift.rt, shift.run.run_id)
    return applied


def _page(shift: Shift, batch: Batch, rows: Sequence[Any]) -> Page:
    run = shift.run
    return Page(
        batch_id=batch.batch_id,
        run_id=batch.run_id,
        cutoffs=run.cutoff_times,
        rows=rows,
        filter=run.filter,
        options=run.options,
        opened_at=run.opened_at,
        stop_at=time.monotonic() + ACT.total_seconds(),
        asked=Asked(shift),
    )


def _end(tx: Tx, shift: Shift, row: BatchRow, token: UUID, acted: Acted, done: Settled) -> Applied:
    """A receipt, or the batch put back with the rows so far."""
    if acted.again is None or acted.stop is not None:
        detail = None if acted.detail is None else json.dumps(dict(acted.detail))
        seconds = settle(tx, shift, row, token, done.rows, done.locked, detail)
        return Applied(done.rows, done.locked, seconds, "done" if acted.stop is None else "stopped")
    if not store.put_back(tx, row.batch_id, token, done.rows, acted.again):
        raise LostClaimError("expected to hold the batch, got none: its lease ran out and another took it")
    return Applied(done.rows, 0, 0.0, "put_back", acted.again or None)
