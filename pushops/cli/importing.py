"""``pushops subscription import``: files of other stores come in, and every row that does not says why."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from pushops.cli.context import STDIN, actor, opened
from pushops.cli.exits import Exit
from pushops.cli.output import Json, note, print_json, say
from pushops.cli.progress import meter
from pushops.errors import PushopsError, RefusedError
from pushops.importing.service import import_subscriptions
from pushops.importing.sources import Names, Source, parse_names, read_file
from pushops.importing.tables import read_table
from pushops.importing.words import Imported, Refusal, Refuse
from pushops.runtime import Runtime


def import_(
    file: Annotated[str | None, typer.Argument(metavar="FILE|-", help="JSON lines or CSV, or - for stdin.")] = None,
    how: Annotated[str, typer.Option("--format", help="auto, jsonl or csv.")] = "auto",
    names: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN", help="What a column or member is; repeatable.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--from-table", metavar="TABLE", help="Read this PostgreSQL table, not a file.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--from-url",
            metavar="URL",
            envvar="IMPORT_FROM_URL",
            help="The database of that table, if it is another; better in the environment, where no list shows it.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--application-server-key", metavar="KEY", help="The VAPID public key, where rows do not say."),
    ] = None,
    utc: Annotated[bool, typer.Option("--utc", help="Times without a zone are UTC.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything; nothing is stored.")] = False,
    revive: Annotated[
        bool, typer.Option("--revive", help="Also bring back those that their person had unsubscribed.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write every refusal there, as JSON lines.")
    ] = None,
    json_: Json = False,
) -> None:
    """Store subscriptions of other stores: a browser's object a line, or columns by the names that libraries use.

    Of rows with one endpoint the latest stands. Importing again changes nothing: where a row has no user or no tags,
    the one that is here keeps its own, and what its person unsubscribed is refused. Exit code 0 where every row was
    taken, 1 where any was refused.
    """
    with ExitStack() as stack:
        rt = stack.enter_context(opened())
        source = stack.enter_context(_source(rt, file, how, parse_names(names or []), table, url))
        refuse = stack.enter_context(_refusing(report))
        done = _import(rt, source, refuse, dry_run=dry_run, revive=revive, utc=utc, key=key)
    if json_:
        print_json(done)
    else:
        _say_imported(done, report)
    if done.refused:
        raise typer.Exit(Exit.FAILED)


def _source(
    rt: Runtime, file: str | None, how: str, names: Names, table: str | None, url: str | None
) -> AbstractContextManager[Source]:
    if (file is None) == (table is None):
        raise typer.BadParameter("expected FILE (or - for stdin) or --from-table TABLE, one of them")
    if table is not None:
        own = rt.settings.database_url
        return read_table(url or (own.get_secret_value() if own else ""), table, names)
    if how not in ("auto", "jsonl", "csv"):
        raise typer.BadParameter(f"expected --format to be auto, jsonl or csv, got {how!r}")
    return _file(str(file), how, names)


@contextmanager
def _file(file: str, how: str, names: Names) -> Iterator[Source]:
    if file == STDIN:
        yield read_file(sys.stdin.buffer, how, names)
        return
    try:
        with Path(file).open("rb") as opened_file:
            total = sum(block.count(b"\n") for block in iter(lambda: opened_file.read(1 << 20), b""))
            opened_file.seek(0)
            yield read_file(opened_file, how, names, total)
    except OSError as error:
        raise RefusedError(f"expected to read {file}, got {error.strerror}") from None


@contextmanager
def _refusing(path: Path | None) -> Iterator[Refuse]:
    if path is None:
        yield lambda _refusal: None
        return
    try:
        sink = path.open("w", encoding="utf-8")
    except OSError as error:
        raise RefusedError(f"expected to write {path}, got {error.strerror}") from None
    with sink:
        yield lambda refusal: _write_refusal(sink, refusal)


def _write_refusal(sink: IO[str], refusal: Refusal) -> None:
    found = refusal.found
    fields = {"line": refusal.line, "field": found.field, "reason": str(found.reason)}
    told = {**fields, "expected": found.expected, "got": found.got, "endpoint": refusal.tag}
    sink.write(json.dumps(told) + "\n")


def _import(
    rt: Runtime, source: Source, refuse: Refuse, *, dry_run: bool, revive: bool, utc: bool, key: str | None
) -> Imported:
    with meter("rows") as show:

        def told(what: str, done: int, of: int | None) -> None:
            show(done, of, what)

        try:
            return import_subscriptions(
                rt,
                source,
                actor=actor(),
                refuse=refuse,
                told=told,
                dry_run=dry_run,
                revive=revive,
                utc=utc,
                application_server_key=key,
            )
        except PushopsError:
            note("what was stored stays; importing again is harmless")
            raise


def _say_imported(done: Imported, report: Path | None) -> None:
    would = "would be " if done.dry_run else ""
    say(f"{done.lines:,} lines: {done.inserted:,} {would}new, {done.updated:,} {would}changed")
    say(f"  {done.unchanged:,} unchanged, {done.duplicates:,} duplicates, {done.refused:,} refused")
    for reason, count in done.reasons.most_common():
        say(f"  {count:,} {reason}")
    for fingerprint, count in done.foreign_keys.most_common():
        say(f"  {count:,} subscribed with a VAPID key that is not held here, SHA-256 {fingerprint}")
    if done.refused and report is None:
        say("--report FILE lists each refusal with its line")
