"""``pushops sweep quarantine``: keys and pages that were set apart."""

from typing import Annotated
from uuid import UUID

import typer

from pushops.cli.context import SweepName, actor, known_sweep, opened, sweep_named, unique
from pushops.cli.output import Json, print_json, say, tell
from pushops.runtime import Runtime
from pushops.sweeps import history, service
from pushops.sweeps.sweep import Sweep

app = typer.Typer(no_args_is_help=True, help="Keys and pages that were set apart: list, release.")


@app.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only of this sweep.", callback=known_sweep)
    ] = None,
    released: Annotated[bool, typer.Option("--released", help="Also those that were released.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000)] = 100,
    json_: Json = False,
) -> None:
    """What was set apart, newest first, with the error that did it; without an identity it is a whole page."""
    with opened() as rt:
        found = service.quarantined(rt, name, released=released, limit=limit)
    if json_:
        print_json(found)
        return
    for entry in found:
        what = f"row {entry.identity}" if entry.identity else f"the page of batch {entry.batch_id}"
        freed = f", released {entry.released_at:%Y-%m-%d %H:%M}" if entry.released_at else ""
        say(f"{entry.quarantine_id}  {entry.sweep}  {entry.at:%Y-%m-%d %H:%M}{freed}\n  {what}\n  {entry.error}")
    if not found:
        say("nothing is set apart")


@app.command()
def release(
    name: SweepName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids or their beginnings.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of this sweep's.")] = False,
    json_: Json = False,
) -> None:
    """Let the next run look at them again."""
    if bool(ids) == every:
        raise typer.BadParameter("expected ids, or --all")
    with opened() as rt:
        found = sweep_named(rt, name)
        named = [_named(rt, found, text) for text in ids] if ids else None
        count = service.release(rt, found, actor=actor(), ids=named)
    tell({"sweep": found.name, "released": count}, f"{count} released", json_=json_)


def _named(rt: Runtime, sweep: Sweep, prefix: str) -> UUID:
    def find(text: str) -> list[UUID]:
        with rt.db.transaction() as tx:
            return history.quarantine_like(tx, sweep.name, text)

    return unique(prefix, "quarantine entry", find)
