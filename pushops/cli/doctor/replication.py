"""Whether the lag valve can see what it must see, and what it sees."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from pushops.cli.doctor import store
from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.cli.doctor.store import Slot
from pushops.runtime import Runtime
from pushops.sweeps import probes, valves
from pushops.sweeps.probes import Lag
from pushops.sweeps.valves import State


def replication(rt: Runtime) -> Iterator[Finding]:
    settings = rt.settings
    with rt.db.transaction() as tx:
        sees_all, lag, slots = store.server(tx).sees_all, probes.lag(tx), store.slots(tx)
    yield rights(lag, sees_all=sees_all)
    yield replicas(lag, settings.sweep_max_lag_bytes, settings.expected_replicas)
    yield from judge_slots(slots)


def rights(lag: Lag, *, sees_all: bool) -> Finding:
    """Without the role, replicas stand in the view with NULL for everything: the valve then holds."""
    expected = "a role that sees replication and other sessions"
    if sees_all:
        return fine("rights", expected, "pg_monitor or the like")
    make = problem if lag.hidden else warning
    found = (
        f"{lag.hidden} replica(s) hidden" if lag.hidden else "neither, which matters with replicas or snapshot holds"
    )
    return make("rights", expected, found, "GRANT pg_monitor TO the role in PUSHOPS_DATABASE_URL")


def replicas(lag: Lag, limit: int, expected_replicas: int | None) -> Finding:
    reading = valves.decide_lag(lag, limit, expected_replicas)
    expected = "any number of replicas" if expected_replicas is None else f"{expected_replicas} replica(s)"
    expected = f"{expected}, at most {limit:,} bytes behind"
    found = f"{lag.replicas} replica(s), {lag.slots} slot(s), worst {lag.bytes:,} bytes behind"
    match reading.state:
        case State.OPEN:
            return fine("replicas", expected, found)
        case State.HOLD:
            return warning("replicas", expected, reading.reason, "sweeps hold until it has caught up: look at its load")
        case State.UNKNOWN:
            return problem("replicas", expected, reading.reason, "sweeps hold until all that is expected is visible")
        case _:
            assert_never(reading.state)


def judge_slots(slots: Sequence[Slot]) -> Iterator[Finding]:
    expected = "every slot in use"
    for slot in slots:
        drop = f"connect its consumer, or SELECT pg_drop_replication_slot('{slot.name}')"
        if slot.retained is None:
            yield warning("slots", expected, f"{slot.name} was never connected", drop)
        elif not slot.active:
            yield warning(
                "slots", expected, f"{slot.name} is inactive and retains {slot.retained:,} bytes of WAL", drop
            )
        else:
            yield fine("slots", expected, f"{slot.name} is active")
    if not slots:
        yield fine("slots", expected, "none")
