"""``pushops dlq replay`` and ``resend``: sending letters again, with what it would do shown first."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import typer

from pushops.cli.context import actor, opened
from pushops.cli.dlq_filter import Campaign, Class, Code, Host, LetterId, Since, Until, Words, meant, named
from pushops.cli.exits import Exit
from pushops.cli.output import Json, duration, note, print_json, print_table, say
from pushops.cli.run import Timeout, a_duration
from pushops.cli.sweep import tell_workers, work_here
from pushops.deadletters import service as replays
from pushops.deadletters.letter import ReplayOutcome
from pushops.deadletters.service import DRAIN, Options, Preview
from pushops.sweeps.order import Order

Ramp = Annotated[
    timedelta | None,
    typer.Option("--ramp", parser=a_duration, metavar="DURATION", help="Take so long to get to the full pace."),
]


def replay(
    class_: Class = None,
    code: Code = None,
    host: Host = None,
    campaign: Campaign = None,
    since: Since = None,
    until: Until = None,
    text: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do, gate by gate.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="End after so many letters.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Messages a second to each push service, instead of its share.")
    ] = None,
    ramp: Ramp = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the workers until the run is closed.")] = False,
    inline: Annotated[bool, typer.Option("--inline", help="Run in this process, without a broker.")] = False,
    timeout: Timeout = None,
    json_: Json = False,
) -> None:
    """Send the parked letters that are meant again, as far as they still make sense; poison only with --class poison.

    A run of the sweep engine: pushops run show, watch, pause, resume and cancel know it.
    """
    if inline and (wait or timeout):
        raise typer.BadParameter("--inline waits by itself, for as long as PUSHOPS_SWEEP_BUDGET_MS says")
    wanted, options = meant(class_, code, host, campaign, since, until, text), Options(limit, rate, ramp)
    order = Order(started_by=actor(), filter=wanted.key(), options=options.of_run(), row_limit=limit)
    with opened() as rt:
        if dry_run:
            _say_preview(replays.preview(rt, wanted, rate=rate, ramp=ramp), limit, json_=json_)
            return
        if inline:
            work_here(rt, DRAIN, order, json_=json_)
        else:
            tell_workers(rt, DRAIN, order, wait=wait, timeout=timeout, json_=json_)


def resend(
    letter: LetterId,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the attempt and in the audit.")],
    json_: Json = False,
) -> None:
    """Send one letter once more, even if it was sent or may have been: only what else keeps it still counts.

    Exit code 0 where it was taken, 3 where it was held and waits, 1 otherwise.
    """
    with opened() as rt:
        done = replays.resend(rt, named(rt, letter), reason=reason, actor=actor())
    if json_:
        print_json(done)
    else:
        say(f"letter {done.dlq_id}: {done.outcome.replace('_', ' ')}")
    if done.outcome is not ReplayOutcome.REPLAYED:
        waits = done.outcome in (ReplayOutcome.HELD, ReplayOutcome.THROTTLED)
        raise typer.Exit(Exit.HELD if waits else Exit.FAILED)


def _say_preview(found: Preview, limit: int | None, *, json_: bool) -> None:
    if json_:
        print_json(found)
        return
    rows = [
        ("would be sent", found.would_send, _parts(found.services)),
        ("stale", found.stale, _reasons(found, "ttl_expired", "not_replayable", "message_cancelled")),
        ("gone", found.gone, _reasons(found, "subscription_gone", "payload_missing")),
        ("duplicate", found.duplicate, _reasons(found, "already_replayed")),
        ("in doubt", found.in_doubt, _reasons(found, "in_doubt")),
        ("held", found.held, "push service or key in trouble, or paused: stay parked" if found.held else ""),
        ("waiting", found.waiting, "back off after a replay that failed" if found.waiting else ""),
        ("poison", found.poison_left_out, "left out: --class poison" if found.poison_left_out else ""),
    ]
    print_table(("LETTERS ARE", "ROWS>", "OF WHICH"), rows)
    say(f"{found.total:,} parked; about {duration(found.eta)} at this pace; nothing was changed")
    if limit is not None and limit < found.would_send:
        note(f"--limit ends the run after {limit:,} letters")


def _reasons(found: Preview, *names: str) -> str:
    return _parts({name: found.reasons[name] for name in names if name in found.reasons})


def _parts(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in most)
