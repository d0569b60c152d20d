"""``pushops subscription dump``: all rows for another store or for looking, without endpoints and keys by default."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Final

import typer

from pushops.cli.context import actor, opened
from pushops.cli.output import Json, note, print_json, say
from pushops.cli.progress import meter
from pushops.errors import RefusedError
from pushops.importing.dumping import dump
from pushops.subscriptions.lifecycle import State
from pushops.subscriptions.store.reading import Filter

STDOUT: Final = "-"
_PRIVATE: Final = 0o600


def dump_(
    out: Annotated[str, typer.Option("--out", metavar="FILE|-", help="Where to, or - for stdout.")],
    how: Annotated[str, typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    user: Annotated[str | None, typer.Option("--user", help="Only of this user.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    push_service: Annotated[str | None, typer.Option("--service", help="Only of this push service.")] = None,
    origin: Annotated[str | None, typer.Option("--origin", help="Only of this site.")] = None,
    with_credentials: Annotated[
        bool, typer.Option("--with-credentials", help="Endpoints and keys too, in the clear, of live rows; audited.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes to --with-credentials.")] = False,
    json_: Json = False,
) -> None:
    """Write subscriptions as JSON lines or CSV; with credentials, in the form that import reads."""
    if how not in ("jsonl", "csv"):
        raise typer.BadParameter(f"expected --format to be jsonl or csv, got {how!r}")
    if with_credentials and not yes:
        raise RefusedError(
            "expected --yes: with its endpoint and keys anybody can send to a subscription; the audit keeps who took it"
        )
    which = Filter(user, state, push_service, origin)
    with opened() as rt, _sink(out) as sink, meter("rows") as show:
        rows, left_out = dump(
            rt,
            sink,
            how=how,
            which=which,
            with_credentials=with_credentials,
            told=lambda done: show(done, None, "dump"),
            actor=actor(),
        )
    if left_out:
        note(f"{left_out:,} rows left out: their seal key is not held here")
    if json_ and out != STDOUT:
        print_json({"rows": rows, "left_out": left_out, "file": out})
    elif out != STDOUT:
        say(f"{rows:,} rows in {out}")


@contextmanager
def _sink(out: str) -> Iterator[IO[str]]:
    """A file that nobody else may read, whatever it was before."""
    if out == STDOUT:
        yield sys.stdout
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT, _PRIVATE)
        os.fchmod(descriptor, _PRIVATE)
        os.truncate(descriptor, 0)
    except OSError as error:
        raise RefusedError(f"expected to write {out}, got {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as sink:
        yield sink
