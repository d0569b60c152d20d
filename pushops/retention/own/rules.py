"""Pure decisions: whether a table of yours can be walked, along what, and which statement would help."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from pushops.errors import RefusedError
from pushops.retention.own.words import Found, Index, Table, Way, quoted

# What goes to a page's row as text and comes back the same.
KEYS: Final = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "uuid",
    "text",
    "character varying",
    "date",
    "timestamp with time zone",
    "timestamp without time zone",
)
AWARE: Final = "timestamp with time zone"
NAIVE: Final = ("timestamp without time zone", "date")


def way_of(table: Table) -> Way:
    """Along the time where an index has it with the key, along the key otherwise. Raises RefusedError."""
    _check_columns(table)
    unique = _unique(table)
    key = [name for name in unique.columns if name is not None]
    walked = [table.own.column, *(name for name in key if name != table.own.column)]
    timed = next((index for index in table.indexes if _leads(index, walked)), None)
    if timed is None:
        return Way(key, key, unique, by_time=key[0] == table.own.column)
    return Way(key, walked, timed, by_time=True)


def _leads(index: Index, walked: Sequence[str]) -> bool:
    return list(index.columns[: len(walked)]) == list(walked) and index.one_way and index.partial is None


def _check_columns(table: Table) -> None:
    own, place = table.own, f"[sweeps.{table.name}]"
    _check_time(table, _column(table, own.column, "expires" if own.expires else "age"), place)
    if own.hold is not None:
        held = _column(table, own.hold, "hold")
        if held.type != "boolean":
            raise RefusedError(f"expected hold of {place} to be a boolean column, got {held.name} of {held.type}")
    for name in own.key:
        _column(table, name, "key")


def _column(table: Table, name: str, what: str) -> Found:
    found = table.columns.get(name)
    if found is None:
        close = difflib.get_close_matches(name, table.columns, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(table.columns)}"
        raise RefusedError(
            f"expected {what} of [sweeps.{table.name}] to be a column of {table.own.table}, got {name}: {hint}"
        )
    return found


def _check_time(table: Table, column: Found, place: str) -> None:
    if column.type == AWARE:
        if table.own.zone is not None:
            raise RefusedError(f"expected no zone in {place}: {column.name} is a {AWARE}, which needs none")
    elif column.type not in NAIVE:
        raise RefusedError(f"expected {column.name} of {place} to be a {AWARE}, got {column.type}")
    elif table.own.zone is None:
        raise RefusedError(
            f"expected {column.name} of {place} to be a {AWARE}, got {column.type}, which says no zone:"
            f' add zone = "UTC", or whichever its values are meant in'
        )


def _unique(table: Table) -> Index:
    """The unique index over exactly the key's columns. Raises RefusedError, and says what there is."""
    wanted = set(table.own.key)
    indexes = [index for index in table.indexes if index.unique and index.partial is None and None not in index.columns]
    found = next((i for i in indexes if (set(i.columns) == wanted if wanted else i.primary)), None)
    if found is None:
        raise RefusedError(_no_key(table, indexes))
    for name in found.columns:
        _check_key(table, table.columns[str(name)])
    if not found.one_way:
        raise RefusedError(
            f"expected the columns of {found.name} to run all the same way, got some of them descending: pages are cut"
            " by comparing whole keys"
        )
    return found


def _no_key(table: Table, indexes: Sequence[Index]) -> str:
    there = "; ".join(f"{i.name} on {_listed(i.columns)}" for i in indexes) or "none"
    if not table.own.key:
        return (
            f"expected {table.own.table} to have a primary key, got none: name the columns of a unique index as key of"
            f" [sweeps.{table.name}]; there is {there}"
        )
    statement = f"CREATE UNIQUE INDEX CONCURRENTLY ON {table.quoted} ({_listed(table.own.key, quote=True)})"
    return (
        f"expected key of [sweeps.{table.name}] to be the columns of a unique index on all rows, got"
        f" {_listed(table.own.key)}: there is {there}; {statement} would make one"
    )


def _check_key(table: Table, column: Found) -> None:
    place = f"[sweeps.{table.name}]"
    if not column.not_null:
        raise RefusedError(
            f"expected the key of {place} to have no nulls, {column.name} may: "
            f"ALTER TABLE {table.quoted} ALTER {quoted(column.name)} SET NOT NULL"
        )
    if column.type not in KEYS:
        raise RefusedError(
            f"expected {column.name} in the key of {place} to be one of {', '.join(KEYS)}, got {column.type}"
        )
    if not column.deterministic:
        raise RefusedError(
            f"expected {column.name} in the key of {place} to have a collation by which only equals are equal"
        )


def _listed(names: Iterable[str | None], *, quote: bool = False) -> str:
    return ", ".join("an expression" if name is None else quoted(name) if quote else name for name in names)


def index_statement(table: Table, way: Way) -> str | None:
    """What would let a run read only what is over; None where it does."""
    if way.by_time:
        return None
    columns = [table.own.column, *(name for name in way.key if name != table.own.column)]
    return f"CREATE INDEX CONCURRENTLY ON {table.quoted} ({_listed(columns, quote=True)})"
