"""``pushops provider``: how push services do, why not all goes out, and stopping and starting to send."""

from typing import Annotated

import typer

from pushops.cli.context import actor, opened
from pushops.cli.output import Json, print_json, print_table, say, tell
from pushops.delivery import providers
from pushops.delivery.providers import Pausable, Provider

app = typer.Typer(no_args_is_help=True, help="Push services: list, pause, resume; keys and campaigns too.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A push service; with --key a key id, a campaign likewise.")]
Key = Annotated[bool, typer.Option("--key", help="NAME is the id of a VAPID key.")]
Campaign = Annotated[bool, typer.Option("--campaign", help="NAME is a campaign.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """Each push service: what is due, the answers of the last five minutes, and every reason why it waits."""
    with opened() as rt:
        found = providers.list_providers(rt)
        pauses = [pause for pause in providers.list_pauses(rt) if pause.kind != Pausable.PROVIDER]
    if json_:
        print_json({"providers": found, "pauses": pauses})
        return
    rows = [
        (
            one.now.push_service,
            one.now.due,
            one.now.attempts,
            one.now.accepted,
            one.now.terminal,
            one.now.throttled,
            one.now.faults,
            _why(one),
        )
        for one in found
    ]
    columns = ("SERVICE", "DUE>", "TRIED>", "TAKEN>", "DEAD>", "429>", "FAULTS>", "NOW")
    print_table(columns, rows, empty="nothing was sent yet")
    for pause in pauses:
        say(f"{pause.kind} {pause.name} is paused by {pause.paused_by}" + (f": {pause.why}" if pause.why else ""))


@app.command()
def pause(
    name: Name,
    key: Key = False,
    campaign: Campaign = False,
    why: Annotated[str | None, typer.Option("--reason", help="Why; shown while it lasts.")] = None,
    json_: Json = False,
) -> None:
    """Send nothing more there. What waits keeps its time to live."""
    kind = _kind(key=key, campaign=campaign)
    with opened() as rt:
        done = providers.pause(rt, kind, name, actor=actor(), why=why)
    text = f"{kind} {name} is paused" if done else f"{kind} {name} was paused already"
    tell({"kind": kind, "name": name, "paused": True, "changed": done}, text, json_=json_)


@app.command()
def resume(name: Name, key: Key = False, campaign: Campaign = False, json_: Json = False) -> None:
    """Go on sending there."""
    kind = _kind(key=key, campaign=campaign)
    with opened() as rt:
        done = providers.resume(rt, kind, name, actor=actor())
    text = f"{kind} {name} goes on" if done else f"{kind} {name} was not paused"
    tell({"kind": kind, "name": name, "paused": False, "changed": done}, text, json_=json_)


def _why(one: Provider) -> str:
    probe = [f"next probe {one.now.probe_at:%H:%M:%S}Z"] if one.now.unhealthy_at and one.now.probe_at else []
    return "\n".join([*one.waits, *probe]) or "goes out"


def _kind(*, key: bool, campaign: bool) -> Pausable:
    if key and campaign:
        raise typer.BadParameter("expected --key or --campaign, got both")
    if key:
        return Pausable.KEY
    return Pausable.CAMPAIGN if campaign else Pausable.PROVIDER
