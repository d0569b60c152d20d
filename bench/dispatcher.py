"""One dispatcher in a process of its own, which writes every page of a run and says how much memory that took."""

import json
import time
from pathlib import Path

from bench.pipeline import ORDER, bell
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service


def main() -> None:
    with runtime(load_settings()) as rt:
        started = time.monotonic()
        batches, run = 0, None
        while run is None or not run.walked:  # again where its few seconds were spent
            found = service.dispatch(rt, PURGE_TOMBSTONES, bell(rt), ORDER)
            assert found.run is not None
            batches, run = batches + found.batches, service.show_run(rt, found.run.run_id)[0]
            assert found.batches or run.walked, f"expected pages, got {found.outcome}: {found.why}"
    seconds = time.monotonic() - started
    print(json.dumps({"batches": batches, "seconds": round(seconds, 2), "mb": round(_most_mb(), 1)}))


def _most_mb() -> float:
    """The most memory that this program ever held; ``getrusage`` would say no less than what its parent held."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()
