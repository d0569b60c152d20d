"""What may tell a sweep to wait. A valve that cannot see says UNKNOWN, and UNKNOWN holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from pushops.errors import PushopsError
from pushops.settings import format_duration
from pushops.sweeps.probes import Lag, Snapshot
from pushops.sweeps.store import ControlRow, RunRow


class State(StrEnum):
    OPEN = "open"
    HOLD = "hold"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reading:
    """What a valve said, and why. The reason reaches the log, the run row and the console unchanged."""

    valve: str
    state: State
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.state is State.OPEN


def opened(valve: str, reason: str = "") -> Reading:
    return Reading(valve, State.OPEN, reason)


def hold(valve: str, reason: str) -> Reading:
    return Reading(valve, State.HOLD, reason)


def unknown(valve: str, reason: str) -> Reading:
    return Reading(valve, State.UNKNOWN, reason)


def seen(valve: str, probe: Callable[[], Reading]) -> Reading:
    """Run a probe; one that fails could not see."""
    try:
        return probe()
    except PushopsError as error:
        return unknown(valve, f"the probe failed: {error.label}")
    except Exception as error:  # noqa: BLE001  (whatever it was, we did not see)
        return unknown(valve, f"the probe failed: {type(error).__name__}")


def first_closed(readings: list[Reading]) -> Reading | None:
    return next((reading for reading in readings if not reading.open), None)


def decide_pause(control: ControlRow | None) -> Reading:
    if control is None or control.paused_at is None:
        return opened("pause")
    return hold("pause", f"paused by {control.paused_by}: {control.paused_why or 'no reason given'}")


def decide_stop_file(path: Path | None) -> Reading:
    """A file that somebody can create without the database."""
    if path is not None and path.exists():
        return hold("stop_file", "the file that PUSHOPS_STOP_FILE names exists")
    return opened("stop_file")


def decide_lag(lag: Lag, limit: int, expected: int | None) -> Reading:
    """Bytes between what was written and what the slowest replica or slot has taken.

    A replica whose positions are NULL is what a role without pg_monitor sees: that is not zero lag.
    """
    if lag.hidden:
        return unknown("lag", f"{lag.hidden} replica(s) with positions that this role may not see: grant pg_monitor")
    if expected is not None and lag.replicas < expected:
        return unknown("lag", f"expected {expected} replica(s), {lag.replicas} visible")
    if lag.bytes > limit:
        return hold("lag", f"{lag.worst} is {lag.bytes} bytes behind, {limit} allowed")
    return opened("lag", f"{lag.bytes} bytes behind" if lag.replicas or lag.slots else "no replicas and no slots")


def decide_snapshot(snapshot: Snapshot, hold_after: timedelta | None) -> Reading:
    """An old snapshot keeps vacuum from removing what was deleted: reported always, holding only where configured.

    A replica's is only reported: it has no time to compare.
    """
    if hold_after is None:
        return opened("snapshot", f"oldest {snapshot.seconds:.0f} s")
    if snapshot.hidden:
        return unknown("snapshot", "other sessions' transactions are hidden from this role: grant pg_monitor")
    if snapshot.seconds > hold_after.total_seconds():
        return hold("snapshot", f"{snapshot.owner} holds a snapshot of {snapshot.seconds:.0f} s")
    return opened("snapshot", f"oldest {snapshot.seconds:.0f} s")


def decide_budget(run: RunRow, now: datetime) -> Reading:
    if run.budget_until is not None and now >= run.budget_until:
        return hold("budget", "the time budget of this slot is spent; the next tick grants another")
    return opened("budget")


def decide_retention(windows: Mapping[str, float], control: ControlRow | None) -> Reading:
    """A window shorter than the last one known takes rows that yesterday were kept: somebody must say so first."""
    known: Mapping[str, float] = control.acknowledged if control else {}
    for name, seconds in sorted(windows.items()):
        if name in known and seconds < known[name]:
            before, after = (format_duration(timedelta(seconds=value)) for value in (known[name], seconds))
            return hold("retention", f"window {name} shortened from {before} to {after}: pushops sweep acknowledge")
    return opened("retention")


def decide_share(run: RunRow, limit: float, *, braked: bool) -> Reading:
    """A run that would take a large share of a table looks like a mistake until somebody says otherwise."""
    if not braked or run.force:
        return opened("share")
    if run.eligible_rows is None or run.table_rows is None:
        return unknown("share", "the eligible rows could not be counted in time: --force runs without the brake")
    meant = max(run.eligible_rows, run.rows_dispatched)  # more may have come under the predicate since it was counted
    if run.table_rows >= SHARE_FROM and meant > limit * run.table_rows:
        share = f"{meant} of {run.table_rows} rows"
        return hold("share", f"would take {share}, more than {limit:.0%}: --force or PUSHOPS_SWEEP_MAX_SHARE")
    return opened("share")


def decide_settings(run: RunRow, windows: Mapping[str, float]) -> Reading:
    """A run goes on by the windows that it was opened with, and only where they still are the settings'."""
    if run.windows == windows:
        return opened("settings")
    return hold("settings", "the run was opened with other retention settings: the next scheduled run replaces it")


def decide_queue(depth: int | None, waiting: int, limit: int) -> Reading:
    """``depth`` is the broker's queue with its priorities and unacknowledged messages; None where it cannot be read."""
    if depth is None:
        return unknown("queue", "the broker's queue could not be read")
    if max(depth, waiting) >= limit:
        return hold("queue", f"{max(depth, waiting)} batches wait, {limit} allowed")
    return opened("queue")


SHARE_FROM = 1_000
