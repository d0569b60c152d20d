"""``pushops migrate``."""

import typer

from pushops.cli.context import with_database
from pushops.cli.exits import DOCUMENTED, Exit
from pushops.cli.output import Json, note, print_json, say
from pushops.db import migrate as migrations
from pushops.settings import Settings, load_settings

app = typer.Typer()


@app.command(epilog=DOCUMENTED)
def migrate(
    json_: Json = False,
    sql: bool = typer.Option(False, "--sql", help="Print all migrations as one script; no database is needed."),
    status: bool = typer.Option(False, "--status", help="Say what is to be done; exit code 1 where anything is."),
) -> None:
    """Bring the database up to date, online. Two at once are safe: one works, the other waits."""
    if sql:
        typer.echo(migrations.render_sql(load_settings()), nl=False)
    elif status:
        _status(with_database(), json_=json_)
    else:
        _migrate(with_database(), json_=json_)


def _migrate(settings: Settings, *, json_: bool) -> None:
    applied = migrations.migrate(settings, note)
    if json_:
        print_json({"applied": applied, "current": migrations.current(settings)})
    else:
        say(f"applied {', '.join(applied)}" if applied else "up to date, nothing to do")


def _status(settings: Settings, *, json_: bool) -> None:
    current, pending = migrations.current(settings), migrations.pending(settings)
    if json_:
        print_json({"current": current, "pending": pending})
    else:
        todo = f"to apply: {', '.join(pending)}" if pending else "up to date"
        say(f"at {current or 'no revision'}, {todo}")
    if pending:
        raise typer.Exit(Exit.FAILED)
