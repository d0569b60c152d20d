"""``pushops dlq``: the dead letters: what they are, where they came from, and what to do with them."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from pushops.cli import dlq_replay
from pushops.cli.context import actor, opened
from pushops.cli.dlq_filter import (
    Campaign,
    Class,
    Code,
    Host,
    LetterId,
    Since,
    Until,
    Words,
    a_moment,
    meant,
    named,
)
from pushops.cli.dlq_output import Format, say_story, say_triage, write_letters
from pushops.cli.exits import DOCUMENTED, Exit
from pushops.cli.output import Json, note, print_json, print_table, say
from pushops.cli.progress import meter
from pushops.deadletters import alarms as alarming
from pushops.deadletters import discarding, looking, triage
from pushops.deadletters.discarding import Discarded
from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import ReplayState
from pushops.deadletters.looking import ALL, DeadLetter
from pushops.events import Level
from pushops.runtime import Runtime

app = typer.Typer(no_args_is_help=True)

State = Annotated[
    str, typer.Option("--state", help=f"In this state: {', '.join(ReplayState)} or {ALL}.", metavar="STATE")
]

app.command(epilog=DOCUMENTED)(dlq_replay.replay)
app.command(epilog=DOCUMENTED)(dlq_replay.resend)


@app.callback()
def dlq() -> None:
    """Dead letters: triage, look, replay, discard. Endpoints, keys and payloads are never printed."""


@app.command("triage")
def triage_(
    class_: Class = None,
    code: Code = None,
    host: Host = None,
    campaign: Campaign = None,
    since: Since = None,
    until: Until = None,
    text: Words = None,
    new_since: Annotated[
        datetime | None,
        typer.Option("--new-since", parser=a_moment, metavar="TIME", help="Mark what came since; by default a day."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many groups.")] = 50,
    json_: Json = False,
) -> None:
    """What waits for you: letters by class, code, host and campaign, and beneath them what everybody has."""
    which = meant(class_, code, host, campaign, since, until, text)
    with opened() as rt:
        found = triage.triage(rt, which, new_since=new_since, limit=limit)
    if json_:
        print_json(found)
    else:
        say_triage(found)


@app.command("list")
def list_(
    class_: Class = None,
    code: Code = None,
    host: Host = None,
    campaign: Campaign = None,
    since: Since = None,
    until: Until = None,
    text: Words = None,
    state: State = ReplayState.PARKED,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this letter.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 50,
    json_: Json = False,
) -> None:
    """A page of letters in the order of their parking."""
    which = meant(class_, code, host, campaign, since, until, text)
    with opened() as rt:
        last = named(rt, after) if after else None
        page = looking.list_letters(rt, which, state=state, after=last, limit=limit)
    if json_:
        print_json(page)
        return
    print_table(("ID", "PARKED", "WHAT"), [_line(row) for row in page.rows], empty="no such letter")
    if page.next is not None:
        note(f"more: --after {page.next}")


@app.command()
def show(letter: LetterId, json_: Json = False) -> None:
    """One letter: why it is here, until when it makes sense, and every attempt at it."""
    with opened() as rt:
        found = looking.show_letter(rt, named(rt, letter))
    if json_:
        print_json(found)
    else:
        say_story(found)


@app.command(epilog=DOCUMENTED)
def export(
    class_: Class = None,
    code: Code = None,
    host: Host = None,
    campaign: Campaign = None,
    since: Since = None,
    until: Until = None,
    text: Words = None,
    state: State = ReplayState.PARKED,
    format_: Annotated[Format, typer.Option("--format", help="A JSON object a line, or CSV.")] = Format.JSONL,
) -> None:
    """Every letter that is meant, on standard output; any number of them in little memory."""
    which = meant(class_, code, host, campaign, since, until, text)
    with opened() as rt, meter("letters") as show_progress:
        total = looking.count_in_state(rt, which, state)
        found = looking.all_letters(rt, which, state=state)
        write_letters(sys.stdout, found, format_, lambda done: show_progress(done, max(total, done), "export"))


@app.command(epilog=DOCUMENTED)
def discard(
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with each letter and in the audit.")],
    class_: Class = None,
    code: Code = None,
    host: Host = None,
    campaign: Campaign = None,
    since: Since = None,
    until: Until = None,
    text: Words = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this they are only counted.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", min=0, help="Do it if exactly so many are meant; else only count them.")
    ] = None,
    json_: Json = False,
) -> None:
    """Close the parked letters that are meant, for good. What a replay has in hand is left alone."""
    which = meant(class_, code, host, campaign, since, until, text)
    with opened() as rt:
        found = discarding.discard(rt, which, reason=reason, actor=actor())
        if not json_:
            say(f"{found.matched:,} parked letters are meant{_held(found)}")
        if found.matched and (yes or _typed(found.matched, count, json_=json_)):
            found = _discard(rt, which, reason)
    if json_:
        print_json(found)
    elif not found.dry_run:
        say(f"{found.discarded:,} discarded{_held(found)}")
    elif found.matched:
        say("nothing was changed; --yes, or --count with their number, does it")


@app.command(epilog=DOCUMENTED)
def alarms(json_: Json = False) -> None:
    """Whether letters come or lie as they should not; exit code 1 where somebody should be woken. Tells nobody."""
    with opened() as rt:
        found = alarming.current(rt)
    grave = any(alarm.level is Level.PAGE for alarm in found)
    if json_:
        print_json({"ok": not grave, "alarms": found})
    else:
        rows = [(one.level, one.signal, one.subject or "-", one.reading) for one in found]
        print_table(("LEVEL", "SIGNAL", "ABOUT", "BECAUSE"), rows, empty="nothing is as it should not be")
    if grave:
        raise typer.Exit(Exit.FAILED)


def _discard(rt: Runtime, which: Filter, reason: str) -> Discarded:
    with meter("letters") as show_progress:
        return discarding.discard(
            rt,
            which,
            reason=reason,
            actor=actor(),
            dry_run=False,
            told=lambda done, of: show_progress(done, of, "discard"),
        )


def _typed(matched: int, count: int | None, *, json_: bool) -> bool:
    """Whether somebody said how many there are: as an option, or at a terminal when asked."""
    if count is None and not json_ and sys.stdin.isatty():
        count = typer.prompt("type their number to discard them", type=int, default=0, show_default=False, err=True)
    return count == matched


def _held(found: Discarded) -> str:
    claimed = f"; {found.claimed:,} more are in a replay's hands and left alone" if found.claimed else ""
    return claimed + (f"; {found.locked:,} were locked by somebody and are left" if found.locked else "")


def _line(row: DeadLetter) -> tuple[object, ...]:
    what = f"{row.error_class} {row.error_code} at {row.endpoint_host}, campaign {row.campaign_id or '-'}"
    state = "" if row.replay_state == ReplayState.PARKED else f", {row.replay_state} {row.close_reason or ''}"
    return row.dlq_id, f"{row.parked_at.astimezone(UTC):%m-%d %H:%M}", f"{what}{state.rstrip()}"
