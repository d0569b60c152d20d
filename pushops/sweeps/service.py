"""The verbs of the engine: what the command line, the tasks and the tests call."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from pushops.errors import NotFoundError, PushopsError, RefusedError
from pushops.runtime import Runtime
from pushops.sweeps import runs, store
from pushops.sweeps.dispatch import Bell, Dispatched, Outcome, dispatch
from pushops.sweeps.order import Order
from pushops.sweeps.store import Progress, Quarantined, RunRow
from pushops.sweeps.sweep import Sweep

__all__ = [
    "acknowledge",
    "cancel_run",
    "continue_run",
    "dispatch",
    "pause_named",
    "pause_run",
    "pause_sweep",
    "quarantined",
    "recent_runs",
    "release",
    "resume_named",
    "resume_run",
    "resume_sweep",
    "show_run",
    "tend",
]


def tend(rt: Runtime, catalog: Mapping[str, Sweep], bell: Bell | None, *, granting: bool) -> list[Dispatched]:
    """Look at every open run: lost messages, dead workers, valves that opened again, runs that can end."""
    with rt.db.transaction() as tx:
        open_runs = store.open_runs(tx)
    order = Order(started_by="tend", opening=False, granting=granting)
    return [_tend_one(rt, catalog, bell, order, run) for run in open_runs if run.sweep in catalog]


def _tend_one(rt: Runtime, catalog: Mapping[str, Sweep], bell: Bell | None, order: Order, run: RunRow) -> Dispatched:
    """What goes wrong with one run is told by its event, and must not keep the others from being looked at."""
    try:
        return dispatch(rt, catalog[run.sweep], bell, replace(order, filter=run.filter))
    except PushopsError as error:
        return Dispatched(Outcome.FAILED, run, why=error.label)


def continue_run(rt: Runtime, catalog: Mapping[str, Sweep], bell: Bell, run_id: UUID) -> Dispatched | None:
    """Write the next pages of an open run; None where it is unknown or closed."""
    with rt.db.transaction() as tx:
        run = store.run(tx, run_id)
    if run is None or run.sweep not in catalog:
        rt.events.emit("sweep.unknown_id", task="more_pages", reason="unknown run")
        return None
    if run.closed_at is not None:
        return None
    order = Order(started_by="worker", opening=False, granting=False, filter=run.filter)
    return dispatch(rt, catalog[run.sweep], bell, order)


def recent_runs(rt: Runtime, sweep: str | None = None, limit: int = 20) -> list[RunRow]:
    with rt.db.transaction() as tx:
        return store.recent_runs(tx, sweep, limit)


def show_run(rt: Runtime, run_id: UUID) -> tuple[RunRow, Progress]:
    """A run and what it has done. Raises NotFoundError."""
    with rt.db.transaction() as tx:
        run = store.run(tx, run_id)
        if run is None:
            raise NotFoundError(f"expected the id of a run, got {run_id}: see pushops run list")
        return run, store.progress(tx, run_id)


def pause_sweep(rt: Runtime, sweep: Sweep, *, actor: str, why: str) -> None:
    """No batch and no page of the sweep from now on, until it is resumed."""
    with rt.db.transaction() as tx:
        windows = runs.windows_of(rt.settings, sweep)
        store.ensure_control(tx, sweep.name, runs.as_seconds(windows), runs.slots_of(rt.settings, sweep))
        store.pause_sweep(tx, sweep.name, actor, why)
    rt.events.emit("sweep.control", sweep=sweep.name, verb="pause", actor=actor, why=why)


def resume_sweep(rt: Runtime, sweep: Sweep, *, actor: str) -> bool:
    """True where it was paused."""
    return resume_named(rt, sweep.name, actor=actor)


def pause_named(rt: Runtime, name: str, *, actor: str, why: str) -> None:
    """Pause what walks a table without being declared as a sweep: it asks for its pause by this name."""
    with rt.db.transaction() as tx:
        store.ensure_control(tx, name, "{}", 0)
        store.pause_sweep(tx, name, actor, why)
    rt.events.emit("sweep.control", sweep=name, verb="pause", actor=actor, why=why)


def resume_named(rt: Runtime, name: str, *, actor: str) -> bool:
    """True where it was paused."""
    with rt.db.transaction() as tx:
        changed = store.resume_sweep(tx, name)
    rt.events.emit("sweep.control", sweep=name, verb="resume", actor=actor)
    return changed


def acknowledge(rt: Runtime, sweep: Sweep, *, actor: str) -> None:
    """Say that the windows in force, shorter than before, are meant."""
    windows = runs.as_seconds(runs.windows_of(rt.settings, sweep))
    with rt.db.transaction() as tx:
        store.ensure_control(tx, sweep.name, windows, runs.slots_of(rt.settings, sweep))
        store.acknowledge(tx, sweep.name, windows)
    rt.events.emit("sweep.control", sweep=sweep.name, verb="acknowledge", actor=actor, why=windows)


def pause_run(rt: Runtime, run_id: UUID, *, actor: str, why: str) -> RunRow:
    """``pausing`` until the batches in hand are done, then ``paused``. Raises NotFoundError."""
    return _ask(rt, run_id, "pausing", ["running"], actor, f"paused by {actor}: {why}")


def resume_run(rt: Runtime, run_id: UUID, *, actor: str) -> RunRow:
    return _ask(rt, run_id, "running", ["pausing", "paused"], actor, None)


def cancel_run(rt: Runtime, run_id: UUID, *, actor: str, why: str) -> RunRow:
    """``cancelling`` until the batches in hand are done, then ``cancelled``: the rest stays as it is."""
    return _ask(rt, run_id, "cancelling", ["running", "pausing", "paused"], actor, f"cancelled by {actor}: {why}")


def _ask(rt: Runtime, run_id: UUID, target: str, sources: list[str], actor: str, why: str | None) -> RunRow:
    run, _ = show_run(rt, run_id)
    with rt.db.transaction() as tx:
        if not store.ask(tx, run_id, target, sources, why):
            raise RefusedError(f"expected a run that is {' or '.join(sources)}, got one that is {run.state}")
    with rt.db.transaction() as tx:  # committed, so that nothing is claimed any more when it is looked for
        runs.settle_asked(tx, run_id)
        after = store.run(tx, run_id)
    rt.events.emit("sweep.control", sweep=run.sweep, run=run_id, verb=target, actor=actor, why=why)
    return after or run


def quarantined(
    rt: Runtime, sweep: str | None = None, *, released: bool = False, limit: int = 100
) -> list[Quarantined]:
    with rt.db.transaction() as tx:
        return store.list_quarantine(tx, sweep, released=released, limit=limit)


def release(rt: Runtime, sweep: Sweep, *, actor: str, ids: list[UUID] | None = None) -> int:
    """Let the next run look at these keys again (all of the sweep's where none are named). Returns how many."""
    with rt.db.transaction() as tx:
        count = store.release(tx, sweep.name, ids, actor)
    rt.events.emit("sweep.control", sweep=sweep.name, verb="release", actor=actor, why=f"{count} released")
    return count
