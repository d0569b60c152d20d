"""``pushops guard``: what push services said dead beyond belief, and an operator's word on it."""

from typing import Annotated

import typer

from pushops.cli.context import actor, opened
from pushops.cli.output import Json, print_json, print_table, say, short
from pushops.delivery import guard
from pushops.delivery.guard import Judged
from pushops.delivery.store.guard import Listed

app = typer.Typer(no_args_is_help=True, help="The guard against mass death: list, accept, reject.")

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="A push service, see pushops guard list.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the guard and in the audit.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]


@app.command("list")
def list_(
    closed: Annotated[bool, typer.Option("--all", help="Also those that are closed and settled.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    json_: Json = False,
) -> None:
    """Guards that are open or not settled, newest first, and how many answers wait for your word."""
    with opened() as rt:
        found = guard.list_guards(rt, closed=closed, limit=limit)
    if json_:
        print_json(found)
        return
    rows = [
        (short(one.guard_id), one.push_service, _state(one), one.opened_at, one.pending, _why(one.why, one.detail))
        for one in found
    ]
    print_table(("GUARD", "SERVICE", "STATE", "OPENED", "WAITING>", "BECAUSE"), rows, empty="no guard is open")


@app.command()
def accept(service: Service, reason: Reason, yes: Yes = False, json_: Json = False) -> None:
    """Believe what the guard of SERVICE kept: its answers are applied as of when they came."""
    with opened() as rt:
        found = guard.accept(rt, service, reason=reason, actor=actor(), dry_run=not yes)
    _tell(found, "would be believed", json_=json_)


@app.command()
def reject(service: Service, reason: Reason, yes: Yes = False, json_: Json = False) -> None:
    """Discard what the guard of SERVICE kept: nothing of it ends a subscription."""
    with opened() as rt:
        found = guard.reject(rt, service, reason=reason, actor=actor(), dry_run=not yes)
    _tell(found, "would be discarded", json_=json_)


def _tell(found: Judged, would: str, *, json_: bool) -> None:
    if json_:
        print_json(found)
        return
    rows = [(group.finding, group.answers, group.subscriptions) for group in found.pending]
    print_table(("FINDING", "ANSWERS>", "SUBSCRIPTIONS>"), rows, empty="nothing waits")
    if found.dry_run:
        say(f"{found.answers:,} answers {would}, and the guard of {found.push_service} closed; --yes does it")
        return
    did = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in found.outcomes.items())
    say(f"the guard of {found.push_service} is closed, {found.verdict}" + (f": {did}" if did else ""))
    if not found.done:
        say("what is left is applied by beat")


def _state(one: Listed) -> str:
    if one.closed_at is None:
        return "open"
    return f"{one.verdict}, settled" if one.settled_at else f"{one.verdict}, being settled"


def _why(why: str, detail: dict[str, object]) -> str:
    """What it opened on, in words."""
    if why == "streak":
        return f"{detail.get('streak')} answers in a row said dead"
    return f"{detail.get('terminal')} of {detail.get('answers')} answers said dead"
