"""What is looked at before a run is opened: the condition as PostgreSQL understands it, and what will surprise."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from pushops.db import Tx
from pushops.db.errors import words
from pushops.errors import DatabaseError, RefusedError, StatementTimeoutError, TransientDatabaseError
from pushops.retention.own import predicates, rules, store
from pushops.retention.own.words import Compared, Table, Way
from pushops.runtime import Runtime
from pushops.sweeps import history, sql
from pushops.sweeps.sweep import Sweep

Answer = TypeVar("Answer")
SAMPLE = 1_000
FEW = 100  # of fewer rows nobody can say that they all are alike


def check(rt: Runtime, table: Table, way: Way, sweep: Sweep) -> list[str]:
    """What somebody should know of a table of theirs; RefusedError where no run may be opened."""
    notes = _check_condition(rt, table) if table.own.predicate else []
    return [*notes, *_index(rt, table, way, sweep), *_around(rt, table)]


def _check_condition(rt: Runtime, table: Table) -> list[str]:
    text, place = table.own.predicate or "", f"predicate of {table.place}"
    predicates.check_text(text, place)
    tree = predicates.tree_of(_asked(rt, place, text, lambda tx: store.parse_tree(tx, table.quoted, text)))
    _asked(rt, place, text, lambda tx: store.stands_alone(tx, table.quoted, text))
    with rt.db.transaction() as tx:
        called = store.functions(tx, tree.functions)
    predicates.check_tree(text, tree, called, place)
    never, left = _asked(rt, place, text, lambda tx: store.plan_filter(tx, table.quoted, f"({text}\n)"))
    notes = _check_values(rt, table, left, place)
    always, _ = _asked(rt, place, text, lambda tx: store.plan_filter(tx, table.quoted, f"NOT ({text}\n)"))
    if never:
        raise RefusedError(
            f"expected {place} to be true of some row, got {text!r}, which by the table's own rules is of none"
        )
    if always or not left:
        raise RefusedError(f"expected {place} to be false of some row, got {text!r}, which is true of every one")
    return [*notes, *_all_alike(rt, table, text)]


def _check_values(rt: Runtime, table: Table, condition: str, place: str) -> list[str]:
    """What a column is compared with: refused where no row can have it, told where none had it."""
    with rt.db.transaction() as tx:
        named = [(one, value) for one in predicates.compared(condition, table.columns) for value in _values(tx, one)]
        seen = store.known_values(tx, *table.own.table.split("."))
    for one, value in named:
        with rt.db.transaction() as tx:
            history.read_only(tx)
            impossible, _ = store.plan_filter(tx, table.quoted, f'"{one.column}" = {store.quote(tx, value)}')
        if impossible:
            raise RefusedError(
                f"expected {place} to compare {one.column} with what it can be, got {value!r}: a CHECK of"
                f" {table.own.table} admits no such row"
            )
    return predicates.unknown_values(seen, [(one.column, value) for one, value in named])


def _values(tx: Tx, one: Compared) -> list[str]:
    return store.elements(tx, one.value) if one.many else [one.value]


def _all_alike(rt: Runtime, table: Table, text: str) -> Iterator[str]:
    try:
        with rt.db.transaction() as tx:
            history.read_only(tx)
            rows, alike = store.sample(tx, table.quoted, text, SAMPLE)
    except StatementTimeoutError:
        return
    if rows >= FEW and rows == alike:
        yield f"the predicate is true of each of the first {rows:,} rows: does it leave anything out?"


def _index(rt: Runtime, table: Table, way: Way, sweep: Sweep) -> Iterator[str]:
    statement = rules.index_statement(table, way)
    if statement is None:
        return
    order = ", ".join(column.expression for column in sweep.key)
    query = f"SELECT FROM {table.quoted} WHERE {sql.predicate(sweep)} ORDER BY {order} LIMIT 5000"
    with rt.db.transaction(planner=sql.PLAN_PAGES) as tx:
        plan = store.plan_lines(tx, query, {window.name: tx.now for window in sweep.windows})
    yield (
        f"no index begins with {table.own.column}: every run reads all of {table.own.table} in the order of its key;"
        f" {statement} lets it read what is over. The plan now: {' / '.join(line.strip() for line in plan)}"
    )


def _around(rt: Runtime, table: Table) -> Iterator[str]:
    with rt.db.transaction() as tx:
        keys, triggers = store.references(tx, table.relation.oid), store.delete_triggers(tx, table.relation.oid)
    for key in keys:
        if key.hinders:
            yield f"{key.text}: rows that it points to cannot go and end in quarantine"
        elif key.scans:
            yield f"{key.text}: its table is read for every row that goes"
    if triggers:
        yield f"triggers on delete run for every row: {', '.join(triggers)}"


def _asked(rt: Runtime, place: str, text: str, ask: Callable[[Tx], Answer]) -> Answer:
    """PostgreSQL's own complaint about somebody's condition, in its first line: that names columns, never rows."""
    try:
        with rt.db.transaction() as tx:
            history.read_only(tx)
            return ask(tx)
    except (TransientDatabaseError, StatementTimeoutError):
        raise
    except DatabaseError as error:
        raise RefusedError(f"expected {place} to be a condition on its columns, got {text!r}: {words(error)}") from None
