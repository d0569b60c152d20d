"""``pushops stats``: how many left, and what told us so."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from pushops.cli.context import opened
from pushops.cli.output import Json, print_json, print_table
from pushops.cli.subscription import a_time
from pushops.delivery import churn
from pushops.delivery.churn import By, Churn

app = typer.Typer(no_args_is_help=True)

WEEK: Final = timedelta(days=7)


@app.callback()
def stats() -> None:
    """Numbers about the subscriber table."""


@app.command("churn")
def churn_(
    by: Annotated[By, typer.Option("--by", help="What to count by.")] = By.SERVICE,
    since: Annotated[
        datetime | None, typer.Option("--since", parser=a_time, metavar="TIME", help="A week ago by default.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", parser=a_time, metavar="TIME", help="Now by default.")
    ] = None,
    json_: Json = False,
) -> None:
    """Who left and why; by campaign, what its answers told us. What the guard took back does not count."""
    end = until or datetime.now(UTC)
    with opened() as rt:
        found = churn.churn(rt, by, since or end - WEEK, end)
    if json_:
        print_json([vars(one) | {"share": one.share} for one in found])
        return
    rows = [(one.name or "-", one.out_of, one.left, _percent(one), _parts(one)) for one in found]
    print_table((by.upper(), "OUT OF>", "LEFT>", "SHARE>", "OF WHICH"), rows, empty="nobody left")


def _percent(one: Churn) -> str:
    return "-" if one.share is None else f"{one.share:.2%}"


def _parts(one: Churn) -> str:
    ordered = sorted(one.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in ordered) or "-"
