"""A run of many small batches, whose last ones should be as quick as the first."""

from statistics import median
from typing import Final

from bench.house import House, say
from bench.layout import LAYOUTS
from bench.pipeline import ORDER, bell, finish
from bench.workers import working
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service

SHORT_ROWS: Final = 2_000  # 400 batches of a million rows


def last_vs_first(house: House) -> dict[str, float]:
    """Median duration of a run's last tenth of batches over its first tenth's, for each layout."""
    return {layout: _one(house, layout) for layout in LAYOUTS}


def _one(house: House, layout: str) -> float:
    """All pages are written before a worker starts: what the first batches taught would change the size of the rest."""
    house.clone(layout)
    settings = load_settings(sweep_batch_rows=SHORT_ROWS, sweep_max_queue=10_000, sweep_pause_ms=0)
    with runtime(settings) as rt:
        found = service.dispatch(rt, PURGE_TOMBSTONES, bell(rt), ORDER)
    assert found.run is not None
    assert found.run.walked, "expected all pages of the run to be written at once"
    with house.admin() as conn:
        conn.execute("CHECKPOINT")
    with working(house, "pushops.tasks", sweep_pause_ms=0) as worker:
        state = finish(house, found.run.run_id)
        took: list[float] = [each["seconds"] for each in worker.events(0, "sweep.batch") if "seconds" in each]
    assert state == "done", f"expected the run to end done, got {state}"
    tenth = max(1, len(took) // 10)
    say(f"{layout}: {len(took)} batches of about {SHORT_ROWS:,} rows")
    return median(took[-tenth:]) / median(took[:tenth])
