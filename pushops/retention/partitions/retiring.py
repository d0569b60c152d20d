"""Partitions that are over leave their table whole: look, detach, look again now that nobody writes there, drop."""

from typing import Final

from pushops.db import Tx
from pushops.db.patience import outside, persist
from pushops.errors import DatabaseError
from pushops.retention.partitions import rules, store
from pushops.retention.partitions.looking import PATIENCE
from pushops.retention.partitions.words import Did, Fate, Leftover, Look, Part, Table
from pushops.runtime import Runtime

LAST: Final = "it is the last one"
UNFINISHED: Final = "a row of it is not finished"


def retire(rt: Runtime, found: Look, *, dry_run: bool = False) -> list[Fate]:
    """Drop what is over, the oldest first, what an interruption left behind before that; never the last partition."""
    left = len(found.ranges)
    fates = [_finish(rt, found.table, each, dry_run=dry_run) for each in found.leftovers if each.goes == "out"]
    for part in rules.over(found.ranges, found.now - found.table.retention):
        if left == 1:
            fates.append(Fate(found.table.name, part.name, Did.KEPT, LAST))
            break
        fate = _retire(rt, found, part, dry_run=dry_run)
        left -= fate.did in (Did.DROPPED, Did.WOULD_DROP)
        fates.append(fate)
    return fates


def _retire(rt: Runtime, found: Look, part: Part, *, dry_run: bool) -> Fate:
    """What failed is tried again next time, from wherever it stands."""
    table, child = found.table, Leftover(part.schema, part.name, part.bound, "out")
    try:
        if not part.pending and _unfinished(rt, table, child):
            return Fate(table.name, part.name, Did.KEPT, UNFINISHED)
        if dry_run:
            return Fate(table.name, part.name, Did.WOULD_DROP, f"all of it is older than {part.high:%Y-%m-%d}")
        _note(rt, table, child)
        _detach(rt, found, part, child)
        return _settle(rt, table, child)
    except DatabaseError as error:
        return Fate(table.name, part.name, Did.FAILED, str(error))


def _finish(rt: Runtime, table: Table, child: Leftover, *, dry_run: bool) -> Fate:
    """A table that was detached and is still there: somebody was killed in between."""
    if dry_run:
        return Fate(table.name, child.name, Did.WOULD_DROP, "it was detached, and not dropped yet")
    try:
        return _settle(rt, table, child)
    except DatabaseError as error:
        return Fate(table.name, child.name, Did.FAILED, str(error))


def _unfinished(rt: Runtime, table: Table, child: Leftover) -> bool:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return store.unfinished(tx, child.schema, child.name, table.unfinished)


def _note(rt: Runtime, table: Table, child: Leftover) -> None:
    """Before the first step: a table that stands detached, and is not written down, is nobody's to drop."""
    with rt.db.transaction() as tx:
        store.note(tx, table.schema, table.table, child)


def _detach(rt: Runtime, found: Look, part: Part, child: Leftover) -> None:
    table = found.table
    if found.default is not None and not part.pending:
        persist(rt.db, lambda tx: store.detach_plainly(tx, table.schema, table.table, child), patience=PATIENCE)
        return
    with outside(rt.settings, PATIENCE) as conn:
        store.detach(conn, table.schema, table.table, child, finalize=part.pending)


def _settle(rt: Runtime, table: Table, child: Leftover) -> Fate:
    """Drop it, or bring it back if a row was written between the look and the detaching."""

    def settle(tx: Tx) -> Did:
        store.lock(tx, child.schema, child.name)
        came = store.unfinished(tx, child.schema, child.name, table.unfinished)
        if came:
            store.attach(tx, table.schema, table.table, child)
        else:
            store.drop(tx, child.schema, child.name)
        store.forget(tx, child.schema, child.name)
        return Did.KEPT if came else Did.DROPPED

    did = persist(rt.db, settle, patience=PATIENCE)
    return Fate(table.name, child.name, did, UNFINISHED if did is Did.KEPT else None)
