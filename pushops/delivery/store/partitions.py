"""The ledger's weeks: partitions made ahead, found, detached and dropped. Names are quoted by PostgreSQL itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from psycopg.sql import SQL, Composed, Identifier, Literal

from pushops.db import Tx

LEDGER: Final = "push_dispatch"

# The week that a time falls into begins on a Monday, UTC.
WEEKS: Final[LiteralString] = """
SELECT date_bin('7 days', coalesce(%(at)s::timestamptz, now()), timestamptz '2000-01-03 00:00:00+00')
       + n * interval '168 hours' AS week
  FROM generate_series(0, %(ahead)s::integer) AS n"""

# What stands where a partition's name would: nothing, a table of its own (left over, or detached), or a partition.
STANDS: Final[LiteralString] = """
SELECT c.relname AS name, i.inhparent IS NOT NULL AS attached, coalesce(i.inhdetachpending, false) AS pending
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
 WHERE n.nspname = %(schema)s::text AND c.relname = %(name)s::text"""

FLOOR: Final[LiteralString] = "SELECT {schema}.id_floor(%(at)s::timestamptz)"


@dataclass(frozen=True)
class Week:
    week: datetime


@dataclass(frozen=True)
class Standing:
    name: str
    attached: bool
    pending: bool


def weeks(tx: Tx, at: datetime | None, ahead: int) -> list[datetime]:
    """The beginning of the week of ``at`` (now), and of as many after it."""
    return [found.week for found in tx.rows(WEEKS, {"at": at, "ahead": ahead}, Week)]


def stands(tx: Tx, name: str) -> Standing | None:
    return tx.maybe(STANDS, {"schema": tx.schema, "name": name}, Standing)


def create(tx: Tx, name: str) -> None:
    """A table like the ledger, not yet part of it; free room for the two updates that most rows see."""
    table, ledger = Identifier(tx.schema, name), Identifier(tx.schema, LEDGER)
    _execute(
        tx,
        SQL(
            "CREATE TABLE IF NOT EXISTS {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
            " WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)"
        ).format(table, ledger),
    )


def attach(tx: Tx, name: str, begin: datetime, end: datetime) -> None:
    """Make a table the partition of a span of time. Takes no lock that readers or writers of the ledger wait for."""
    low, high = (tx.scalar(FLOOR, {"at": at}) for at in (begin, end))
    _execute(
        tx,
        SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            Identifier(tx.schema, LEDGER), Identifier(tx.schema, name), Literal(str(low)), Literal(str(high))
        ),
    )


def _execute(tx: Tx, statement: Composed) -> None:
    tx.conn.execute(statement, prepare=False)
