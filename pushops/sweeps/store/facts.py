"""What PostgreSQL knows of a table."""

from typing import Final, LiteralString

from pushops.db import Tx
from pushops.sweeps.store.rows import TableFacts

# pg_relation_size is exact and cheap; reltuples is as fresh as the last analyze.
TABLE_FACTS: Final[LiteralString] = """
SELECT (pg_relation_size(c.oid) / current_setting('block_size')::int)::int AS blocks, c.reltuples::float8 AS rows
  FROM pg_class AS c WHERE c.oid = %(table)s::regclass"""


def table_facts(tx: Tx, table: str) -> TableFacts:
    return tx.one(TABLE_FACTS, {"table": table}, TableFacts)
