"""Tables of yours as sweeps: looked up in the database when they are asked for, and refused with the reason."""

from dataclasses import replace

from pushops.errors import RefusedError
from pushops.retention.own import checking, declaring, rules, store
from pushops.retention.own.words import PLAIN, Table, Way
from pushops.runtime import Runtime
from pushops.sweeps.sweep import Sweep


def own_sweep(rt: Runtime, name: str) -> Sweep:
    """The sweep of ``[sweeps.NAME]``. Raises RefusedError where its table cannot be walked, and says why."""
    table, way = look(rt, name)
    found = declaring.declare(table, way)
    return replace(found, checked=lambda rt: checking.check(rt, table, way, found))


def look(rt: Runtime, name: str) -> tuple[Table, Way]:
    """The table as the database has it now, and how it is walked. Raises RefusedError."""
    own = rt.settings.sweeps[name]
    schema, table = own.table.split(".")
    if schema in (rt.settings.db_schema, "pg_catalog", "information_schema"):
        raise RefusedError(f"expected table of [sweeps.{name}] to be one of yours, got {own.table}")
    with rt.db.transaction() as tx:
        relation = store.relation(tx, schema, table)
        if relation is None:
            raise RefusedError(f"expected table of [sweeps.{name}] to exist, got {own.table}, which does not")
        columns = {column.name: column for column in store.columns(tx, relation.oid)}
        found = Table(name, own, relation, columns, store.indexes(tx, relation.oid))
    _check_relation(found)
    return found, rules.way_of(found)


def _check_relation(table: Table) -> None:
    own, relation = table.own, table.relation
    if relation.kind == "p":
        raise RefusedError(
            f"expected {own.table} to be a plain table, it is partitioned: [partitions.NAME] drops whole partitions,"
            " and one partition may have a sweep of its own"
        )
    if relation.kind != PLAIN or relation.children:
        raise RefusedError(f"expected {own.table} to be a plain table, it is a view, a foreign table or inherited from")
    if not relation.may:
        raise RefusedError(
            f"expected the right to sweep {own.table}, it is missing:"
            f' GRANT SELECT, UPDATE, DELETE ON {table.quoted} TO "{relation.owner}"'
        )
