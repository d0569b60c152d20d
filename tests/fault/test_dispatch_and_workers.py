"""A dispatcher and workers at the same run: neither waits for the other, and one run's trouble is not another's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pushops.retention.policies import PURGE_TOMBSTONES, SCRUB_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.sweeps import service
from pushops.sweeps.dispatch import Order, dispatch
from tests.sweeping import count, make_rows, run_of, wait_until

ORDER = Order(started_by="test", opening=False)
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def concluding(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that holds locks, as a worker does while it concludes a run."""
    with psycopg.connect(make_conninfo(database_url, options="-c search_path=pushops -c lock_timeout=500")) as conn:
        yield conn


def test_a_worker_that_concludes_a_run_and_a_dispatcher_take_their_locks_in_one_order(
    runtime: Runtime, pg: psycopg.Connection[Any], concluding: psycopg.Connection[Any]
) -> None:
    """Run, then control row: the other way round ended both in a lock timeout."""
    make_rows(pg, 10)
    run = run_of(dispatch(runtime, PURGE_TOMBSTONES, None, Order(started_by="test", force=True)))
    concluding.execute("SELECT FROM sweep_run WHERE run_id = %s FOR UPDATE", [run])
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(dispatch, runtime, PURGE_TOMBSTONES, None, ORDER)
        wait_until(lambda: count(pg, WAITING) == 1, expected="a dispatcher that waits for the run")
        concluding.execute("UPDATE sweep_control SET succeeded_at = now() WHERE sweep = %s", [PURGE_TOMBSTONES.name])
        concluding.commit()
        assert found.result().run is not None


def test_a_run_that_cannot_be_tended_does_not_keep_the_others_from_it(
    runtime: Runtime, pg: psycopg.Connection[Any], concluding: psycopg.Connection[Any]
) -> None:
    """The first open run's row is locked for longer than anybody waits; the second is looked at all the same."""
    make_rows(pg, 10, scrubbed=False)
    for sweep in (PURGE_TOMBSTONES, SCRUB_TOMBSTONES):
        dispatch(runtime, sweep, None, Order(started_by="test", force=True))
    concluding.execute("SELECT FROM sweep_run WHERE sweep = %s FOR UPDATE", [PURGE_TOMBSTONES.name])
    stuck, looked_at = service.tend(runtime, SWEEPS, None, granting=True)
    assert (stuck.outcome, stuck.why) == ("failed", "lock_timeout")
    assert looked_at.outcome == "dispatched"
    assert looked_at.run is not None
    assert looked_at.run.sweep == SCRUB_TOMBSTONES.name
