"""``pushops hold``: hosts that refuse one of our keys, or whose key is missing, and what waits behind each."""

from typing import Annotated
from uuid import UUID

import typer

from pushops.cli.context import actor, opened, unique
from pushops.cli.output import Json, print_json, print_table, say, short
from pushops.delivery import holds
from pushops.delivery.store.holds import Hold
from pushops.runtime import Runtime

app = typer.Typer(no_args_is_help=True, help="Holds on a host under one of our keys: list, release.")


@app.command("list")
def list_(
    released: Annotated[bool, typer.Option("--released", help="Also those that were released.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    json_: Json = False,
) -> None:
    """Holds, newest first, and how many messages wait behind each. A probe every now and then finds that it is over."""
    with opened() as rt:
        found = holds.list_holds(rt, released=released, limit=limit)
    if json_:
        print_json(found)
        return
    rows = [(short(one.hold_id), one.push_service, one.members, one.opened_at, _why(one)) for one in found]
    print_table(("HOLD", "SERVICE", "WAITING>", "SINCE", "BECAUSE"), rows, empty="nothing is held")


@app.command()
def release(
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="Its id, or the beginning of it.")],
    why: Annotated[str, typer.Option("--reason", help="Why; kept with the hold and in the audit.")],
    json_: Json = False,
) -> None:
    """Send again at once. If our key is still refused, the lane is held again after a few answers."""
    with opened() as rt:
        done = holds.release(rt, _named(rt, hold), actor=actor(), why=why)
    if json_:
        print_json(done)
    else:
        say(f"{done.host} under key {done.vapid_key_id or '-'} is sent to again; {done.members:,} messages waited")


def _why(one: Hold) -> str:
    freed = f", released by {one.released_by}" if one.released_at else ""
    return f"{one.code}: {one.host}, key {one.vapid_key_id or '-'}{freed}"


def _named(rt: Runtime, prefix: str) -> UUID:
    return unique(prefix, "hold", lambda text: holds.holds_like(rt, text))
