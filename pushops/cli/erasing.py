"""``pushops subscription erase``, ``hold``, ``release`` and ``export``: what a person, or a court, may ask for."""

import json
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from pushops.cli.context import actor, given, opened
from pushops.cli.output import Json, as_plain, note, print_json, say, short
from pushops.doorbell import Doorbell
from pushops.erasure import exporting
from pushops.erasure import service as erasures
from pushops.erasure.holding import Held
from pushops.runtime import Runtime

User = Annotated[str | None, typer.Option("--user", help="All that bears this user's id.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="ENDPOINT|-", help="This endpoint, or - to read it from stdin.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")]


def erase(
    user: User = None,
    endpoint: Endpoint = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only counted.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count, whatever else is said.")] = False,
    json_: Json = False,
) -> None:
    """Forget a user or an endpoint: nothing is sent from now on, and workers delete what is stored within minutes.

    It cannot be taken back. pushops erasure show says where it stands; a legal hold makes it wait.
    """
    one = endpoint and given(endpoint)
    with opened() as rt:
        if dry_run or not yes:
            _say_count(*erasures.count(rt, user=user, endpoint=one), json_=json_)
            return
        done = erasures.erase(rt, user=user, endpoint=one, actor=actor())
        if not done.held:
            _ring(rt)
    if json_:
        print_json(done)
        return
    rest = "it is under legal hold and waits" if done.held else "workers delete the rest"
    say(f"{done.rows:,} subscription(s) are sent to no more; {rest}: pushops erasure show {short(done.request_id)}")


def hold(reason: Reason, user: User = None, endpoint: Endpoint = None, json_: Json = False) -> None:
    """Legal hold: keep subscriptions from retention and erasure. They are sent to as before."""
    _say_held(
        lambda rt, one: erasures.hold(rt, user=user, endpoint=one, reason=reason, actor=actor()),
        endpoint,
        "held",
        "wait for it",
        json_=json_,
    )


def release(reason: Reason, user: User = None, endpoint: Endpoint = None, json_: Json = False) -> None:
    """End a legal hold; an erasure that waited for it goes on."""
    _say_held(
        lambda rt, one: erasures.release(rt, user=user, endpoint=one, reason=reason, actor=actor()),
        endpoint,
        "released",
        "go on",
        json_=json_,
    )


def export(
    user: Annotated[str, typer.Option("--user", help="Whose copy it is.")],
) -> None:
    """All that is stored about a user, as JSON lines, for that user. Keys, secrets and payloads are left out."""
    with opened() as rt:
        for row in exporting.export(rt, user, actor=actor()):
            sys.stdout.write(json.dumps(row, default=as_plain) + "\n")
    note(exporting.LEFT_OUT)


def _ring(rt: Runtime) -> None:
    bell = Doorbell(rt)
    bell.ring_erasures()
    bell.close()


def _say_count(rows: int, held: int, *, json_: bool) -> None:
    if json_:
        print_json({"rows": rows, "held": held, "dry_run": True})
        return
    waits = f", of which {held:,} are under legal hold, for which it would wait" if held else ""
    say(f"{rows:,} subscription(s) and all that is stored of them would be erased{waits}; --yes does it")


def _say_held(
    change: Callable[[Runtime, str | None], Held], endpoint: str | None, verb: str, then: str, *, json_: bool
) -> None:
    with opened() as rt:
        done = change(rt, endpoint and given(endpoint))
        if verb == "released" and done.requests:
            _ring(rt)
    if json_:
        print_json(done)
        return
    requests = f"; {done.requests:,} erasure(s) {then}" if done.requests else ""
    say(f"{done.rows:,} subscription(s) {verb}{requests}")
