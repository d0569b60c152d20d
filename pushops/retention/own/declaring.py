"""From a table of yours to a sweep of the engine."""

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Final

from pushops.retention.own import archiving
from pushops.retention.own.rules import NAIVE
from pushops.retention.own.words import Table, Way, quoted
from pushops.settings import Settings, format_duration
from pushops.settings.own import OwnTable
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Column, RunOptions, Sweep, Window

CUTOFF: Final = "cutoff"


def declare(table: Table, way: Way) -> Sweep:
    """The sweep that deletes its rows. Every name in it is quoted, and the predicate stands in its own parentheses."""
    own = table.own
    return Sweep(
        name=table.name,
        meaning=meaning(own),
        table=literal(table.quoted),
        index=way.index.name,
        key=tuple(_column(table, way, n) for n in range(len(way.walked))),
        identity=Column(literal(_identity(way)), "text"),
        predicate=literal(predicate(table)),
        windows=(Window(CUTOFF, (), floor=timedelta(), length=own.retention), _declared(own)),
        effect=None if own.archive else literal(_delete(table)),
        acting=archiving.acting(table) if own.archive else None,
        paced=own.archive is not None,
        blocks=True,
        brake=True,
        max_share=own.max_share,
        page_rows=_page_rows(own),
    )


def _page_rows(own: OwnTable) -> Callable[[Settings, RunOptions], int] | None:
    """What the section says; an archive's pages are objects, and of one size."""
    if own.archive is None and own.page_rows is None:
        return None
    return lambda settings, _options: own.page_rows or archiving.page_rows(settings)


def _delete(table: Table) -> str:
    return f"WITH gone AS (DELETE FROM {table.quoted} WHERE {{batch}} RETURNING 1) SELECT count(*)::int FROM gone"


def meaning(own: OwnTable) -> str:
    since = f"{format_duration(own.retention)} after " if own.retention else "after "
    condition = f" and {own.predicate}" if own.predicate else ""
    return f"rows of {own.table} are deleted {since}{own.column}{condition}"


def predicate(table: Table) -> str:
    """A percent sign is ours to double: the statement has parameters."""
    own = table.own
    parts = [f"({own.predicate.replace('%', '%%')}\n)"] if own.predicate else []
    parts.append(f"{quoted(own.column)} < {_cutoff(table)}")
    if own.hold is not None:
        parts.append(f"{quoted(own.hold)} IS NOT TRUE")
    return " AND ".join(parts)


def _cutoff(table: Table) -> str:
    """The run's own time; a column without a zone is compared on the clock of the zone that the settings name."""
    own, kind = table.own, table.columns[table.own.column].type
    if kind not in NAIVE:
        return f"%({CUTOFF})s::timestamptz"
    local = f"(%({CUTOFF})s::timestamptz AT TIME ZONE '{own.zone}')"
    return f"{local}::date" if kind == "date" else local


def _declared(own: OwnTable) -> Window:
    """A window of no length whose name is the declaration's: no run goes on by another one than it was opened with."""
    text = own.model_dump_json(include={"table", "key", "predicate", "expires", "age", "zone", "hold", "archive"})
    return Window(literal(f"declared_{sha256(text.encode()).hexdigest()[:12]}"), (), floor=timedelta(), silent=True)


def _column(table: Table, way: Way, n: int) -> Column:
    """Ordered as the index is: by its own collation, where that is another than the column's."""
    name = way.walked[n]
    found, collation = table.columns[name], way.index.collations[n]
    expression = quoted(name) if collation == found.collation else f"{quoted(name)} COLLATE {collation}"
    return Column(literal(expression), literal(found.type))


def _identity(way: Way) -> str:
    names = [quoted(name) for name in way.key]
    return f"{names[0]}::text" if len(names) == 1 else f"ROW({', '.join(names)})::text"
