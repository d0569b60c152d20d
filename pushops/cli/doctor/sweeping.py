"""Sweeps: looked at lately, not held by a decision that somebody has to take."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from pushops.cli.doctor import store
from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.cli.output import duration
from pushops.errors import RefusedError
from pushops.retention.catalog import catalog
from pushops.runtime import Runtime
from pushops.sweeps import history, runs, valves
from pushops.sweeps import store as engine
from pushops.sweeps.sweep import Sweep

# The most frequent sweeps run hourly.
LOOKED_WITHIN: Final = timedelta(minutes=70)


def last_look(rt: Runtime) -> Iterator[Finding]:
    with rt.db.transaction() as tx:
        yield judge_look(store.last_look(tx))


def judge_look(ago: timedelta | None) -> Finding:
    expected = f"a sweep looked at within {duration(LOOKED_WITHIN)}"
    advice = "see that beat runs: celery -A pushops.tasks beat; with cron alone this is as often as it calls"
    if ago is None:
        return warning("beat", expected, "never", advice)
    found = f"{duration(ago)} ago"
    return fine("beat", expected, found) if ago <= LOOKED_WITHIN else warning("beat", expected, found, advice)


def decisions(rt: Runtime) -> Iterator[Finding]:
    """What waits for a person: shortened windows, pauses, a stop file, quarantine."""
    findings = [finding for name in catalog(rt) for finding in _of_named(rt, name)]
    stop = valves.decide_stop_file(rt.settings.stop_file)
    if not stop.open:
        findings.append(warning("sweeps", "no stop file", stop.reason, "remove it to let sweeps run"))
    yield from findings or [fine("sweeps", "none paused, no window shortened, nothing set apart", "so it is")]


def _of_named(rt: Runtime, name: str) -> Iterator[Finding]:
    try:
        yield from _of_sweep(rt, catalog(rt)[name])
    except RefusedError:
        return  # ``own_tables`` says so


def own_tables(rt: Runtime) -> Iterator[Finding]:
    """Tables of the settings: whether a run could be opened now, and what would surprise of it."""
    expected = "tables that can be swept as their sections say"
    found = [finding for name in rt.settings.sweeps for finding in _of_own(rt, name, expected)]
    if rt.settings.sweeps:
        yield from found or [fine("own tables", expected, f"{len(rt.settings.sweeps)} looked at")]


def _of_own(rt: Runtime, name: str, expected: str) -> Iterator[Finding]:
    try:
        sweep = catalog(rt)[name]
        notes = sweep.checked(rt) if sweep.checked else ()
    except RefusedError as error:
        yield problem("own tables", expected, f"{name}: {error}", f"mend [sweeps.{name}]; until then it does not run")
        return
    for note in notes:
        yield warning(
            "own tables", expected, f"{name}: {note}", f"pushops sweep preview {name} shows what a run would do"
        )


def _of_sweep(rt: Runtime, sweep: Sweep) -> Iterator[Finding]:
    with rt.db.transaction() as tx:
        control, apart = engine.control(tx, sweep.name), history.held_count(tx, sweep.name)
    windows = {name: window.total_seconds() for name, window in runs.windows_of(rt.settings, sweep).items()}
    pause, retention = valves.decide_pause(control), valves.decide_retention(windows, control)
    if not pause.open:
        yield warning("sweeps", "not paused", f"{sweep.name}: {pause.reason}", f"pushops sweep resume {sweep.name}")
    if not retention.open:
        advice = f"pushops sweep acknowledge {sweep.name}, if it is meant"
        yield warning("sweeps", "no window shorter than the last one used", f"{sweep.name}: {retention.reason}", advice)
    if apart:
        advice = f"pushops sweep quarantine list {sweep.name}"
        yield warning("sweeps", "nothing set apart", f"{sweep.name}: {apart} in quarantine", advice)
