"""Running one revision's SQL file, step by step, so that no statement waits in front of traffic."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import psycopg
from alembic.runtime.migration import MigrationContext
from psycopg import Connection

from pushops.db.errors import classify, describe
from pushops.db.lease import Lease
from pushops.db.statements import Step, bare, steps
from pushops.db.transaction import render
from pushops.errors import PushopsError

LIMITS: Final[LiteralString] = """
SELECT set_config('lock_timeout', %(lock)s::text, true),
       set_config('statement_timeout', %(statement)s::text, true)"""

# Concurrent statements take locks that stop no reader or writer, and have to wait for old transactions. The server
# looks whether we still live, since a killed migration must not go on building.
UNLIMITED: Final[LiteralString] = """
SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false),
       set_config('client_connection_check_interval', '2s', false)"""

INVALID: Final[LiteralString] = """
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_catalog.pg_index AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE i.indrelid = to_regclass(%(table)s::text) AND c.relname = %(index)s::name AND NOT i.indisvalid"""

DETACHING: Final[LiteralString] = """
SELECT inhdetachpending FROM pg_catalog.pg_inherits
 WHERE inhparent = to_regclass(%(parent)s::text) AND inhrelid = to_regclass(%(partition)s::text)"""

_CREATE: Final = re.compile(
    r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?:IF NOT EXISTS )?(?P<index>\w+) ON (?:ONLY )?(?P<table>[\w.\"]+)",
    re.IGNORECASE,
)
_DETACH: Final = re.compile(
    r"(?P<head>ALTER TABLE (?:IF EXISTS )?(?P<parent>[\w.\"]+) DETACH PARTITION (?P<partition>[\w.\"]+)) CONCURRENTLY",
    re.IGNORECASE,
)


Record = Callable[[Connection[Any]], None]  # notes a step as done


@dataclass(frozen=True)
class Runner:
    """What a revision needs to run; ``pooler`` forbids settings that outlive a transaction."""

    schema: str
    lock_timeout: timedelta
    statement_timeout: timedelta
    pooler: bool
    lease: Lease
    progress: Callable[[str], None]

    def run(self, context: MigrationContext, path: Path) -> None:
        """Run the steps of the file that are not done yet. Raises children of DatabaseError."""
        found = steps(render(path.read_text(encoding="utf-8"), self.schema).decode())
        done = self.lease.steps_done(_driver(context), path.stem)
        for number, step in enumerate(found[done:], done + 1):
            self.progress(f"{path.stem}: step {number} of {len(found)}")
            run = self._run_outside if step.outside else self._run_inside
            run(context, step, partial(self.lease.record, revision=path.stem, steps=number))

    def _run_inside(self, context: MigrationContext, step: Step, record: Record) -> None:
        conn = _driver(context)
        conn.execute(LIMITS, {"lock": _ms(self.lock_timeout), "statement": _ms(self.statement_timeout)})
        for statement in step.statements:
            _execute(conn, statement)
        record(conn)

    def _run_outside(self, context: MigrationContext, step: Step, record: Record) -> None:
        with context.autocommit_block():
            conn = _driver(context)
            if not self.pooler:
                conn.execute(UNLIMITED)
            for statement in step.statements:
                _execute(conn, _ready(conn, statement, self.progress))
            record(conn)


def _ready(conn: Connection[Any], statement: str, progress: Callable[[str], None]) -> str:
    """The statement to run, after clearing away what an interrupted one left; empty if that one was done."""
    text = bare(statement)
    if match := _CREATE.match(text):
        _drop_invalid(conn, match["table"], match["index"].lower(), progress)
    elif match := _DETACH.match(text):
        return _detach(conn, match, statement)
    return statement


def _drop_invalid(conn: Connection[Any], table: str, index: str, progress: Callable[[str], None]) -> None:
    if row := conn.execute(INVALID, {"table": table, "index": index}).fetchone():
        progress(f"dropping the invalid index {row[0]}, which an interrupted migration left")
        conn.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {row[0]}".encode())


def _detach(conn: Connection[Any], match: re.Match[str], statement: str) -> str:
    row = conn.execute(DETACHING, {"parent": match["parent"], "partition": match["partition"]}).fetchone()
    if row is None:
        return ""
    return f"{match['head']} FINALIZE" if row[0] else statement


def _execute(conn: Connection[Any], statement: str) -> None:
    try:
        conn.execute(statement.encode())
    except psycopg.Error as error:
        raise _explained(error, statement) from None


def _explained(error: psycopg.Error, statement: str) -> PushopsError:
    """Ours, with the statement's beginning. The server's words only where they name objects and cannot hold values."""
    words = error.diag.message_primary if (error.sqlstate or "").startswith("42") else describe(error)
    return type(classify(error))(f"expected a migration's statement to run, got {words}: {bare(statement)[:200]}")


def _driver(context: MigrationContext) -> Connection[Any]:
    """The driver's own connection: SQLAlchemy would read a percent sign as a parameter."""
    assert context.connection is not None  # noqa: S101  (there is no offline mode)
    return cast("Connection[Any]", context.connection.connection.driver_connection)


def _ms(value: timedelta) -> str:
    return str(value // timedelta(milliseconds=1))
