"""Partitions are made ahead of time: a table like the parent in one transaction, its attachment in another."""

from functools import partial

from pushops.db import Tx
from pushops.db.patience import persist
from pushops.errors import DatabaseError
from pushops.retention.partitions import rules, store
from pushops.retention.partitions.looking import PATIENCE
from pushops.retention.partitions.words import Did, Fate, Leftover, Look, Span, Table
from pushops.runtime import Runtime


def make(rt: Runtime, found: Look, *, dry_run: bool = False) -> list[Fate]:
    """Make what is missing of the interval of now and those after it; each stands alone, whatever became of others."""
    spans = rules.missing(found.ranges, rules.wanted(found.now, found.table.interval, found.table.ahead))
    return [_fate(rt, found, span, dry_run=dry_run) for span in spans]


def _fate(rt: Runtime, found: Look, span: Span, *, dry_run: bool) -> Fate:
    table, name = found.table, rules.name_of(found.table, span)
    try:
        if why := _in_the_way(rt, found, span, name):
            return Fate(table.name, name, Did.BLOCKED, why)
        if dry_run:
            return Fate(table.name, name, Did.WOULD_MAKE, f"{span.begin:%Y-%m-%d} to {span.end:%Y-%m-%d}")
        return _make(rt, table, Leftover(table.schema, name, _bound(found, span), "in"))
    except DatabaseError as error:
        return Fate(table.name, name, Did.FAILED, str(error))


def _make(rt: Runtime, table: Table, child: Leftover) -> Fate:
    """Each step in a transaction of its own, and nothing where somebody else was faster."""
    steps = (partial(_create, table=table, child=child), partial(_attach, table=table, child=child))
    for step in steps:
        persist(rt.db, step, patience=PATIENCE)
    return Fate(table.name, child.name, Did.MADE)


def _create(tx: Tx, *, table: Table, child: Leftover) -> None:
    if store.stands(tx, child.schema, child.name) is None:
        store.create(tx, table.schema, table.table, child.name)
        store.note(tx, table.schema, table.table, child)


def _attach(tx: Tx, *, table: Table, child: Leftover) -> None:
    if not store.attached(tx, child.schema, child.name):
        store.attach(tx, table.schema, table.table, child)
    store.forget(tx, child.schema, child.name)


def _in_the_way(rt: Runtime, found: Look, span: Span, name: str) -> str | None:
    """What only a person can move: a table of somebody's, or rows that the default partition took in."""
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        standing = store.stands(tx, found.table.schema, name)
        if standing is not None and standing.goes != "in":
            return "a table of that name stands there, which pushops did not make: rename it"
        default = found.default
        low, high = (rules.as_bound(at, found.kind) for at in (span.begin, span.end))
        if default is not None and store.strays_in(tx, default, found.table.column, low, high):
            return (
                f"rows of that time lie in the default partition {default.name}: move them away, or change its bounds"
            )
    return None


def _bound(found: Look, span: Span) -> str:
    return store.bound(rules.as_bound(span.begin, found.kind), rules.as_bound(span.end, found.kind))
