"""``pushops subscription``: rows without their endpoints and keys, imports, and taking back what was ended wrongly."""

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from pushops.cli.context import actor, given, opened, run_named
from pushops.cli.dumping import dump_
from pushops.cli.erasing import erase, export, hold, release
from pushops.cli.exits import DOCUMENTED
from pushops.cli.importing import import_
from pushops.cli.output import Json, note, print_fields, print_json, print_table, say
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.lifecycle import State
from pushops.subscriptions.store.reading import Subscription
from pushops.subscriptions.undoing import Undone

app = typer.Typer(no_args_is_help=True)


def a_time(text: str) -> datetime:
    """ISO 8601; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("expected a time such as 2026-03-01T02:00 (UTC) or with a zone") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def an_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter("expected the id of a subscription, see pushops subscription list") from None


@app.callback()
def subscription() -> None:
    """Show, list, import and bring back subscriptions. Endpoints and keys are never printed."""


@app.command()
def show(
    which: Annotated[
        str, typer.Argument(metavar="ID|ENDPOINT|-", help="An id, an endpoint, or - to read an endpoint from stdin.")
    ],
    json_: Json = False,
) -> None:
    """One subscription: state, owner, times, evidence, and why it ended."""
    text = given(which)
    with opened() as rt:
        found = _find(rt, text)
    if json_:
        print_json(found)
    else:
        print_fields({name.replace("_", " "): _plain(value) for name, value in vars(found).items()})


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option("--user", help="Only of this user.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    push_service: Annotated[str | None, typer.Option("--service", help="Only of this push service.")] = None,
    origin: Annotated[str | None, typer.Option("--origin", help="Only of this site.")] = None,
    after: Annotated[
        UUID | None, typer.Option("--after", parser=an_id, metavar="ID", help="Go on after this id.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 50,
    json_: Json = False,
) -> None:
    """A page of subscriptions, in the order of their making."""
    with opened() as rt:
        page = service.list_subscriptions(
            rt, user=user, state=state, service=push_service, origin=origin, after=after, limit=limit
        )
    if json_:
        print_json(page)
        return
    rows = [(row.id, _state(row), row.push_service, row.user_id) for row in page.rows]
    print_table(("ID", "STATE", "SERVICE", "USER"), rows, empty="no such subscription")
    if page.next is not None:
        note(f"more: --after {page.next}")


@app.command(epilog=DOCUMENTED)
def undo(
    run: Annotated[str | None, typer.Option("--run", help="What this run of a sweep ended.")] = None,
    push_service: Annotated[str | None, typer.Option("--service", help="Only of this push service.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only with this end reason.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", parser=a_time, metavar="TIME", help="Ended at this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", parser=a_time, metavar="TIME", help="Ended before this time.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    json_: Json = False,
) -> None:
    """Bring back what push-service evidence or ageing ended, inside the undo window; never what a person ended."""
    with opened() as rt:
        found = service.undo(
            rt,
            run=run_named(rt, run) if run else None,
            service=push_service,
            reason=reason,
            since=since,
            until=until,
            dry_run=not yes,
            actor=actor(),
        )
    if json_:
        print_json(found)
    else:
        _say_undone(found)


app.command("import", epilog=DOCUMENTED)(import_)
for _verb in (erase, hold, release, export):
    app.command()(_verb)
app.command("dump", epilog=DOCUMENTED)(dump_)


def _find(rt: Runtime, text: str) -> Subscription:
    try:
        known = UUID(text)
    except ValueError:
        return service.show(rt, endpoint=text)
    return service.show(rt, subscription_id=known)


def _plain(value: object) -> object:
    return tuple(value) or None if isinstance(value, list) else value


def _state(row: Subscription) -> str:
    return f"{row.state}, blocked" if row.send_block else str(row.state)


def _say_undone(found: Undone) -> None:
    rows = [(group.push_service, group.end_reason, group.rows, group.oldest) for group in found.groups]
    print_table(("SERVICE", "REASON", "ROWS>", "OLDEST END"), rows, empty="nothing to bring back")
    if found.dry_run and rows:
        say(f"{found.eligible:,} would come back; --yes does it")
    elif not found.dry_run:
        say(f"{found.rows:,} came back")
