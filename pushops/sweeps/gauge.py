"""Reading every valve of a run at once. A reading is good for a second."""

from datetime import datetime
from typing import Any, Final

from psycopg import Connection

from pushops.runtime import Runtime
from pushops.sweeps import probes, runs, store, valves
from pushops.sweeps.store import ControlRow, RunRow
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.valves import Reading

OLD_TRANSACTIONS: Final = 100_000  # of a replica's snapshot, which has no time: twenty minutes of 80 a second


def read(rt: Runtime, sweep: Sweep, run: RunRow, *, on: Connection[Any] | None = None) -> list[Reading]:
    """All valves that a batch and a dispatcher share, in the order in which an operator would ask.

    ``on`` is a connection that the caller holds anyway: looking must not wait for a second one.
    """
    settings = rt.settings
    stop = valves.decide_stop_file(settings.stop_file)
    try:
        control, now = _control(rt, sweep.name, on)
    except Exception as error:  # noqa: BLE001  (without the database nothing else can be seen)
        return [stop, valves.unknown("database", f"not reachable: {type(error).__name__}")]
    # What acts has a pace of its own, which the budget of a nightly sweep would only break up.
    budget = [] if sweep.acting else [valves.decide_budget(run, now)]
    return [
        stop,
        valves.decide_pause(control),
        valves.decide_settings(run, runs.seconds_of(rt.settings, sweep)),
        valves.decide_retention(run.windows, control),
        valves.decide_share(run, runs.share_of(settings, sweep), braked=sweep.brake),
        *budget,
        read_lag(rt, on),
        read_snapshot(rt, on),
    ]


def read_lag(rt: Runtime, on: Connection[Any] | None = None) -> Reading:
    def probe() -> Reading:
        with rt.db.transaction(on=on) as tx:
            found = probes.lag(tx)
        return valves.decide_lag(found, rt.settings.sweep_max_lag_bytes, rt.settings.expected_replicas)

    return valves.seen("lag", probe)


def read_snapshot(rt: Runtime, on: Connection[Any] | None = None) -> Reading:
    def probe() -> Reading:
        with rt.db.transaction(on=on) as tx:
            found = probes.oldest_snapshot(tx)
        return valves.decide_snapshot(found, rt.settings.snapshot_hold_after)

    return valves.seen("snapshot", probe)


def tell_old_snapshots(rt: Runtime) -> None:
    """Report what keeps vacuum from removing what was deleted: once a dispatcher's look, not once a batch."""
    try:
        with rt.db.transaction() as tx:
            found = probes.oldest_snapshot(tx)
    except Exception:  # noqa: BLE001  (the valve says UNKNOWN where it matters)
        return
    if found.seconds > rt.settings.snapshot_report_after.total_seconds():
        rt.events.emit("sweep.snapshot", age=round(found.seconds), owner=found.owner)
    if found.transactions > OLD_TRANSACTIONS:
        rt.events.emit("sweep.snapshot", transactions=found.transactions, owner=found.replica)


def _control(rt: Runtime, sweep: str, on: Connection[Any] | None) -> tuple[ControlRow | None, datetime]:
    with rt.db.transaction(on=on) as tx:
        return store.control(tx, sweep), tx.now
