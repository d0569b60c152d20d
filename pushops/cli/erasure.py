"""``pushops erasure``: who asked to be forgotten, where that stands, and the receipts of what is done."""

from typing import Annotated

import typer

from pushops.cli.context import opened, unique
from pushops.cli.output import Json, note, print_fields, print_json, print_table, short
from pushops.erasure import service as erasures

app = typer.Typer(no_args_is_help=True)


@app.callback()
def erasure() -> None:
    """Requests to be forgotten and their receipts. Who it was is never printed: nobody knows once it is done."""


@app.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Those that are done as well.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 50,
    json_: Json = False,
) -> None:
    """Open requests, the latest first: a ticket is due after a day, somebody is woken after three."""
    with opened() as rt:
        found, stand = erasures.list_requests(rt, done=all_, limit=limit), erasures.standing(rt)
    if json_:
        print_json({"standing": stand, "requests": [_fields(each) for each in found]})
        return
    rows = [(short(each.request_id), each.of, each.state, each.asked_at, each.done_at, _waits(each)) for each in found]
    print_table(("REQUEST", "OF A", "STATE", "ASKED", "DONE", "WAITS FOR"), rows, empty="nobody waits to be forgotten")
    if stand.late:
        note(f"{stand.late:,} open for more than a day, {stand.very_late:,} for more than three")


@app.command()
def show(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="An id, or its beginning.")],
    json_: Json = False,
) -> None:
    """One request: where it stands, and the receipt, which is rows by store."""
    with opened() as rt:
        found = erasures.show_request(rt, unique(request, "request", lambda text: erasures.requests_like(rt, text)))
    if json_:
        print_json(_fields(found))
        return
    print_fields(
        {
            "request": found.request_id,
            "of": found.of,
            "state": found.state,
            "user HMAC": _hmac(found),
            "asked": found.asked_at,
            "asked by": found.asked_by,
            "held since": found.held_at,
            "waits for": _waits(found),
            "done": found.done_at,
            "suppressed endpoints": found.endpoints,
            **{f"receipt: {store}": rows for store, rows in found.receipt.items()},
        }
    )
    note(erasures.OTHER_SPOOLS)


def _fields(found: erasures.Request) -> dict[str, object]:
    return {**vars(found), "user_hmac": _hmac(found), "state": found.state}


def _waits(found: erasures.Request) -> str | None:
    return "the legal hold's release" if found.state == "held" else found.waits


def _hmac(found: erasures.Request) -> str | None:
    return None if found.user_hmac is None else found.user_hmac.hex()
