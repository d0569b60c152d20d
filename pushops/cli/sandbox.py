"""``pushops sandbox``: real servers for trying things out, reached by every command that has no URL of its own."""

import shlex

import typer

from pushops.cli.exits import Exit
from pushops.cli.output import Json, note, print_fields, print_json, say
from pushops.db.migrate import migrate
from pushops.sandbox import Sandbox
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
