"""``pushops payload``: what lies in the payload store, and who names it."""

from typing import Annotated

import typer

from pushops.cli.context import opened
from pushops.cli.output import Json, print_json, print_table, say
from pushops.retention import orphans
from pushops.retention.orphans import Orphans

app = typer.Typer(no_args_is_help=True, help="The payload store: objects that no message names.")


@app.callback()
def _noun() -> None:
    """A noun has verbs, even if it has one."""


@app.command("orphans")
def orphans_(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; without this they are only shown.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where they are more than PUSHOPS_SWEEP_MAX_SHARE of what lies there.")
    ] = False,
    json_: Json = False,
) -> None:
    """Objects older than a day that no message of this database names. Beat deletes them each night."""
    with opened() as rt:
        found = orphans.find(rt, delete=delete, force=force)
    if json_:
        print_json(found)
        return
    print_table(("OBJECT",), [(ref,) for ref in found.sample], empty="no message misses any")
    say(_summary(found, delete=delete))


def _summary(found: Orphans, *, delete: bool) -> str:
    foreign = f", {found.foreign:,} more do not open with our keys and are left alone" if found.foreign else ""
    text = f"{found.orphans:,} of {found.seen:,} objects are orphans{foreign}"
    if not delete:
        return f"{text}; --delete deletes them" if found.orphans else text
    held = f"; {found.held:,} are kept: {found.why} --force deletes them" if found.held else ""
    return f"{text}; {found.deleted:,} deleted{held}"
