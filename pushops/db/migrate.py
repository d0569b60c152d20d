"""Migrations: Alembic decides which, plain SQL files say what, and two processes may run them at once."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from alembic import command, op
from psycopg import Connection
from psycopg import errors as pg
from sqlalchemy import create_engine, exc
from sqlalchemy.pool import NullPool

from pushops.db import lease
from pushops.db.errors import classify, translated
from pushops.db.revision import Runner
from pushops.db.scripts import VERSIONS, config, render_script, scripts
from pushops.db.target import conninfo
from pushops.db.transaction import render
from pushops.errors import DatabaseError, TransientDatabaseError
from pushops.settings import Settings

Progress = Callable[[str], None]

OLDEST_SERVER: Final = 15
ATTEMPTS: Final = 20  # with the pauses between them about two minutes of waiting for a lock

VERSION: Final[LiteralString] = """
CREATE TABLE IF NOT EXISTS {schema}.alembic_version (
  version_num  text CONSTRAINT alembic_version_pkc PRIMARY KEY
)"""
SCHEMA: Final[LiteralString] = "CREATE SCHEMA IF NOT EXISTS {schema}"
FIRST: Final = (SCHEMA, VERSION, lease.TABLE, lease.ROW)

MISSING: Final[LiteralString] = "SELECT 1 WHERE to_regnamespace(%(name)s::text) IS NULL"
CURRENT: Final[LiteralString] = "SELECT version_num FROM {schema}.alembic_version"


def migrate(settings: Settings, progress: Progress = lambda _: None, *, versions: Path = VERSIONS) -> list[str]:
    """Bring the schema up to date and return the revisions applied, oldest first; none if another process did.

    Waits for a process that migrates already. A lock that is not to be had is tried again, never queued for.
    Raises SettingsError and children of DatabaseError.
    """
    if not pending(settings, versions=versions):
        return []
    with translated():
        _prepare(settings)
        with lease.held(settings.db_schema, lambda: connect(settings), progress) as mine:
            runner = Runner(
                schema=settings.db_schema,
                lock_timeout=settings.lock_timeout,
                statement_timeout=settings.statement_timeout,
                pooler=settings.pooler,
                lease=mine,
                progress=progress,
            )
            todo = pending(settings, versions=versions)
            _persist(lambda: _upgrade(settings, runner, versions), progress)
    return todo


def current(settings: Settings) -> str | None:
    """The revision of the schema, None before the first migration."""
    with translated(), connect(settings) as conn:
        try:
            row = conn.execute(render(CURRENT, settings.db_schema)).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return None
    return str(row[0]) if row else None


def pending(settings: Settings, *, versions: Path = VERSIONS) -> list[str]:
    """The revisions still to apply, oldest first; none where a newer release has migrated already."""
    known, found = [script.revision for script in scripts(versions)], current(settings)
    if found is None:
        return known
    return known[known.index(found) + 1 :] if found in known else []


def render_sql(settings: Settings, *, versions: Path = VERSIONS) -> str:
    """All migrations as one script for an empty database, to be read, linted, or run by hand with psql."""
    return render_script(FIRST, scripts(versions), settings)


def run_sibling_sql(path: str) -> None:
    """Run the ``.sql`` file beside a revision's module; what ``upgrade`` of every revision calls."""
    context = op.get_context()
    assert context.config is not None  # noqa: S101  (made by _upgrade)
    runner: Runner = context.config.attributes["runner"]
    runner.run(context, Path(path).with_suffix(".sql"))


def connect(settings: Settings, *, autocommit: bool = True) -> Connection[Any]:
    """A connection of its own; it prepares nothing, so that a pooler may stand between."""
    return psycopg.connect(conninfo(settings, "pushops migrate"), autocommit=autocommit, prepare_threshold=None)


def _prepare(settings: Settings) -> None:
    """Make the schema, the version table and the lease, unless they are there."""
    with connect(settings) as conn:
        if conn.info.server_version < OLDEST_SERVER * 10_000:
            raise DatabaseError(
                f"expected PostgreSQL {OLDEST_SERVER} or newer, got {conn.info.server_version // 10_000}"
            )
        missing = conn.execute(MISSING, {"name": settings.db_schema}).fetchone()
        for statement in FIRST if missing else FIRST[1:]:
            _make(conn, statement, settings.db_schema)


def _make(conn: Connection[Any], query: LiteralString, schema: str) -> None:
    statement = render(query, schema)
    try:
        conn.execute(statement)
    except (pg.UniqueViolation, pg.DuplicateSchema, pg.DuplicateTable, pg.DuplicateObject):
        conn.execute(statement)  # somebody else made it in this moment: IF NOT EXISTS looks too early
    except pg.InsufficientPrivilege as error:
        raise DatabaseError(_rights(conn, error, schema)) from None


def _rights(conn: Connection[Any], error: pg.InsufficientPrivilege, schema: str) -> str:
    role, database = conn.info.user, conn.info.dbname
    return (
        f'expected role "{role}" to be allowed to create in schema "{schema}", got {error.diag.message_primary};'
        f' let an owner of database "{database}" run CREATE SCHEMA "{schema}" AUTHORIZATION "{role}",'
        f' or, where the schema is there, GRANT CREATE, USAGE ON SCHEMA "{schema}" TO "{role}"'
    )


def _persist(attempt: Callable[[], None], progress: Progress) -> None:
    """Try again after what may pass. What was committed stays: the next attempt goes on from there."""
    for number in range(1, ATTEMPTS):
        try:
            attempt()
        except TransientDatabaseError as error:
            progress(f"trying again: {error}")
            time.sleep(min(0.2 * 1.5**number, 10) * random.uniform(0.5, 1))  # noqa: S311  (jitter)
        else:
            return
    attempt()


def _upgrade(settings: Settings, runner: Runner, versions: Path) -> None:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(settings, autocommit=False),
        poolclass=NullPool,
        use_native_hstore=False,
    )
    with _unwrapped(), engine.connect() as connection:
        made = config(versions)
        made.attributes.update(connection=connection, runner=runner, schema=settings.db_schema)
        command.upgrade(made, "head")


@contextmanager
def _unwrapped() -> Iterator[None]:
    """SQLAlchemy's errors as ours; its text repeats statements and parameters."""
    try:
        yield
    except psycopg.Error as error:
        raise classify(error) from None
    except exc.DBAPIError as error:
        cause = error.orig
        raise classify(cause if isinstance(cause, Exception) else error) from None
