"""What tells an import to wait between two pages: replicas that fall behind, and the stop file."""

import time
from typing import Final

from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.sweeps import gauge, valves
from pushops.sweeps.valves import Reading

EVERY: Final = 1.0  # seconds that a reading is good for


class Brake:
    """Waits while a valve does not say OPEN, and gives up where sweeps would."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._looked = float("-inf")

    def wait(self) -> None:
        """Raises RefusedError with the valve's reason after PUSHOPS_SWEEP_MAX_LAG_GIVE_UP."""
        if time.monotonic() - self._looked < EVERY:
            return
        began, told = time.monotonic(), False
        while closed := self._closed():
            if not told:
                told = True
                self._rt.events.emit("import.held", valve=closed.valve, reading=closed.state, reason=closed.reason)
            if time.monotonic() - began > self._rt.settings.sweep_max_lag_give_up.total_seconds():
                raise RefusedError(f"held by {closed.valve}: {closed.reason}; what was stored stays, import again")
            time.sleep(EVERY)
        self._looked = time.monotonic()

    def _closed(self) -> Reading | None:
        stop = valves.decide_stop_file(self._rt.settings.stop_file)
        return valves.first_closed([stop, gauge.read_lag(self._rt)])
