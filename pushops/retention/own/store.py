"""What PostgreSQL's catalog knows of a table of yours."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg.errors import Diagnostic

from pushops.db import Tx
from pushops.retention.own.words import Found, Function, Index, Relation
from pushops.sweeps.sql import literal

# FOR UPDATE, with which the engine takes rows that somebody held, asks for the right to update.
RELATION: Final[LiteralString] = """
SELECT c.oid::bigint AS oid, c.relkind::text AS kind, c.relhassubclass AS children,
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE')
         AND has_table_privilege(c.oid, 'DELETE') AS may,
       current_user::text AS owner
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s::text AND c.relname = %(table)s::text"""

COLUMNS: Final[LiteralString] = """
SELECT a.attname::text AS name, format_type(a.atttypid, NULL) AS type, a.attnotnull AS not_null,
       CASE WHEN l.oid IS NULL THEN '' ELSE format('%%I.%%I', n.nspname, l.collname) END AS collation,
       coalesce(l.collisdeterministic, true) AS deterministic
  FROM pg_attribute AS a
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
  LEFT JOIN pg_namespace AS n ON n.oid = l.collnamespace
 WHERE a.attrelid = %(oid)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum"""

# Only what can be walked: complete, and ordered. INCLUDE columns are no part of the key.
INDEXES: Final[LiteralString] = """
SELECT c.relname::text AS name, i.indisunique AND i.indimmediate AS unique, i.indisprimary AS primary,
       pg_get_expr(i.indpred, i.indrelid) AS partial, k.columns, k.collations, k.descending
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_am AS m ON m.oid = c.relam AND m.amname = 'btree'
  CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text ORDER BY p.n) AS columns,
           array_agg(CASE WHEN l.oid IS NULL THEN '' ELSE format('%%I.%%I', s.nspname, l.collname) END ORDER BY p.n)
             AS collations,
           array_agg(i.indoption[p.n] & 1 = 1 ORDER BY p.n) AS descending
      FROM generate_series(0, i.indnkeyatts - 1) AS p (n)
      LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.n] AND a.attnum <> 0
      LEFT JOIN pg_collation AS l ON l.oid = i.indcollation[p.n]
      LEFT JOIN pg_namespace AS s ON s.oid = l.collnamespace) AS k
 WHERE i.indrelid = %(oid)s::bigint::oid AND i.indisvalid AND i.indisready
 ORDER BY i.indisprimary DESC, c.relname"""


def relation(tx: Tx, schema: str, table: str) -> Relation | None:
    return tx.maybe(RELATION, {"schema": schema, "table": table}, Relation)


def columns(tx: Tx, oid: int) -> list[Found]:
    return tx.rows(COLUMNS, {"oid": oid}, Found)


def indexes(tx: Tx, oid: int) -> list[Index]:
    return tx.rows(INDEXES, {"oid": oid}, Index)


# How PostgreSQL understands a statement it tells whoever asks, in a notice; only its own log hears of it beside us.
LISTEN: Final[LiteralString] = """
SELECT set_config('client_min_messages', 'log', true), set_config('debug_pretty_print', 'off', true),
       set_config('debug_print_parse', 'on', true)"""
HUSH: Final[LiteralString] = """
SELECT set_config('debug_print_parse', 'off', true), set_config('client_min_messages', 'notice', true)"""

# Whatever it is, it is filtered row by row: an index would take its part of the condition away.
PLAINLY: Final[LiteralString] = """
SELECT set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_indexonlyscan', 'off', true), set_config('enable_tidscan', 'off', true),
       set_config('constraint_exclusion', 'on', true)"""

FUNCTIONS: Final[LiteralString] = """
SELECT proname::text AS name, provolatile::text AS volatility,
       (string_to_array(proargtypes::text, ' ')::bigint[] || prorettype::bigint) AS types
  FROM pg_proc WHERE oid = ANY (%(oids)s::bigint[]::oid[])"""

# Columns all of whose values are common enough to be known by name.
KNOWN_VALUES: Final[LiteralString] = """
SELECT attname::text AS column, most_common_vals::text::text[] AS values
  FROM pg_stats
 WHERE schemaname = %(schema)s::text AND tablename = %(table)s::text AND NOT inherited
   AND n_distinct > 0 AND cardinality(most_common_vals::text::text[]) >= n_distinct"""

ELEMENTS: Final[LiteralString] = "SELECT unnest(%(array)s::text[])"

# Foreign keys whose rows keep ours from going, or whose table is scanned for each of ours; and what users hung on it.
REFERENCES: Final[LiteralString] = """
SELECT format('%%s.%%s ON DELETE %%s%%s', c.conrelid::regclass, c.conname,
              CASE c.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT'
                                 WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END,
              CASE WHEN i.indexed THEN '' ELSE ', without an index' END) AS text,
       c.confdeltype IN ('a', 'r') AS hinders, NOT i.indexed AS scans
  FROM pg_constraint AS c
  CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM pg_index AS i
                    WHERE i.indrelid = c.conrelid AND i.indisvalid AND i.indpred IS NULL
                      AND (string_to_array(i.indkey::text, ' ')::int2[])[1:cardinality(c.conkey)] @> c.conkey)
             AS indexed) AS i
 WHERE c.contype = 'f' AND c.conparentid = 0 AND c.confrelid = %(oid)s::bigint::oid
 ORDER BY 1"""

DELETE_TRIGGERS: Final[LiteralString] = """
SELECT tgname::text FROM pg_trigger
 WHERE tgrelid = %(oid)s::bigint::oid AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 8 = 8 ORDER BY 1"""


@dataclass(frozen=True)
class _FunctionRow:
    name: str
    volatility: str
    types: list[int]


@dataclass(frozen=True)
class _Values:
    column: str
    values: list[str]


@dataclass(frozen=True)
class Reference:
    """A foreign key into the table."""

    text: str
    hinders: bool
    scans: bool


def parse_tree(tx: Tx, table: str, condition: str) -> str:
    """The tree of a query with the condition; "" where this server shows none. Nothing is executed."""
    with _heard(tx) as trees:
        tx.run(LISTEN, {})
        trees.clear()
        _explain(tx, table, f"({condition}\n)")
        found = trees[0] if trees else ""
        tx.run(HUSH, {})
    return found


def stands_alone(tx: Tx, table: str, condition: str) -> None:
    """The condition with nothing but words around it: what closes a parenthesis of ours is no whole one here."""
    _explain(tx, table, f"CASE WHEN {condition}\n THEN true END")


def plan_filter(tx: Tx, table: str, condition: str) -> tuple[bool, str]:
    """Whether PostgreSQL sees that no row can fulfil it, by itself or by constraints; and what is left of it."""
    tx.run(PLAINLY, {})
    plan = _explain(tx, table, condition)
    return "One-Time Filter" in plan, str(plan.get("Filter", ""))


def functions(tx: Tx, oids: Collection[int]) -> list[Function]:
    found = tx.rows(FUNCTIONS, {"oids": list(oids)}, _FunctionRow)
    return [Function(row.name, row.volatility, frozenset(row.types)) for row in found]


def known_values(tx: Tx, schema: str, table: str) -> dict[str, list[str]]:
    return {row.column: row.values for row in tx.rows(KNOWN_VALUES, {"schema": schema, "table": table}, _Values)}


def elements(tx: Tx, array: str) -> list[str]:
    return tx.scalars(ELEMENTS, {"array": array})


def quote(tx: Tx, value: str) -> str:
    return str(tx.scalar("SELECT quote_literal(%(value)s::text)", {"value": value}))


def references(tx: Tx, oid: int) -> list[Reference]:
    return tx.rows(REFERENCES, {"oid": oid}, Reference)


def delete_triggers(tx: Tx, oid: int) -> list[str]:
    return tx.scalars(DELETE_TRIGGERS, {"oid": oid})


def plan_lines(tx: Tx, query: str, values: Mapping[str, Any]) -> list[str]:
    return tx.scalars(literal(f"EXPLAIN (COSTS OFF) {query}"), values)


def _explain(tx: Tx, table: str, condition: str) -> Mapping[str, Any]:
    doubled = condition.replace("%", "%%")
    query = literal(f"EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE {doubled}")
    found: list[dict[str, Any]] = tx.scalar(query, {}, prepare=False)
    plan: Mapping[str, Any] = found[0]["Plan"]
    return plan


@contextmanager
def _heard(tx: Tx) -> Iterator[list[str]]:
    trees: list[str] = []

    def listen(notice: Diagnostic) -> None:
        if notice.message_primary == "parse tree:" and notice.message_detail:
            trees.append(notice.message_detail)

    tx.conn.add_notice_handler(listen)
    try:
        yield trees
    finally:
        tx.conn.remove_notice_handler(listen)


@dataclass(frozen=True)
class _Sampled:
    rows: int
    alike: int


def sample(tx: Tx, table: str, condition: str, most: int) -> tuple[int, int]:
    """How many of the first rows there are, and of how many the condition is true."""
    doubled = condition.replace("%", "%%")
    found = tx.one(
        literal(
            f"SELECT count(*)::int AS rows, (count(*) FILTER (WHERE ({doubled}\n)))::int AS alike"
            f" FROM (SELECT * FROM {table} LIMIT %(most)s::bigint) AS first"
        ),
        {"most": most},
        _Sampled,
    )
    return found.rows, found.alike
