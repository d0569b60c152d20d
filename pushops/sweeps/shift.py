"""A worker's hold on one of a run's slots, and how what it did is written down."""

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from psycopg import Connection

from pushops.db import Tx
from pushops.errors import PushopsError
from pushops.runtime import Runtime
from pushops.sweeps import runs, sql, store
from pushops.sweeps.sql import Held
from pushops.sweeps.store import BatchRow, RunRow
from pushops.sweeps.sweep import Batch, Sweep


class LostClaimError(PushopsError):
    """Another worker owns the batch now; what this one did was rolled back."""

    label = "lost_claim"
    reportable = False


@dataclass(frozen=True)
class Applied:
    """What came of a batch: ``done`` unless an act comes back for the rest of it or has ended the run.

    ``rest``: it has nothing to do before then, and what else is due of the run would find no more to do.
    """

    rows: int
    locked: int
    seconds: float
    end: str = "done"
    rest: timedelta | None = None


@dataclass(frozen=True)
class Shift:
    """A worker's hold on one of a run's slots, and what every batch of it shares.

    ``conn`` is one for the whole shift: checking one out costs as much as a claim, and a worker that holds one must
    not wait for a second.
    """

    rt: Runtime
    sweep: Sweep
    run: RunRow
    held: Held
    holder: UUID
    conn: Connection[Any] | None = None
    argued: set[int] = field(default_factory=set)  # page sizes that its batches have argued for already
    rests: list[timedelta] = field(default_factory=list)  # what its acts asked for, until they come back

    @property
    def own(self) -> Connection[Any] | None:
        """The shift's connection while it lives; None asks the pool for another."""
        return None if self.conn is None or self.conn.closed else self.conn

    @cached_property
    def worker(self) -> str:
        return f"{socket.gethostname()}:{os.getpid()}"

    @property
    def slots(self) -> int:
        return runs.slots_of(self.rt.settings, self.sweep)

    @property
    def pause(self) -> timedelta:
        return runs.pause_of(self.rt.settings, self.sweep)

    def bind(self, row: BatchRow) -> Batch:
        """The batch's clause and every parameter that it needs."""
        clause = sql.page_clause(self.sweep, self.run.walked_along, has_lo=row.lo is not None, held=self.held)
        params: dict[str, Any] = sql.bounds("lo", row.lo) | sql.bounds("hi", row.hi) | self.held.params()
        params |= runs.params_of(self.sweep, self.run)
        params |= {"run_id": self.run.run_id, "batch_id": row.batch_id}
        return Batch(str(row.batch_id), str(self.run.run_id), clause, params, self.run.options)


def settle(
    tx: Tx, shift: Shift, row: BatchRow, token: UUID, done: int, locked: int, detail: str | None = None
) -> float:
    """The batch's receipt, and how long it took; raises LostClaimError."""
    values = {"batch_id": row.batch_id, "token": token, "rows_done": done, "rows_locked": locked, "detail": detail}
    seconds = store.settle(tx, values | {"began": tx.now, "worker": shift.worker})
    if seconds is None:
        raise LostClaimError("expected to hold the batch, got none: its lease ran out and another took it")
    return seconds
