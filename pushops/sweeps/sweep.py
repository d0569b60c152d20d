"""What a sweep is: a table, the order it is walked in, which rows are meant, what happens to them, and its limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, LiteralString

from pushops.db import Tx
from pushops.runtime import Runtime


class Walk(StrEnum):
    """How pages are cut: along the sweep's index, or along the table's blocks where most rows are meant anyway."""

    INDEX = "index"
    BLOCKS = "blocks"


@dataclass(frozen=True)
class Column:
    """An SQL expression of the table and its type; together they order and name rows."""

    expression: LiteralString
    type: LiteralString


CTID = Column("ctid", "tid")


@dataclass(frozen=True)
class Window:
    """A retention window: ``%(name)s`` in the predicate is the run's database time less the settings' sum.

    ``floor`` is repeated in SQL: whatever the settings say, no row younger than it is touched.
    """

    name: LiteralString
    settings: tuple[str, ...]
    floor: timedelta


@dataclass(frozen=True)
class Page:
    """What an acting sweep works on: the rows of one batch, as its own ``load`` returned them."""

    batch_id: str
    run_id: str
    cutoffs: Mapping[str, datetime]
    rows: Sequence[Any]


@dataclass(frozen=True)
class Acting:
    """I/O between two transactions: load and claim rows, act on them with none open, settle what came of it.

    ``claim`` and ``settle`` run inside the engine's transactions; ``act`` runs outside any.
    """

    claim: Callable[[Tx, "Batch"], Sequence[Any]]
    act: Callable[[Runtime, Page], Any]
    settle: Callable[[Tx, "Batch", Any], int]


@dataclass(frozen=True)
class Batch:
    """The bounds and identity of a claimed batch, and how to select its rows (``clause`` with ``params``)."""

    batch_id: str
    run_id: str
    clause: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Fold:
    """Merges what effects left aside: when ``waiting`` counts enough of it, and when a run closes."""

    waiting: LiteralString
    merge: LiteralString


@dataclass(frozen=True)
class Sweep:
    """One declaration. ``effect`` contains ``{batch}`` where the rows are selected, and returns their count.

    The effect must leave a row that it touched outside the predicate: that is what makes a second time harmless.
    """

    name: str
    table: LiteralString
    index: str
    key: tuple[Column, ...]
    predicate: LiteralString
    windows: tuple[Window, ...]
    effect: LiteralString | None = None
    follow_up: LiteralString | None = (
        None  # a second statement of the same transaction: it sees what the effect waited for
    )
    fold: Fold | None = None
    acting: Acting | None = None
    identity: Column = field(default=Column("id", "uuid"))
    blocks: bool = False  # may be walked along the table's blocks
    brake: bool = False  # a run must not take more than PUSHOPS_SWEEP_MAX_SHARE of the table
    max_parallel: int | None = None  # None: PUSHOPS_SWEEP_MAX_PARALLEL
    meaning: str = ""

    def columns(self, walk: Walk) -> tuple[Column, ...]:
        return (CTID,) if walk is Walk.BLOCKS else self.key
