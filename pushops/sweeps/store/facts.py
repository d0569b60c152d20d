"""What PostgreSQL knows of a table."""

from typing import Final, LiteralString

from pushops.db import Tx
from pushops.sweeps.store.rows import TableFacts

# pg_relation_size is exact and cheap; reltuples and the correlation are as fresh as the last analyze.
TABLE_FACTS: Final[LiteralString] = """
SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int)::int AS blocks, c.reltuples::float8 AS rows,
       (SELECT coalesce(
          (SELECT s.correlation FROM pg_stats AS s JOIN pg_class AS i ON s.tablename = i.relname
            JOIN pg_namespace AS n ON n.oid = i.relnamespace AND n.nspname = s.schemaname
           WHERE n.oid = c.relnamespace AND i.relname = %(index)s::text LIMIT 1),
          (SELECT s.correlation FROM pg_stats AS s JOIN pg_namespace AS n ON n.nspname = s.schemaname
           WHERE n.oid = c.relnamespace AND s.tablename = c.relname AND s.attname = %(column)s::text)))::float8
         AS correlation
  FROM pg_class AS c WHERE c.oid = %(table)s::regclass"""


def table_facts(tx: Tx, table: str, index: str, column: str) -> TableFacts:
    return tx.one(TABLE_FACTS, {"table": table, "index": index, "column": column}, TableFacts)
