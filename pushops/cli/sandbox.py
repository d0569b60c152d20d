"""``pushops sandbox``: real servers for trying things out, reached by every command that has no URL of its own."""

import json
import shlex
from typing import Annotated

import typer

from pushops.cli.exits import Exit
from pushops.cli.output import Json, note, print_fields, print_json, print_table, say, tell
from pushops.db.migrate import migrate
from pushops.errors import PushopsError
from pushops.sandbox import PushService, Sandbox
from pushops.sandbox.push.outages import DNS, DNS_MEANING, OUTAGES, meaning_of
from pushops.sandbox.push.vendors import HOST_PATTERNS, Vendor
from pushops.settings import load_settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sandbox() -> None:
    """A PostgreSQL, a Valkey and a push service of one's own, without root, containers or system packages."""


@app.command()
def up(json_: Json = False) -> None:
    """Start all servers, unless they run, and migrate the database."""
    box = Sandbox()
    info = box.up()
    box.keys()
    applied = migrate(load_settings(database_url=info.database_url, broker_url=info.broker_url), note)
    if json_:
        print_json({"folder": info.folder, "applied": applied, "environment": box.environment()})
        return
    say(f"up in {info.folder}, database {'migrated' if applied else 'up to date'}")
    say("commands use it while no PUSHOPS_DATABASE_URL and no PUSHOPS_BROKER_URL are set;")
    say('for other programs: eval "$(pushops sandbox env)"')


@app.command()
def down(json_: Json = False) -> None:
    """Stop all servers and remove everything in their folder."""
    removed = Sandbox().down()
    if json_:
        print_json({"removed": removed})
    else:
        say("stopped and removed" if removed else "nothing to stop")


@app.command()
def status(json_: Json = False) -> None:
    """What runs, by process id; exit code 1 unless all do."""
    found = Sandbox().status()
    shown = {"folder": found.folder, "postgresql": found.postgres_pid, "valkey": found.valkey_pid}
    shown["push"] = found.push_pid
    if json_:
        print_json({**shown, "up": found.info is not None})
    else:
        print_fields({name: None if value is None else str(value) for name, value in shown.items()})
    if found.info is None:
        raise typer.Exit(Exit.FAILED)


@app.command()
def env(json_: Json = False) -> None:
    """Print export lines for a shell, the sandbox's own keys included."""
    found = Sandbox().environment()
    if found is None:
        note("pushops: expected the sandbox to be up, got none: pushops sandbox up")
        raise typer.Exit(Exit.FAILED)
    if json_:
        print_json(found)
        return
    for name, value in found.items():
        say(f"export {name}={shlex.quote(value)}")


@app.command()
def outage(
    name: Annotated[str, typer.Argument(help="An outage by name, or `list`.")] = "list",
    clear: Annotated[bool, typer.Option("--clear", help="End the outage that is staged.")] = False,
    json_: Json = False,
) -> None:
    """Stage an incident of the push services' past at the sandbox's own, in place of the one there is."""
    if clear:
        _push_service().outage(None)
        tell({"outage": None}, "no outage", json_=json_)
    elif name == "list":
        _list_outages(json_=json_)
    elif name == DNS:
        _say_dns(json_=json_)
    else:
        _push_service().outage(name)
        tell({"outage": name}, f"{name}: {meaning_of(name)}", json_=json_)


@app.command()
def issue(
    service: Annotated[Vendor, typer.Argument(help="Whose endpoints.")],
    count: Annotated[int, typer.Option(min=1, max=1_000_000)] = 1,
    key: Annotated[str | None, typer.Option(help="The VAPID public key they are made with.")] = None,
) -> None:
    """Subscriptions as browsers give them, one JSON object a line: for `pushops subscription import -`."""
    for subscription in _push_service().issue(service, count, key):
        say(json.dumps(subscription))


@app.command()
def counts(json_: Json = False) -> None:
    """What the push service has seen: requests, acceptances, answers by host, messages accepted more than once."""
    found = _push_service().counts()
    if json_:
        print_json(found)
        return
    print_fields({name: str(value) for name, value in found.items() if isinstance(value, int)})
    rows = [(host, status, number) for host, some in found["by_host"].items() for status, number in some.items()]
    print_table(("host", "answer", "requests>"), rows, empty="nothing was sent")


def _push_service() -> PushService:
    found = Sandbox().push
    if not found.running():
        raise PushopsError("expected the sandbox to be up, got none: pushops sandbox up")
    return found


def _list_outages(*, json_: bool) -> None:
    meanings = {**{name: one.meaning for name, one in OUTAGES.items()}, DNS: DNS_MEANING}
    if json_:
        print_json(meanings)
    else:
        print_table(("name", "what happens"), sorted(meanings.items()))


def _say_dns(*, json_: bool) -> None:
    """Names are resolved by the sender: it is told to look for one that cannot exist (RFC 6761)."""
    value = json.dumps(dict.fromkeys(HOST_PATTERNS, "nowhere.invalid:443"))
    tell({"PUSHOPS_CONNECT_TO": value}, f"export PUSHOPS_CONNECT_TO={shlex.quote(value)}", json_=json_)
