"""What a sweep is: a table, the order it is walked in, which rows are meant, what happens to them, and its limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, LiteralString, TypeAlias

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.settings import Settings


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
RunOptions: TypeAlias = Mapping[str, Any]  # what a run was asked beside its filter, as its row keeps it


@dataclass(frozen=True)
class Window:
    """A retention window: ``%(name)s`` in the predicate is the run's database time less the settings' sum.

    ``length`` adds to that sum. ``floor`` is repeated in SQL: whatever the settings say, no row younger than it is
    touched. Without settings and length the window is the run's opening, and its floor nothing.
    """

    name: LiteralString
    settings: tuple[str, ...]
    floor: timedelta
    length: timedelta = timedelta()  # of a table's own, which no setting of ours names
    silent: bool = False  # only tells a run of this declaration from one of another


@dataclass(frozen=True)
class Page:
    """What an acting sweep works on: the rows of one batch, as its own ``claim`` returned them.

    An act begins nothing new after ``stop_at`` (of ``time.monotonic()``), nor once ``asked()`` is true: somebody
    paused or cancelled, or nobody can be asked. It looks at most once a second, in a transaction of its own.
    """

    batch_id: str
    run_id: str
    cutoffs: Mapping[str, datetime]
    rows: Sequence[Any]
    filter: str
    options: RunOptions
    opened_at: datetime
    stop_at: float
    asked: Callable[[], bool]


@dataclass(frozen=True)
class Acted:
    """What came of an act. ``rows`` are those that it is done with; a ``settle`` that counts for itself may differ.

    ``again`` puts the batch back, due after that time, for the rows that are left: no attempt, no failure, no receipt
    yet. ``stop`` ends the run with that reason, whatever other workers have in hand. ``detail`` is kept with the
    receipt, as JSON; ``result`` is for ``settle`` alone.
    """

    rows: int
    again: timedelta | None = None
    stop: str | None = None
    detail: Mapping[str, Any] | None = None
    result: Any = None


@dataclass(frozen=True)
class Settled:
    """What a settlement wrote down; a page with ``locked`` rows is looked at once more, at the run's end."""

    rows: int
    locked: int = 0


@dataclass(frozen=True)
class Acting:
    """I/O between two transactions: load and claim rows, act on them with none open, settle what came of it.

    ``claim`` and ``settle`` run inside the engine's transactions, ``settle`` says how many rows are done, and how many
    somebody held; ``act`` runs outside any, for at most ten seconds and a network deadline of 25.
    """

    claim: Callable[[Tx, "Batch"], Sequence[Any]]
    act: Callable[[Runtime, Page], Acted]
    settle: Callable[[Tx, "Batch", Acted], int | Settled]


@dataclass(frozen=True)
class Batch:
    """The bounds and identity of a claimed batch, and how to select its rows (``clause`` with ``params``)."""

    batch_id: str
    run_id: str
    clause: str
    params: Mapping[str, Any]
    options: RunOptions = field(default_factory=dict)


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
    max_share: float | None = None  # instead of that setting
    max_parallel: int | Callable[[Settings], int] | None = None  # None: PUSHOPS_SWEEP_MAX_PARALLEL
    filtered: Callable[[str], Mapping[str, Any]] | None = None  # a run's filter as parameters of the predicate
    admits: Callable[[str], None] | None = None  # raises RefusedError for a filter that no run may be opened with
    checked: Callable[[Runtime], Sequence[str]] | None = None  # what to know before a run; may raise RefusedError
    page_rows: Callable[[Settings, RunOptions], int] | None = None  # fixed, where batches must not teach it
    lease: Callable[[Settings], timedelta] | None = None  # of a claim and a slot; None: long enough for an act
    paced: bool = False  # acts, and rests between its batches as SQL sweeps do
    meaning: str = ""

    def columns(self, walk: Walk) -> tuple[Column, ...]:
        return (CTID,) if walk is Walk.BLOCKS else self.key
