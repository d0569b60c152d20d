"""SQL of partitioned tables. Names and bounds come from the catalog or the settings, and are quoted by PostgreSQL."""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Literal

from pushops.db import Tx
from pushops.retention.partitions.words import Leftover, Part

COUNTED: Final = 10_000  # rows of a default partition; nobody needs to know more of them

KEY: Final[LiteralString] = """
SELECT p.partstrat::text AS strategy, p.partnatts::int AS columns, a.attname::text AS name,
       format_type(a.atttypid, NULL) AS type
  FROM pg_partitioned_table AS p
  JOIN pg_class AS c ON c.oid = p.partrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
 WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text"""

# A bound is printed as the session prints times, which our transactions do in UTC.
PARTS: Final[LiteralString] = r"""
SELECT schema, name, bound, pending, bound = 'DEFAULT' AS is_default, rows, bytes,
       substring(bound FROM 'FROM \(''([^'']*)''\)') AS low, substring(bound FROM 'TO \(''([^'']*)''\)') AS high
  FROM (SELECT n.nspname::text AS schema, c.relname::text AS name, i.inhdetachpending AS pending,
               pg_get_expr(c.relpartbound, c.oid) AS bound, nullif(c.reltuples, -1)::bigint AS rows,
               pg_total_relation_size(c.oid)::bigint AS bytes
          FROM pg_inherits AS i
          JOIN pg_class AS c ON c.oid = i.inhrelid
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE i.inhparent = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))) AS found
 ORDER BY schema, name"""

# Only what was written down is ours to attach or drop: a table of a partition's name may be somebody's archive.
LEFTOVERS: Final[LiteralString] = """
SELECT s.child_schema AS schema, s.child AS name, s.bound, s.goes
  FROM {schema}.partition_step AS s
  JOIN pg_class AS c ON c.oid = to_regclass(format('%%I.%%I', s.child_schema, s.child))
 WHERE s.parent_schema = %(schema)s::text AND s.parent = %(table)s::text
   AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)
 ORDER BY s.child"""

NOTE: Final[LiteralString] = """
INSERT INTO {schema}.partition_step (parent_schema, parent, child_schema, child, bound, goes)
VALUES (%(schema)s::text, %(table)s::text, %(child_schema)s::text, %(child)s::text, %(bound)s::text, %(goes)s::text)
ON CONFLICT (child_schema, child) DO UPDATE
   SET parent_schema = excluded.parent_schema, parent = excluded.parent, bound = excluded.bound,
       goes = excluded.goes, since = now()"""

FORGET: Final[LiteralString] = """
DELETE FROM {schema}.partition_step WHERE child_schema = %(child_schema)s::text AND child = %(child)s::text"""

# What was written down and never begun, or is gone: the note would one day drop what an operator detached himself.
FORGET_OLD: Final[LiteralString] = """
DELETE FROM {schema}.partition_step AS s
 WHERE s.since < now() - interval '10 minutes'
   AND (to_regclass(format('%%I.%%I', s.child_schema, s.child)) IS NULL
        OR EXISTS (SELECT FROM pg_inherits WHERE NOT inhdetachpending
                      AND inhrelid = to_regclass(format('%%I.%%I', s.child_schema, s.child))))"""

STANDS: Final[LiteralString] = """
SELECT s.goes FROM (SELECT to_regclass(format('%%I.%%I', %(child_schema)s::text, %(child)s::text)) AS child) AS found
  LEFT JOIN {schema}.partition_step AS s
    ON s.child_schema = %(child_schema)s::text AND s.child = %(child)s::text
 WHERE found.child IS NOT NULL"""

ATTACHED: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM pg_inherits
                WHERE inhrelid = to_regclass(format('%%I.%%I', %(child_schema)s::text, %(child)s::text)))"""

OPTIONS: Final[LiteralString] = """
SELECT array_to_string(c.reloptions, ', ')
  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
   AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
 ORDER BY c.oid DESC LIMIT 1"""


@dataclass(frozen=True)
class Key:
    """How a table is cut: ``r`` is by range; no name where it is by an expression."""

    strategy: str
    columns: int
    name: str | None
    type: str | None


@dataclass(frozen=True)
class Found:
    schema: str
    name: str
    bound: str
    pending: bool
    is_default: bool
    rows: int | None
    bytes: int
    low: str | None
    high: str | None


@dataclass(frozen=True)
class Stands:
    """A table of that name; ``goes`` says that it is ours, and on its way."""

    goes: str | None


def key(tx: Tx, schema: str, table: str) -> Key | None:
    return tx.maybe(KEY, {"schema": schema, "table": table}, Key)


def parts(tx: Tx, schema: str, table: str) -> list[Found]:
    return tx.rows(PARTS, {"schema": schema, "table": table}, Found)


def leftovers(tx: Tx, schema: str, table: str) -> list[Leftover]:
    return tx.rows(LEFTOVERS, {"schema": schema, "table": table}, Leftover)


def note(tx: Tx, schema: str, table: str, child: Leftover) -> None:
    """Write down where a partition is going, before or with the first step."""
    values = {"schema": schema, "table": table, "child_schema": child.schema, "child": child.name}
    tx.run(NOTE, values | {"bound": child.bound, "goes": child.goes})


def forget(tx: Tx, schema: str, name: str) -> None:
    tx.run(FORGET, {"child_schema": schema, "child": name})


def forget_old(tx: Tx) -> None:
    tx.run(FORGET_OLD, {})


def stands(tx: Tx, schema: str, name: str) -> Stands | None:
    return tx.maybe(STANDS, {"child_schema": schema, "child": name}, Stands)


def attached(tx: Tx, schema: str, name: str) -> bool:
    return bool(tx.scalar(ATTACHED, {"child_schema": schema, "child": name}))


def create(tx: Tx, schema: str, table: str, name: str) -> None:
    """A table like its parent, not yet part of it, with the storage options of the newest partition.

    Not the parent's identity: a partition takes its values from it. It is empty, so that attaching reads nothing.
    """
    options = tx.scalar(OPTIONS, {"schema": schema, "table": table})
    statement = SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING IDENTITY)").format(
        Identifier(schema, name), Identifier(schema, table)
    )
    _execute(tx, statement + SQL(" WITH ({})").format(SQL(options)) if options else statement)


def bound(low: str, high: str) -> str:
    """As PostgreSQL prints it."""
    return SQL("FOR VALUES FROM ({}) TO ({})").format(Literal(low), Literal(high)).as_string()


def attach(tx: Tx, schema: str, table: str, child: Leftover) -> None:
    """Takes no lock that readers or writers of the table wait for, but on a default partition, which it reads."""
    _execute(
        tx,
        SQL("ALTER TABLE {} ATTACH PARTITION {} {}").format(
            Identifier(schema, table),
            Identifier(child.schema, child.name),
            SQL(child.bound),
        ),
    )


def strays_in(tx: Tx, default: Part, column: str, low: str, high: str) -> bool:
    """Whether the default partition has rows that belong into a span: no partition can be attached over them."""
    query = SQL("SELECT EXISTS (SELECT FROM {} WHERE {column} >= {} AND {column} < {})").format(
        Identifier(default.schema, default.name), Literal(low), Literal(high), column=Identifier(column)
    )
    return _truth(tx, query)


def strays(tx: Tx, default: Part) -> int:
    query = SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS rows").format(
        Identifier(default.schema, default.name), Literal(COUNTED)
    )
    row = tx.conn.execute(query, prepare=False).fetchone()
    return int(row[0]) if row else 0


def unfinished(tx: Tx, schema: str, name: str, condition: str) -> bool:
    """Whether a row may still be acted on; one of which nobody can say (NULL) may be."""
    query = SQL("SELECT EXISTS (SELECT FROM {} WHERE ({}) IS NOT FALSE)").format(
        Identifier(schema, name),
        SQL(condition),
    )
    return _truth(tx, query)


def plan_condition(tx: Tx, schema: str, table: str, condition: str) -> None:
    """Have PostgreSQL read a condition, which must be one expression of the table's columns; nothing is run."""
    query = SQL("EXPLAIN SELECT FROM {} WHERE ({}) IS NOT FALSE").format(
        Identifier(schema, table),
        SQL(condition),
    )
    _execute(tx, query)


def lock(tx: Tx, schema: str, name: str) -> None:
    """Nobody writes to a table that is detached, unless by its own name: not from here on."""
    _execute(tx, SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(Identifier(schema, name)))


def drop(tx: Tx, schema: str, name: str) -> None:
    _execute(tx, SQL("DROP TABLE {}").format(Identifier(schema, name)))


def detach_plainly(tx: Tx, schema: str, table: str, child: Leftover) -> None:
    """Where a default partition stands PostgreSQL knows no other way; everybody waits for its short lock."""
    _execute(tx, _detaching(schema, table, child))


def detach(conn: Connection[Any], schema: str, table: str, child: Leftover, *, finalize: bool) -> None:
    """Without stopping anybody; outside a transaction, or it is refused."""
    how = SQL(" FINALIZE") if finalize else SQL(" CONCURRENTLY")
    conn.execute(_detaching(schema, table, child) + how)


def _detaching(schema: str, table: str, child: Leftover) -> Composed:
    return SQL("ALTER TABLE {} DETACH PARTITION {}").format(
        Identifier(schema, table), Identifier(child.schema, child.name)
    )


def _truth(tx: Tx, query: Composed) -> bool:
    row = tx.conn.execute(query, prepare=False).fetchone()
    return row is None or bool(row[0])


def _execute(tx: Tx, statement: Composed) -> None:
    tx.conn.execute(statement, prepare=False)
