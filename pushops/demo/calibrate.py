"""A statement timeout between the time of a batch and the time of the one statement that would do it all."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pushops.db import Database, Tx
from pushops.db.pool import NO_OPTIONS
from pushops.demo import store
from pushops.demo.audience import PATIENCE
from pushops.demo.stage import Scale
from pushops.errors import StatementTimeoutError
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.sweeps import plan, sql

BATCHES_TRIED: Final = 5
DELETES_TRIED: Final = 3
SHORTEST: Final = timedelta(milliseconds=10)  # the settings allow no less
LONGEST: Final = timedelta(seconds=2.5)  # what a lease of five seconds allows
_CLAUSE: Final = "ctid < '({block},0)'::tid AND deleted_at < now() - interval '90 days'"


@dataclass(frozen=True)
class Measured:
    """Seconds, each of a transaction that was rolled back."""

    batch: float
    one_delete: float

    @property
    def timeout(self) -> timedelta:
        """Half of the one statement's time: as far above a batch's as can be."""
        half = timedelta(milliseconds=round(self.one_delete * 500))
        return max(SHORTEST, min(LONGEST, half))

    def fits(self, timeout: timedelta) -> bool:
        return 2 * self.batch < timeout.total_seconds() < self.one_delete


def measure(db: Database, scale: Scale) -> Measured:
    """A usual batch and the quickest of a few DELETEs: what must be cancelled may find the machine idle."""
    batches = [_rolled_back(db, lambda tx: _batch(tx, scale), sql.PLAN_BLOCKS) for _ in range(BATCHES_TRIED)]
    deletes = [_rolled_back(db, store.one_delete) for _ in range(DELETES_TRIED)]
    return Measured(statistics.median(batches), min(deletes))


def try_one_delete(db: Database, timeout: timedelta) -> int | None:
    """How many rows the one statement would delete, or None where it was cancelled; rolled back either way."""
    try:
        with db.transaction(statement_timeout=timeout) as tx, tx.conn.transaction(force_rollback=True):
            return store.one_delete(tx)
    except StatementTimeoutError:
        return None


def _batch(tx: Tx, scale: Scale) -> None:
    """The sweep's own effect, counters included, on the first page of the table."""
    block = plan.blocks_per_page(scale.batch_rows, scale.tombstones, None, store.blocks(tx))
    tx.run(sql.effect(PURGE_TOMBSTONES, _CLAUSE.format(block=block)), {})


def _rolled_back(db: Database, work: Callable[[Tx], object], planner: Mapping[str, str] = NO_OPTIONS) -> float:
    with db.transaction(statement_timeout=PATIENCE, planner=planner) as tx, tx.conn.transaction(force_rollback=True):
        started = time.monotonic()
        work(tx)
        return time.monotonic() - started
