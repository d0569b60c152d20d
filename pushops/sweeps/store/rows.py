"""What the engine's statements return."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pushops.sweeps.sweep import Walk


@dataclass(frozen=True)
class RunRow:
    """A run as it stands."""

    run_id: UUID
    sweep: str
    state: str
    why: str | None
    started_by: str
    opened_at: datetime
    cutoffs: dict[str, Any]
    windows: dict[str, float]
    walk: str
    cursor: list[str] | None
    walk_end: list[str] | None
    walked: bool
    revisited: bool
    force: bool
    row_limit: int | None
    eligible_rows: int | None
    table_rows: int | None
    page_rows: int | None
    rows_dispatched: int
    pages: int
    held_since: datetime | None
    held_by: str | None
    rung_at: datetime | None
    budget_until: datetime | None
    closed_at: datetime | None
    filter: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    failures_in_row: int = 0

    @property
    def walked_along(self) -> Walk:
        return Walk(self.walk)

    @property
    def cutoff_times(self) -> dict[str, datetime]:
        return {name: datetime.fromisoformat(text) for name, text in self.cutoffs.items()}


@dataclass(frozen=True)
class BatchRow:
    """A batch as its claim returned it."""

    batch_id: UUID
    seq: int
    visit: int
    lo: list[str] | None
    hi: list[str]
    expected: int | None
    attempts: int
    failures: int


@dataclass(frozen=True)
class ControlRow:
    sweep: str
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None
    acknowledged: dict[str, float]
    batch_rows: int | None
    dispatched_at: datetime | None
    succeeded_at: datetime | None


@dataclass(frozen=True)
class NewBatch:
    batch_id: UUID
    lo: list[str] | None
    hi: list[str]
    expected: int | None


@dataclass(frozen=True)
class PageEnd:
    hi: list[str]
    n: int


@dataclass(frozen=True)
class Middle:
    key: list[str]
    identity: str
    total: int


@dataclass(frozen=True)
class Progress:
    """What a run has done so far, counted from its receipts and batches."""

    rows_done: int
    rows_locked: int
    done: int
    due: int
    claimed: int
    quarantined: int
    seconds: float


@dataclass(frozen=True)
class Ready:
    """What is left to do of a run, as a worker that found nothing to claim must know."""

    due: int
    later: int
    claimed: int
    next_due_at: datetime | None


@dataclass(frozen=True)
class Quarantined:
    quarantine_id: UUID
    sweep: str
    run_id: UUID
    batch_id: UUID
    identity: str | None
    error: str
    at: datetime
    released_at: datetime | None


@dataclass(frozen=True)
class TableFacts:
    """What the planner's statistics say about a table; fewer than no rows where it was never analyzed."""

    blocks: int
    rows: float
