"""The ledger's weeks: partitions made ahead, found, detached and dropped. Names are quoted by PostgreSQL itself."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Literal

from pushops.db import Tx

LEDGER: Final = "push_dispatch"
OPEN: Final = ("due", "claimed", "paused")

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

# Every table that is a week of the ledger, or was one until it was detached.
LIST: Final[LiteralString] = """
SELECT c.relname AS name, i.inhparent IS NOT NULL AS attached, coalesce(i.inhdetachpending, false) AS pending
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
 WHERE n.nspname = %(schema)s::text AND c.relkind = 'r' AND c.relname ~ '^push_dispatch_[0-9]{8}$'
 ORDER BY c.relname"""

# A week is over when it lies back that far and so does the end of all its messages; one that never began has only the
# time of its own end.
OVER: Final[LiteralString] = """
SELECT %(end)s::timestamptz < now() - %(retention)s::interval
       AND NOT EXISTS (
         SELECT FROM {schema}.push_message
          WHERE message_id >= {schema}.id_floor(%(begin)s::timestamptz)
            AND message_id < {schema}.id_floor(%(end)s::timestamptz)
            AND (closed_at IS NULL OR coalesce(expires_at, closed_at) >= now() - %(retention)s::interval))"""

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


def listed(tx: Tx) -> list[Standing]:
    """The oldest first."""
    return tx.rows(LIST, {"schema": tx.schema}, Standing)


def over(tx: Tx, begin: datetime, end: datetime, retention: timedelta) -> bool:
    return bool(tx.scalar(OVER, {"begin": begin, "end": end, "retention": retention}))


def actionable(tx: Tx, name: str) -> bool:
    """Whether a row of the week may still be sent; each state is a look into an index of its own."""
    table = Identifier(tx.schema, name)
    looks = [SQL("EXISTS (SELECT FROM {} WHERE state = {})").format(table, state) for state in map(Literal, OPEN)]
    row = tx.conn.execute(SQL("SELECT {}").format(SQL(" OR ").join(looks)), prepare=False).fetchone()
    return row is None or bool(row[0])


def detach(conn: Connection[Any], schema: str, name: str, *, finalize: bool) -> None:
    """Take a week out of the ledger without stopping anybody; outside a transaction, or it is refused."""
    how = SQL("FINALIZE") if finalize else SQL("CONCURRENTLY")
    conn.execute(
        SQL("ALTER TABLE {} DETACH PARTITION {} {}").format(Identifier(schema, LEDGER), Identifier(schema, name), how)
    )


def drop(tx: Tx, name: str) -> None:
    _execute(tx, SQL("DROP TABLE IF EXISTS {}").format(Identifier(tx.schema, name)))


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
