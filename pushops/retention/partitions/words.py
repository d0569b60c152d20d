"""What is said of partitioned tables: spans of time, what stands, and what became of it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pushops.settings.partitions import Interval


class Kind(StrEnum):
    """The types that a table may be partitioned by, as PostgreSQL calls them. A uuid is of version 7."""

    TIMESTAMPTZ = "timestamp with time zone"
    TIMESTAMP = "timestamp without time zone"  # read as UTC
    DATE = "date"
    UUID = "uuid"


@dataclass(frozen=True)
class Table:
    """A table that is cut into intervals. ``unfinished`` is the condition of rows that may still be acted on."""

    name: str
    schema: str
    table: str
    column: str
    interval: Interval
    retention: timedelta
    ahead: int
    unfinished: str
    ours: bool = False  # the ledger: its weeks are over by its messages, too


@dataclass(frozen=True)
class Span:
    begin: datetime
    end: datetime


@dataclass(frozen=True)
class Part:
    """A partition. ``low`` and ``high`` are None where it is open, or the default; ``rows`` is PostgreSQL's guess."""

    schema: str
    name: str
    low: datetime | None
    high: datetime | None
    bound: str
    default: bool
    pending: bool  # a detaching of it was cut off
    rows: int | None
    bytes: int


@dataclass(frozen=True)
class Leftover:
    """A table that is no partition: made and not attached yet (``in``), or detached and not dropped (``out``)."""

    schema: str
    name: str
    bound: str
    goes: str


@dataclass(frozen=True)
class Look:
    """A partitioned table as it stands. ``stray`` is how many rows lie in its default partition, counted to a limit."""

    table: Table
    kind: Kind
    now: datetime
    parts: list[Part]
    leftovers: list[Leftover]
    stray: int

    @property
    def default(self) -> Part | None:
        return next((part for part in self.parts if part.default), None)

    @property
    def ranges(self) -> list[Part]:
        return [part for part in self.parts if not part.default]


class Did(StrEnum):
    """What became of a partition, or would."""

    MADE = "made"
    WOULD_MAKE = "would make"
    DROPPED = "dropped"
    WOULD_DROP = "would drop"
    KEPT = "kept"  # it lies back far enough, but must stay
    BLOCKED = "blocked"  # something stands in the way that only a person can move
    HELD = "held"  # an operator, or a shortened retention
    FAILED = "failed"  # the next time goes on from there


@dataclass(frozen=True)
class Fate:
    table: str
    partition: str
    did: Did
    why: str | None = None
