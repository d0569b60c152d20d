"""``pushops partition``: what stands, what would be made or dropped, and doing it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from pushops.cli.context import actor, opened
from pushops.cli.exits import DOCUMENTED, Exit
from pushops.cli.output import Json, print_json, print_table, say, tell
from pushops.retention.partitions import service
from pushops.retention.partitions.words import Did, Fate, Look, Part
from pushops.settings import format_duration

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="ledger, or NAME of a section [partitions.NAME]; all unless said."),
]
_UNWELL = (Did.BLOCKED, Did.FAILED)


@app.callback()
def partition() -> None:
    """Partitions of the ledger and of tables of yours: list, plan, create, retire."""


@app.command("list")
def list_(name: Name = None, json_: Json = False) -> None:
    """Every partition: its time, its rows as PostgreSQL guesses them, its size; and what is wrong."""
    with opened() as rt:
        found = service.looks(rt, name)
    if json_:
        print_json([_as_json(one) for one in found])
        return
    rows = [
        (one.table.name, part.name, *_times(part), part.rows, part.bytes, _state(part))
        for one in found
        for part in one.parts
    ]
    print_table(("TABLE", "PARTITION", "FROM", "TO", "ROWS>", "BYTES>", "STATE"), rows)
    for one in found:
        for problem in service.problems(one):
            say(f"{one.table.name}: {problem}")


@app.command(epilog=DOCUMENTED)
def plan(name: Name = None, json_: Json = False) -> None:
    """What create and retire would do now; nothing changes."""
    with opened() as rt:
        found = service.plan(rt, name)
    _show(found, json_=json_)


@app.command(epilog=DOCUMENTED)
def create(
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be made.")] = False,
    json_: Json = False,
) -> None:
    """Make the partitions that are missing, of now and ahead; beat does so every hour."""
    with opened() as rt:
        found = service.create(rt, name, dry_run=dry_run)
    _show(found, json_=json_)


@app.command(epilog=DOCUMENTED)
def retire(
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    json_: Json = False,
) -> None:
    """Drop partitions that are over and finished; beat does so every night. What is dropped is gone."""
    with opened() as rt:
        found = service.retire(rt, name, dry_run=not yes)
    _show(found, json_=json_)
    if not json_ and any(fate.did is Did.WOULD_DROP for fate in found):
        say("nothing is dropped yet; --yes does it")


@app.command()
def acknowledge(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ledger, or NAME of a section [partitions.NAME].")],
    json_: Json = False,
) -> None:
    """Say that a retention which is shorter than the last one used is meant."""
    with opened() as rt:
        window = service.acknowledge(rt, name, actor=actor())
    text = f"{name}: partitions are over after {format_duration(window)}"
    tell({"table": name, "retention": window.total_seconds()}, text, json_=json_)


def _show(found: Sequence[Fate], *, json_: bool) -> None:
    """Ends the command with 1 where something could not be done, 3 where somebody holds it."""
    if json_:
        print_json(found)
    else:
        rows = [(fate.table, fate.partition, fate.did, fate.why or "") for fate in found]
        print_table(("TABLE", "PARTITION", "WHAT", "WHY"), rows, empty="nothing to do")
    if any(fate.did in _UNWELL for fate in found):
        raise typer.Exit(Exit.FAILED)
    if any(fate.did is Did.HELD for fate in found):
        raise typer.Exit(Exit.HELD)


def _times(part: Part) -> tuple[str, str]:
    return _time(part.low), _time(part.high)


def _time(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}".removesuffix(" 00:00")


def _state(part: Part) -> str:
    if part.default:
        return "default"
    return "detaching was cut off" if part.pending else "attached"


def _as_json(found: Look) -> dict[str, object]:
    return {
        "table": found.table.name,
        "relation": f"{found.table.schema}.{found.table.table}",
        "partitions": found.parts,
        "left_over": found.leftovers,
        "default_rows": found.stray,
        "problems": service.problems(found),
    }
