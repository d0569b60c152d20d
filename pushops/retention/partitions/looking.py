"""Which partitioned tables there are, and how each of them stands."""

import difflib
from datetime import timedelta
from typing import Final

from pushops.db import Tx
from pushops.db.errors import words
from pushops.delivery.store.partitions import LEDGER
from pushops.errors import DatabaseError, NotFoundError, RefusedError, TransientDatabaseError
from pushops.retention.partitions import rules, store
from pushops.retention.partitions.store import Found
from pushops.retention.partitions.words import Kind, Look, Part, Table
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.settings.partitions import Interval

OURS: Final = "ledger"
AHEAD: Final = 2
# A look at every row of a partition, or a lock that a reader holds.
PATIENCE: Final = timedelta(seconds=60)


def tables(settings: Settings) -> dict[str, Table]:
    """The ledger, and those of the settings."""
    ledger = Table(
        OURS, settings.db_schema, LEDGER, "message_id", Interval.WEEK, settings.ledger_retention, AHEAD, "", ours=True
    )
    return {OURS: ledger} | {name: _configured(settings, name) for name in settings.partitions if name != OURS}


def _configured(settings: Settings, name: str) -> Table:
    found = settings.partitions[name]
    schema, table = found.table.split(".")
    return Table(name, schema, table, found.column, found.interval, found.retention, found.ahead, found.unfinished)


def chosen(settings: Settings, name: str | None) -> list[Table]:
    """The table of that name, or all. Raises NotFoundError; what is close is suggested."""
    known = tables(settings)
    if name is None:
        return list(known.values())
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}; others are [partitions.NAME]"
        raise NotFoundError(f"expected a partitioned table of the settings, got {name!r}: {hint}")
    return [known[name]]


def look(rt: Runtime, table: Table) -> Look:
    """Raises RefusedError where the table cannot be kept by pushops, and says why."""
    with rt.db.transaction() as tx:
        kind = _kind(tx, table)
    if not table.ours:
        _check_condition(rt, table)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        parts = [_part(found, kind) for found in store.parts(tx, table.schema, table.table)]
        left = store.leftovers(tx, table.schema, table.table)
        default = next((part for part in parts if part.default), None)
        stray = store.strays(tx, default) if default else 0
        return Look(table, kind, tx.now, parts, left, stray)


def _kind(tx: Tx, table: Table) -> Kind:
    """How the table is cut, which must be by ranges of one column that knows time."""
    name, found = f"{table.schema}.{table.table}", store.key(tx, table.schema, table.table)
    if found is None:
        raise RefusedError(f"expected {name} to be a partitioned table, got none: pushops partitions no table for you")
    if found.strategy != "r" or found.columns != 1 or found.name is None:
        raise RefusedError(f"expected {name} to be partitioned by the range of one column, it is cut otherwise")
    if found.name != table.column:
        raise RefusedError(f"expected {name} to be partitioned by {table.column}, it is by {found.name}")
    try:
        return Kind(str(found.type))
    except ValueError:
        kinds = ", ".join(Kind)
        raise RefusedError(f"expected {name}.{found.name} to be one of {kinds}, got {found.type}") from None


def _check_condition(rt: Runtime, table: Table) -> None:
    """Whether ``unfinished`` is one expression of the table's columns. Raises RefusedError."""
    text, place = table.unfinished, f"unfinished of [partitions.{table.name}]"
    if any(sign in text for sign in (";", "--", "/*")) or not _is_closed(text):
        raise RefusedError(f"expected {place} to be one condition without comments, parentheses closed, got {text!r}")
    try:
        with rt.db.transaction() as tx:
            store.plan_condition(tx, table.schema, table.table, text)
    except TransientDatabaseError:
        raise
    except DatabaseError as error:
        raise RefusedError(f"expected {place} to be a condition on its columns, got {text!r}: {words(error)}") from None


def _is_closed(text: str) -> bool:
    """Whether nothing closes what stands around the condition. What a literal holds counts, too: rather refused."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


def _part(found: Found, kind: Kind) -> Part:
    low, high = (rules.from_bound(text, kind) for text in (found.low, found.high))
    return Part(
        found.schema, found.name, low, high, found.bound, found.is_default, found.pending, found.rows, found.bytes
    )
