"""What is known of a table of yours: what the settings say of it, and what the database does."""

from collections.abc import Sequence
from dataclasses import dataclass

from pushops.settings.own import OwnTable

PLAIN: str = "r"  # of pg_class.relkind


@dataclass(frozen=True)
class Relation:
    """``kind`` is pg_class.relkind; ``children``: rows of other tables are read with it, by inheritance."""

    oid: int
    kind: str
    children: bool
    may: bool
    owner: str


@dataclass(frozen=True)
class Found:
    """A column of the table. ``collation`` is quoted with its schema, "" where the type has none."""

    name: str
    type: str
    not_null: bool
    collation: str
    deterministic: bool


@dataclass(frozen=True)
class Index:
    """A valid B-tree; a column is None where an expression is indexed. ``partial`` is its condition."""

    name: str
    unique: bool
    primary: bool
    columns: Sequence[str | None]
    collations: Sequence[str]
    descending: Sequence[bool]
    partial: str | None

    @property
    def one_way(self) -> bool:
        """Whether all its columns run the same way, so that keys can be compared as rows."""
        return len(set(self.descending)) == 1


@dataclass(frozen=True)
class Function:
    """What a condition calls: ``volatility`` as pg_proc has it, ``types`` are the oids of arguments and result."""

    name: str
    volatility: str
    types: frozenset[int]


@dataclass(frozen=True)
class Compared:
    """A constant that a column is compared with; of ``many`` the text is an array's."""

    column: str
    value: str
    many: bool
    negative: bool


@dataclass(frozen=True)
class Table:
    """The table of a ``[sweeps.NAME]`` as the database has it."""

    name: str
    own: OwnTable
    relation: Relation
    columns: dict[str, Found]
    indexes: Sequence[Index]

    @property
    def place(self) -> str:
        return f"[sweeps.{self.name}]"

    @property
    def quoted(self) -> str:
        return ".".join(f'"{part}"' for part in self.own.table.split("."))


@dataclass(frozen=True)
class Way:
    """How the table is walked: columns in the index's order; ``by_time``: the oldest first, and only what is over."""

    key: Sequence[str]
    walked: Sequence[str]
    index: Index
    by_time: bool


def quoted(name: str) -> str:
    """The settings admit plain lower-case names only."""
    return f'"{name}"'
