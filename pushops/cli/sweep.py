"""``pushops sweep``: what there is to sweep, what a run would do, running it, and stopping it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from pushops.cli import quarantine
from pushops.cli.context import BESIDE, SweepName, actor, opened, sweep_named
from pushops.cli.exits import DOCUMENTED, Exit
from pushops.cli.output import Json, duration, note, print_fields, print_json, print_table, say, short, tell
from pushops.cli.progress import follow_run
from pushops.cli.run import Timeout, Why, ago, as_json, finish, state_of
from pushops.errors import BrokerError, RefusedError, SettingsError
from pushops.retention.catalog import catalog
from pushops.runtime import Runtime
from pushops.settings import format_duration
from pushops.sweeps import history, runs, service, store
from pushops.sweeps.dispatch import Bell, Dispatched, Order, Outcome, dispatch
from pushops.sweeps.inline import run_inline, watch
from pushops.sweeps.preview import Preview, preview
from pushops.sweeps.store import RunRow
from pushops.sweeps.sweep import Sweep

app = typer.Typer(no_args_is_help=True)
app.add_typer(quarantine.app, name="quarantine")

Force = Annotated[bool, typer.Option("--force", help="Run without the share brake.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="End the run after so many rows.")]

NO_BROKER: Final = (
    "expected PUSHOPS_BROKER_URL to be set, so that workers can be told; --inline runs it in this process instead"
)


@app.callback()
def sweep() -> None:
    """List, preview, run and pause sweeps; release what they set apart."""


@app.command("list")
def list_(json_: Json = False) -> None:
    """All sweeps: what each does, its windows, and what it is doing now; and what else a pause may hold."""
    with opened() as rt:
        found = [_about_named(rt, name) for name in catalog(rt)] + [_about_other(rt, name) for name in BESIDE]
    if json_:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            _windows(each["windows"], "\n"),
            "" if each["name"] in BESIDE else _day(each["last_done"]),
            each["state"],
        )
        for each in found
    ]
    print_table(("SWEEP", "WINDOWS", "LAST DONE", "STATE"), rows)


@app.command("preview")
def preview_(name: SweepName, force: Force = False, limit: Limit = None, json_: Json = False) -> None:
    """What a run would do: rows, cut-offs, batches, valves, time. Nothing is changed."""
    with opened() as rt:
        order = Order(started_by=actor(), force=force, row_limit=limit)
        _show(preview(rt, sweep_named(rt, name), order), json_=json_)


@app.command("run", epilog=DOCUMENTED)
def run_(
    name: SweepName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only preview; nothing is changed.")] = False,
    inline: Annotated[bool, typer.Option("--inline", help="Run in this process, without a broker.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow what the workers do until the run is closed.")] = False,
    force: Force = False,
    limit: Limit = None,
    timeout: Timeout = None,
    json_: Json = False,
) -> None:
    """Open the sweep's run, or join the open one, and let the workers do it; the run's id is printed."""
    if inline and (wait or timeout):
        raise typer.BadParameter("--inline waits by itself, for as long as PUSHOPS_SWEEP_BUDGET_MS says")
    order = Order(started_by=actor(), force=force, row_limit=limit)
    with opened() as rt:
        found = sweep_named(rt, name)
        if dry_run:
            _show(preview(rt, found, order), json_=json_)
        elif inline:
            work_here(rt, found, order, json_=json_)
        else:
            tell_workers(rt, found, order, wait=wait, timeout=timeout, json_=json_)


@app.command()
def pause(name: SweepName, why: Why = "no reason given", json_: Json = False) -> None:
    """Let no batch of the sweep begin, in this run or the next, until it is resumed."""
    with opened() as rt:
        found = None if name in BESIDE else sweep_named(rt, name)
        if found is None:
            service.pause_named(rt, name, actor=actor(), why=why)
        else:
            service.pause_sweep(rt, found, actor=actor(), why=why)
    tell({"sweep": name, "paused": True, "why": why}, f"{name} is paused: {why}", json_=json_)


@app.command()
def resume(name: SweepName, json_: Json = False) -> None:
    """Take back a pause."""
    with opened() as rt:
        changed = service.resume_named(rt, name, actor=actor())
    text = f"{name} may run again" if changed else f"{name} was not paused"
    tell({"sweep": name, "paused": False, "changed": changed}, text, json_=json_)


@app.command()
def acknowledge(name: SweepName, json_: Json = False) -> None:
    """Say that a shortened retention window is meant, so that the sweep may use it."""
    with opened() as rt:
        found = sweep_named(rt, name)
        windows = runs.windows_of(rt.settings, found)
        service.acknowledge(rt, found, actor=actor())
    text = f"{found.name} may use {_windows(windows)}"
    tell({"sweep": found.name, "windows": windows}, text, json_=json_)


def work_here(rt: Runtime, sweep: Sweep, order: Order, *, json_: bool) -> None:
    """Open the run, or join it, and work on it in this process."""
    with follow_run() as told:
        run = run_inline(rt, catalog(rt), sweep, order, told)
    _say_ignored(run, order)
    finish(rt, run, json_=json_)


def tell_workers(
    rt: Runtime, sweep: Sweep, order: Order, *, wait: bool, timeout: timedelta | None, json_: bool
) -> None:
    """Open the run, or join it, and ring for workers; ``wait`` follows them."""
    if rt.settings.broker_url is None:
        raise SettingsError(NO_BROKER)
    found = dispatch(rt, sweep, _bell(rt), order)
    run = found.run or _open_run(rt, sweep, order)
    if found.outcome is Outcome.NO_BROKER:
        raise BrokerError(f"{found.why}; the batches are due, and beat rings for them again")
    _say_ignored(run, order)
    if wait:
        if not json_:
            note(f"run {run.run_id}")
        with follow_run() as told:
            run = watch(rt, run.run_id, told, timeout, give_up=rt.settings.sweep_max_lag_give_up)
        finish(rt, run, json_=json_)
        return
    _report(rt, found, run, json_=json_)


def _bell(rt: Runtime) -> Bell:
    """Raises BrokerError where the broker does not answer: better now than after the run was opened."""
    from pushops.tasks import bell  # noqa: PLC0415  (Celery takes half a second to import, and only this needs it)

    found = bell(rt)
    if found.depth() is None:
        raise BrokerError("expected the broker that PUSHOPS_BROKER_URL names to answer, it does not")
    return found


def _open_run(rt: Runtime, sweep: Sweep, order: Order) -> RunRow:
    """The latest run, where another dispatcher held it in the moment that we looked."""
    with rt.db.transaction() as tx:
        return store.open_run_of(tx, sweep.name, order.filter) or store.recent_runs(tx, sweep.name, 1)[0]


def _say_ignored(run: RunRow, order: Order) -> None:
    """A run that was joined keeps what it was opened with."""
    if order.row_limit is not None and run.row_limit != order.row_limit:
        note(f"joined run {short(run.run_id)}, which is open already: --limit does not apply to it")
    if order.force and not run.force:
        note(f"joined run {short(run.run_id)}, which is open already: --force does not apply to it")


def _report(rt: Runtime, found: Dispatched, run: RunRow, *, json_: bool) -> None:
    run, done = service.show_run(rt, run.run_id)
    held = run.closed_at is None and (found.outcome is Outcome.HELD or run.state in ("pausing", "paused"))
    if json_:
        fields = {"outcome": found.outcome, "why": found.why, "opened": found.opened, "batches": found.batches}
        print_json({**as_json(run, done), "dispatch": fields, "exit_code": int(Exit.HELD if held else Exit.DONE)})
    else:
        say(f"run {run.run_id}: {state_of(run)}, {'opened' if found.opened else 'joined'}, {found.batches:,} batches")
    if held:
        raise typer.Exit(Exit.HELD)


def _about(rt: Runtime, sweep: Sweep) -> dict[str, Any]:
    with rt.db.transaction() as tx:
        control = store.control(tx, sweep.name)
        found = [run for run in store.open_runs(tx) if run.sweep == sweep.name]
        apart = history.held_count(tx, sweep.name)
    paused = control is not None and control.paused_at is not None
    state = f"paused: {control.paused_why}" if control and paused else _state_of_runs(found)
    return {
        "name": sweep.name,
        "meaning": sweep.meaning,
        "windows": {name: window for name, window in runs.windows_of(rt.settings, sweep).items() if window},
        "state": state + (f", {apart} set apart" if apart else ""),
        "paused": paused,
        "open_run": found[0].run_id if found else None,
        "open_runs": [run.run_id for run in found],
        "quarantined": apart,
        "batch_rows": runs.size_of(rt.settings, sweep, control, {}),
        "last_look": control.dispatched_at if control else None,
        "last_done": control.succeeded_at if control else None,
    }


def _about_named(rt: Runtime, name: str) -> dict[str, Any]:
    """A table of yours that cannot be walked keeps nobody from seeing the other sweeps."""
    try:
        return _about(rt, sweep_named(rt, name))
    except RefusedError as error:
        return _about_other(rt, name, meaning=f"cannot run: {error}")


def _state_of_runs(found: list[RunRow]) -> str:
    """One open run's own words; of several, which filters have one, only how many."""
    if len(found) > 1:
        return f"{len(found)} runs open"
    return state_of(found[0]) if found else "idle"


def _about_other(rt: Runtime, name: str, *, meaning: str | None = None) -> dict[str, Any]:
    """What has no runs: whether somebody paused it. The other keys are those of sweeps."""
    with rt.db.transaction() as tx:
        control = store.control(tx, name)
    paused = control is not None and control.paused_at is not None
    nothing: dict[str, Any] = {
        "open_run": None,
        "open_runs": [],
        "quarantined": 0,
        "batch_rows": None,
        "last_look": None,
        "last_done": None,
    }
    state = f"paused: {control.paused_why}" if control and paused else "cannot run" if meaning else "not paused"
    return {"name": name, "meaning": meaning or BESIDE[name], "windows": {}, "state": state, "paused": paused} | nothing


def _day(when: datetime | None) -> str:
    return "never" if when is None else f"{when.astimezone(UTC):%m-%d %H:%M}Z"


def _windows(windows: dict[str, timedelta], between: str = ", ") -> str:
    if len(windows) == 1:
        return format_duration(next(iter(windows.values())))
    return between.join(f"{name} {format_duration(value)}" for name, value in windows.items())


def _show(found: Preview, *, json_: bool) -> None:
    if json_:
        print_json(found)
        return
    print_fields(
        {
            "sweep": found.sweep,
            "meaning": found.meaning,
            "rows eligible": found.unknown if found.eligible is None else found.eligible,
            "of table rows": found.table_rows,
            "oldest": found.oldest,
            "sample": found.sample,
            "cut-offs": [
                f"{name}: {when:%Y-%m-%d %H:%M:%S%z} ({ago(found.windows[name])})"
                for name, when in found.cutoffs.items()
            ],
            "batches": _batches(found),
            "time": None if found.eta is None else f"about {duration(found.eta)}, judged by {_judged(found)}",
            "set apart": found.quarantined,
            "open run": str(found.open_run) if found.open_run else None,
            "valves": [f"{r.state:<7} {r.valve}{f': {r.reason}' if r.reason else ''}" for r in found.readings],
        }
        | ({"notes": found.notes} if found.notes else {})
    )


def _batches(found: Preview) -> str | None:
    if found.batches is None:
        return None
    return f"{found.batches:,} of {found.batch_rows:,} rows, along the {found.walk}"


def _judged(found: Preview) -> str:
    where = "the last runs" if found.pace_from == "last runs" else "the settings"
    return f"{where} ({found.rows_per_s:,.0f} rows/s)"
