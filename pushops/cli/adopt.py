"""``pushops adopt``: a subscriber table of yours gets a unique endpoint hash while it is written to."""

from typing import Annotated

import typer

from pushops.adopting import service
from pushops.adopting.service import Plan
from pushops.adopting.words import Adoption, Hash, Losers
from pushops.cli.context import actor, opened
from pushops.cli.output import Json, note, print_json, print_table, say, tell
from pushops.cli.progress import follow_run
from pushops.runtime import Runtime

app = typer.Typer(no_args_is_help=True)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="With its schema, as public.subscribers.")]
Endpoint = Annotated[str, typer.Option("--endpoint", metavar="COLUMN", help="Where the endpoint stands.")]
ColumnName = Annotated[str, typer.Option("--column", metavar="COLUMN", help="What the new column is called.")]
HashName = Annotated[Hash, typer.Option("--hash", help="How the hash is made.")]
Latest = Annotated[
    str | None,
    typer.Option("--latest", metavar="COLUMN", help="The latest row of an endpoint stays; then the highest key."),
]
LoserName = Annotated[
    Losers, typer.Option("--losers", help="Rows that are too many stay, marked and without a hash, or are removed.")
]


@app.callback()
def adopt() -> None:
    """Give a table of yours a unique endpoint hash, online: plan, run, finish."""


@app.command()
def plan(
    table: Table,
    endpoint: Endpoint = "endpoint",
    column: ColumnName = "endpoint_hash",
    hash_: HashName = Hash.SHA256,
    latest: Latest = None,
    losers: LoserName = Losers.MARK,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements, for psql.")] = False,
    json_: Json = False,
) -> None:
    """What is done and what is left, and how many endpoints have several rows; nothing changes."""
    with opened() as rt:
        one = _look(rt, table, endpoint, column, hash_, latest, losers)
        if sql:
            say(service.script(one, rt.settings.db_schema))
            return
        found = service.plan(rt, one)
    _show(found, json_=json_)


@app.command()
def run(
    table: Table,
    endpoint: Endpoint = "endpoint",
    column: ColumnName = "endpoint_hash",
    hash_: HashName = Hash.SHA256,
    latest: Latest = None,
    losers: LoserName = Losers.MARK,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")] = False,
    json_: Json = False,
) -> None:
    """Do what is left; interrupted or refused, it goes on from there the next time."""
    with opened() as rt:
        one = _look(rt, table, endpoint, column, hash_, latest, losers)
        if yes:
            with follow_run() as told:
                found = service.run(rt, one, told, note, actor=actor())
        else:
            found = service.plan(rt, one)
    _show(found, json_=json_)
    if not yes and not json_ and not found.done:
        say("nothing is changed yet; --yes does it")


@app.command()
def finish(
    table: Table,
    endpoint: Endpoint = "endpoint",
    column: ColumnName = "endpoint_hash",
    hash_: HashName = Hash.SHA256,
    losers: LoserName = Losers.MARK,
    json_: Json = False,
) -> None:
    """Take the bridge away, once everything that writes the table goes by the unique index (ON CONFLICT)."""
    with opened() as rt:
        service.finish(rt, _look(rt, table, endpoint, column, hash_, None, losers))
    tell({"table": table, "bridged": False}, f"a second row of an endpoint of {table} is refused now", json_=json_)


def _look(
    rt: Runtime, table: str, endpoint: str, column: str, hash_: Hash, latest: str | None, losers: Losers
) -> Adoption:
    return service.look(rt, table, endpoint=endpoint, column=column, hash_=hash_, latest=latest, losers=losers)


def _show(found: Plan, *, json_: bool) -> None:
    if json_:
        print_json(found)
        return
    print_table(("STEP", "DONE", "WHAT"), [(step.name, step.done, step.meaning) for step in found.steps])
    if found.endpoints:
        say(f"{found.endpoints:,} endpoints have {found.too_many:,} rows too many")
    if found.lost:
        say(f"{found.lost:,} rows lost their endpoint to a later one")
    if found.bridged:
        say("the bridge is up: a write takes the place of older rows of its endpoint")
