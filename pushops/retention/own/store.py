"""What PostgreSQL's catalog knows of a table of yours."""

from typing import Final, LiteralString

from pushops.db import Tx
from pushops.retention.own.words import Found, Index, Relation

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
