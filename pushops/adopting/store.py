"""SQL about a table that is adopted: what it has already. The statements that change it are in ``ddl``."""

from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg.sql import SQL

from pushops.adopting.sweeping import losing, unhashed
from pushops.adopting.words import SUPERSEDED, Adoption, quoted
from pushops.db import Tx

TABLE: Final[LiteralString] = """
SELECT c.relkind::text AS kind,
       (SELECT a.attname::text FROM pg_index AS i
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1) AS key,
       (SELECT format_type(a.atttypid, NULL) FROM pg_index AS i
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1) AS key_type,
       (SELECT count(*)::int FROM pg_constraint AS f WHERE f.confrelid = c.oid AND f.contype = 'f') AS referring
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text"""

COLUMN: Final[LiteralString] = """
SELECT format_type(a.atttypid, NULL)
  FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text AND a.attname = %(column)s::text
   AND a.attnum > 0 AND NOT a.attisdropped"""

INDEX: Final[LiteralString] = """
SELECT i.indisvalid AS valid,
       EXISTS (SELECT FROM pg_stat_progress_create_index AS p WHERE p.index_relid = i.indexrelid) AS building
  FROM pg_index AS i
 WHERE i.indexrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(index)s::text))"""

CHECK: Final[LiteralString] = """
SELECT convalidated FROM pg_constraint
 WHERE conrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AND conname = %(name)s::text"""

TRIGGER: Final[LiteralString] = """
SELECT p.prosrc FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
 WHERE t.tgrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AND t.tgname = %(name)s::text
   AND t.tgenabled IN ('O', 'A')"""

LOSERS: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.adoption_loser WHERE relation = %(relation)s::text"""


@dataclass(frozen=True)
class Found:
    """A table; ``referring`` is how many foreign keys of others name it."""

    kind: str
    key: str | None
    key_type: str | None
    referring: int


@dataclass(frozen=True)
class Index:
    valid: bool
    building: bool


def table(tx: Tx, schema: str, name: str) -> Found | None:
    return tx.maybe(TABLE, {"schema": schema, "table": name}, Found)


def type_of(tx: Tx, one: Adoption, column: str) -> str | None:
    found = tx.scalar(COLUMN, {"schema": one.schema, "table": one.table, "column": column})
    return None if found is None else str(found)


def index(tx: Tx, one: Adoption, name: str) -> Index | None:
    return tx.maybe(INDEX, {"schema": one.schema, "index": name}, Index)


def check(tx: Tx, one: Adoption) -> bool | None:
    """Whether the constraint is validated; None where there is none."""
    found = tx.scalar(CHECK, {"schema": one.schema, "table": one.table, "name": one.check})
    return None if found is None else bool(found)


def trigger(tx: Tx, one: Adoption) -> str | None:
    """What the trigger runs."""
    found = tx.scalar(TRIGGER, {"schema": one.schema, "table": one.table, "name": one.trigger})
    return None if found is None else str(found)


def losers(tx: Tx, one: Adoption) -> int:
    return int(tx.scalar(LOSERS, {"relation": one.plain}))


def any_unhashed(tx: Tx, one: Adoption) -> bool:
    return _any(tx, one, unhashed(one))


def any_losing(tx: Tx, one: Adoption) -> bool:
    return _any(tx, one, losing(one))


def duplicates(tx: Tx, one: Adoption) -> tuple[int, int]:
    """Endpoints with several rows, and the rows that are too many; read from the endpoints where no hash is there."""
    key = one.hashed("")
    if type_of(tx, one, one.column):
        key = f"coalesce({quoted(one.column)}, {one.hashed('')})"
        if type_of(tx, one, SUPERSEDED):
            key = f"CASE WHEN {SUPERSEDED} IS NULL THEN {key} END"
    query = (
        f"SELECT count(*)::int, coalesce(sum(n - 1), 0)::int FROM (SELECT count(*) AS n FROM {one.relation}"
        f" WHERE {quoted(one.endpoint)} IS NOT NULL GROUP BY {key} HAVING count(*) > 1 AND {key} IS NOT NULL) AS many"
    )
    row = tx.conn.execute(SQL(query), prepare=False).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def run(tx: Tx, statement: str) -> None:
    tx.conn.execute(SQL(statement.replace("{schema}", f'"{tx.schema}"')), prepare=False)


def _any(tx: Tx, one: Adoption, condition: str) -> bool:
    row = tx.conn.execute(
        SQL(f"SELECT EXISTS (SELECT FROM {one.relation} WHERE {condition})"), prepare=False
    ).fetchone()
    return row is None or bool(row[0])
