"""What commands work with: an opened runtime, a sweep by name, a run by the beginning of its id, who is asking."""

import difflib
import getpass
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final
from uuid import UUID

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict

from pushops.db import migrate
from pushops.errors import NotFoundError, RefusedError, SettingsError, TransientDatabaseError
from pushops.retention.catalog import catalog, names
from pushops.runtime import NO_DATABASE, Runtime, open_runtime, settings_or_sandbox
from pushops.settings import Settings
from pushops.sweeps import history
from pushops.sweeps.sweep import Sweep

# What walks tables in its own way, and asks for a pause by name as sweeps do. Their modules bring libcurl and
# encryption along, which no sweep waits for: a test holds the names together.
BESIDE: Final = {
    "fan-out": "messages' recipients are written into the ledger",
    "send-due": "what is due is sent",
    "purge-ledger": "weeks of the ledger that are over are dropped after PUSHOPS_LEDGER_RETENTION",
    "retire-partitions": "partitions of the tables of [partitions.NAME] that are over are dropped",
}


def known_sweep(name: str | None) -> str | None:
    """The name, where a sweep is called so; what is close is suggested. Before anything is opened."""
    if name is None:
        return None
    known = [*names(settings_or_sandbox()), *BESIDE]
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
    raise typer.BadParameter(f"no sweep is called {name!r}: {hint}")


SweepName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a sweep, see pushops sweep list.", callback=known_sweep)
]

STDIN: Final = "-"  # in the place of a file, or of an endpoint, which need not stand in a shell's history

_ANSWER: Final = "expected the database that PUSHOPS_DATABASE_URL names to answer"
_PREFIX: Final = re.compile(r"[0-9a-f-]{4,36}")


@contextmanager
def opened() -> Iterator[Runtime]:
    """A runtime for the command. Raises SettingsError where no database is named and no sandbox is up."""
    runtime = open_runtime(quieter(with_database()))
    try:
        yield runtime
    finally:
        runtime.close()


def with_database() -> Settings:
    """Settings that name a database which answers. Raises SettingsError and TransientDatabaseError."""
    settings = settings_or_sandbox()
    if settings.database_url is None:
        raise SettingsError(NO_DATABASE)
    reach(settings)
    return settings


def reach(settings: Settings) -> None:
    """Connect once, on its own: the pool would go on trying for ten seconds, and then not know why."""
    try:
        migrate.connect(settings).close()
    except psycopg.OperationalError as error:
        raise TransientDatabaseError(f"{_ANSWER}, got {_words(error, settings)}") from None
    except psycopg.Error as error:  # a URL that cannot be read; the driver's text repeats it
        raise SettingsError(
            f"expected PUSHOPS_DATABASE_URL to be a PostgreSQL URL, got {type(error).__name__}"
        ) from None


def _words(error: psycopg.OperationalError, settings: Settings) -> str:
    """The driver's first line, which names host and reason; nothing of it where it holds any part of a password."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    url = settings.database_url.get_secret_value() if settings.database_url else ""
    password = str(conninfo_to_dict(url).get("password") or "")
    return type(error).__name__ if password and password in line else line


def quieter(settings: Settings) -> Settings:
    """People at a terminal read the result, not an event for each batch, unless they set a level themselves."""
    if sys.stderr.isatty() and "log_level" not in settings.model_fields_set:
        return settings.model_copy(update={"log_level": "warning", "log_format": "console"})
    return settings


def given(text: str) -> str:
    """What was typed, or the first line of stdin."""
    return sys.stdin.readline().strip() if text == STDIN else text


def sweep_named(rt: Runtime, name: str) -> Sweep:
    """A sweep of the catalog. Raises RefusedError for one of a table of yours that cannot be walked."""
    if name in BESIDE:
        raise RefusedError(f"expected a sweep that the engine walks, got {name}, which can be paused and resumed only")
    return catalog(rt)[name]


def run_named(rt: Runtime, prefix: str) -> UUID:
    """The run whose id begins so. Raises NotFoundError, or RefusedError where several do."""

    def find(text: str) -> list[UUID]:
        with rt.db.transaction() as tx:
            return history.runs_like(tx, text)

    return unique(prefix, "run", find)


def unique(prefix: str, what: str, find: Callable[[str], list[UUID]]) -> UUID:
    text = prefix.strip().lower()
    if not _PREFIX.fullmatch(text):
        raise RefusedError(f"expected the id of a {what} or at least four digits of its beginning, got {prefix!r}")
    found = find(text)
    if not found:
        raise NotFoundError(f"expected the id of a {what} or its beginning, got {text}: there is none")
    if len(found) > 1:
        raise RefusedError(f"expected the id of one {what}, got {text}, with which several begin: give more of it")
    return found[0]


def actor() -> str:
    """Who is asking, for runs and the audit."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user need not have a name
        return f"cli:uid {os.getuid()}"
