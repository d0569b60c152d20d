"""What may tell fan-out, sending, or the retiring of the ledger's weeks, to wait."""

from collections.abc import Callable

from pushops.runtime import Runtime
from pushops.sweeps import store
from pushops.sweeps.valves import Reading, decide_pause, decide_stop_file, first_closed, seen


def reading(rt: Runtime, name: str) -> Reading | None:
    """The first valve that is not open: the stop file, an operator's pause. What cannot be seen holds."""

    def pause() -> Reading:
        with rt.db.transaction() as tx:
            return decide_pause(store.control(tx, name))

    probes: list[tuple[str, Callable[[], Reading]]] = [
        ("stop_file", lambda: decide_stop_file(rt.settings.stop_file)),
        ("pause", pause),
    ]
    return first_closed([seen(valve, probe) for valve, probe in probes])
