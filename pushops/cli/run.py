"""``pushops run``: runs of sweeps, open and closed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from pushops.cli.context import actor, known_sweep, opened, run_named
from pushops.cli.exits import DOCUMENTED, Exit, exit_of
from pushops.cli.output import Json, note, print_fields, print_json, print_table, say, short, shown
from pushops.cli.progress import follow_run
from pushops.runtime import Runtime
from pushops.settings import format_duration, parse_duration
from pushops.sweeps import service
from pushops.sweeps.inline import watch as follow
from pushops.sweeps.store import Progress, RunRow

app = typer.Typer(no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run or its beginning, see pushops run list.")]
Why = Annotated[str, typer.Option("--reason", "--why", help="Said to whoever asks why it does not run.")]


def a_duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError:
        raise typer.BadParameter("expected a duration such as 90s, 30m or 2h") from None


Timeout = Annotated[
    timedelta | None,
    typer.Option("--timeout", parser=a_duration, metavar="DURATION", help="Stop waiting after, for example, 30m."),
]


@app.callback()
def run() -> None:
    """List, show, watch, pause, resume and cancel runs of sweeps."""


@app.command("list")
def list_(
    sweep: Annotated[str | None, typer.Argument(help="Only runs of this sweep.", callback=known_sweep)] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 20,
    json_: Json = False,
) -> None:
    """The latest runs, newest first."""
    with opened() as rt:
        found = [service.show_run(rt, run.run_id) for run in service.recent_runs(rt, sweep, limit)]
    if json_:
        print_json([as_json(run, done) for run, done in found])
        return
    rows = [
        (short(run.run_id), run.sweep, f"{run.opened_at:%m-%d %H:%M}", done.rows_done, state_of(run))
        for run, done in found
    ]
    print_table(("RUN", "SWEEP", "OPENED", "ROWS>", "STATE"), rows, empty="no runs yet")


@app.command()
def show(run_id: RunId, json_: Json = False) -> None:
    """One run: state, cut-offs, progress, and why it waits or ended."""
    with opened() as rt:
        found, done = service.show_run(rt, run_named(rt, run_id))
    if json_:
        print_json(as_json(found, done))
    else:
        print_fields(described(found, done))


@app.command(epilog=DOCUMENTED)
def watch(run_id: RunId, timeout: Timeout = None, json_: Json = False) -> None:
    """Follow a run until it is closed. Ctrl-C ends the watching, not the run."""
    with opened() as rt:
        named = run_named(rt, run_id)
        with follow_run() as told:
            found = follow(rt, named, told, timeout)
        finish(rt, found, json_=json_)


@app.command()
def pause(run_id: RunId, why: Why = "no reason given", json_: Json = False) -> None:
    """Let the batches in hand end and begin no other, until it is resumed."""
    _ask(run_id, lambda rt, named: service.pause_run(rt, named, actor=actor(), why=why), json_=json_)


@app.command()
def resume(run_id: RunId, json_: Json = False) -> None:
    """Let a paused run go on; beat or the next pushops sweep run rings for its workers."""
    _ask(run_id, lambda rt, named: service.resume_run(rt, named, actor=actor()), json_=json_)


@app.command()
def cancel(run_id: RunId, why: Why = "no reason given", json_: Json = False) -> None:
    """End a run after the batches in hand; what it did not reach stays as it is."""
    _ask(run_id, lambda rt, named: service.cancel_run(rt, named, actor=actor(), why=why), json_=json_)


def _ask(run_id: str, verb: Callable[[Runtime, UUID], RunRow], *, json_: bool) -> None:
    with opened() as rt:
        after = verb(rt, run_named(rt, run_id))
        _, done = service.show_run(rt, after.run_id)
    if json_:
        print_json(as_json(after, done))
    else:
        say(f"run {short(after.run_id)} of {after.sweep}: {state_of(after)}")


def finish(rt: Runtime, found: RunRow, *, json_: bool) -> None:
    """The end of whatever waited for a run: what it did on stdout, and the exit code that it deserves."""
    run, done = service.show_run(rt, found.run_id)
    code = exit_of(run)
    if json_:
        print_json({**as_json(run, done), "exit_code": int(code)})
    else:
        say(summary(run, done))
        if code is Exit.UNFINISHED:
            note("work is left: run it again, or let beat go on with it")
    if code is not Exit.DONE:
        raise typer.Exit(code)


def summary(run: RunRow, done: Progress) -> str:
    locked = f", {done.rows_locked:,} locked by others" if done.rows_locked else ""
    return (
        f"run {short(run.run_id)} of {run.sweep}: {state_of(run)}; {done.rows_done:,} rows in {done.done:,} batches"
        f"{locked}{': ' + counted(run) if run.outcomes else ''}"
    )


def counted(run: RunRow) -> str:
    """What came of its rows, most first."""
    most = sorted(run.outcomes.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{count:,} {name}" for name, count in most)


def state_of(run: RunRow) -> str:
    """The state, with the reason where there is one."""
    if run.closed_at is None and run.held_by is not None and run.state == "running":
        return f"held by {run.held_by}: {run.why}"
    return f"{run.state} ({run.why})" if run.why else run.state


def as_json(run: RunRow, done: Progress) -> dict[str, Any]:
    left_out = {"cursor", "walk_end", "rung_at"}
    fields = {name: value for name, value in vars(run).items() if name not in left_out}
    return {**fields, "progress": done}


def ago(window: timedelta) -> str:
    return f"{format_duration(window)} ago" if window else "its opening"


def described(run: RunRow, done: Progress) -> dict[str, object]:
    windows = {name: ago(timedelta(seconds=seconds)) for name, seconds in run.windows.items()}
    left = f"{done.due:,} due, {done.claimed:,} in hand{'' if run.walked else ', more pages to come'}"
    return {
        "run": str(run.run_id),
        "sweep": run.sweep,
        "state": state_of(run),
        "started by": run.started_by + (", forced" if run.force else ""),
        "opened": run.opened_at,
        "closed": run.closed_at,
        "cut-offs": [f"{name}: {shown(time)} ({windows[name]})" for name, time in run.cutoff_times.items()],
        "walked along": run.walk,
        "rows meant": run.eligible_rows,
        "of table rows": run.table_rows,
        "row limit": run.row_limit,
        "rows done": done.rows_done,
        "rows locked": done.rows_locked,
        "batches": f"{done.done:,} done, {left}" if run.closed_at is None else f"{done.done:,} done",
        "quarantined": done.quarantined,
    } | acted(run)


def acted(run: RunRow) -> dict[str, object]:
    """What only runs that act have, where they have it."""
    fields: dict[str, object] = {
        "filter": run.filter,
        "options": [f"{name}: {value}" for name, value in run.options.items()],
        "outcomes": counted(run),
        "failures in a row": run.failures_in_row,
    }
    return {name: value for name, value in fields.items() if value}
