"""Workers of a sweep that acts: killed in the middle of an act, asked to wait in it, told everything twice."""

import os
import signal
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from pushops import tasks
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from pushops.sweeps import service
from pushops.sweeps.dispatch import Dispatched
from tests.errands import CONFIG, ENVIRONMENT, ERRANDS, make_errands
from tests.sweeping import (
    TENDING,
    Process,
    assert_every_batch_has_one_receipt,
    closed,
    count,
    expire_leases,
    publishing,
    run_of,
    start,
    state_of,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

Pg = psycopg.Connection[Any]
CATALOG: Final = {**SWEEPS, ERRANDS.name: ERRANDS}
TWICE: Final = {**ENVIRONMENT, "FAULT": "twice"}
BOTH: Final = CONFIG.replace('["tests.errands"]', '["tests.errands", "tests.hostile"]')
UNDONE: Final = "SELECT count(*) FROM errand WHERE done_at IS NULL"
ACTS: Final = "SELECT count(*) FROM errand_act"


@pytest.fixture(autouse=True)
def _errands(pg: Pg) -> None:
    make_errands(pg, 40)


def close_gate(pg: Pg) -> None:
    pg.execute("INSERT INTO errand_gate VALUES (true)")


def open_gate(pg: Pg) -> None:
    pg.execute("DELETE FROM errand_gate")


def tend(rt: Runtime) -> list[Dispatched]:
    return service.tend(rt, CATALOG, tasks.bell(rt), granting=True)


def finish(rt: Runtime, pg: Pg, run: UUID, crew: Process) -> None:
    def done() -> bool:
        tend(rt)
        return closed(pg, run)

    wait_until(done, expected=lambda: f"the run's end\n{crew.tail()}", poll=TENDING)


def wait_for_acts(pg: Pg, acts: int, rt: Runtime | None = None) -> None:
    """With a runtime also tended meanwhile, as beat would."""
    wait_until(
        lambda: (rt is None or tend(rt)) and count(pg, ACTS) >= acts, expected=f"act number {acts}", poll=TENDING
    )


def test_a_worker_killed_in_mid_act_leaves_its_batch_to_another_after_the_lease(
    hurried: Settings, engine: Runtime, pg: Pg
) -> None:
    """What it did before stays done, and is not done again (D05, D07)."""
    close_gate(pg)
    with publishing(hurried):
        with workers(hurried, 1, pool="solo", config=CONFIG, environment=ENVIRONMENT) as victim:
            run = run_of(start(engine, ERRANDS))
            wait_for_acts(pg, 1)
            pg.execute("UPDATE errand SET done_at = now() WHERE id = 1")  # the act's own first row
            victim.kill()
        open_gate(pg)
        lease = "SELECT count(*) FROM sweep_batch WHERE state = 'claimed' AND claimed_until > clock_timestamp()"
        assert count(pg, lease) == 1, "the dead worker's claim stands for its lease"
        with workers(hurried, 1, config=CONFIG, environment=ENVIRONMENT) as rescuer:
            finish(engine, pg, run, rescuer)
    assert state_of(pg, run) == ("done", None)
    assert count(pg, UNDONE) == 0
    assert_every_batch_has_one_receipt(pg, run, rows=39)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 2


def test_a_batch_in_which_three_workers_were_killed_is_set_apart_until_it_is_released(
    hurried: Settings, pg: Pg
) -> None:
    close_gate(pg)
    roomy = hurried.model_copy(update={"sweep_max_parallel": 8})  # each death leaves a slot taken until its lease ends
    page = {"page": 40}
    with (
        runtime(roomy) as rt,
        publishing(roomy),
        workers(roomy, 1, config=CONFIG, environment=ENVIRONMENT) as pool,
    ):
        run = run_of(start(rt, ERRANDS, options=page))
        for deaths in (1, 2, 3):
            wait_for_acts(pg, deaths, rt)
            for child in pool.children():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            expire_leases(pg)
        open_gate(pg)
        finish(rt, pg, run, pool)
        assert state_of(pg, run) == ("done", "1 quarantined")
        assert pg.execute("SELECT state, attempts FROM sweep_batch").fetchall() == [("quarantined", 3)]
        assert count(pg, UNDONE) == 40
        service.release(rt, ERRANDS, actor="test")
        finish(rt, pg, run_of(start(rt, ERRANDS, options=page)), pool)
    assert count(pg, UNDONE) == 0
    assert_every_batch_has_one_receipt(pg, rows=40)


def test_a_run_paused_in_mid_act_stands_still_and_then_goes_on(hurried: Settings, engine: Runtime, pg: Pg) -> None:
    close_gate(pg)
    with publishing(hurried), workers(hurried, 1, config=CONFIG, environment=ENVIRONMENT) as crew:
        run = run_of(start(engine, ERRANDS, filter="odd"))
        wait_for_acts(pg, 1)
        service.pause_run(engine, run, actor="test", why="wait")
        wait_until(lambda: state_of(pg, run)[0] == "paused", expected=crew.tail)  # nobody tends: the worker says so
        open_gate(pg)
        service.resume_run(engine, run, actor="test")
        finish(engine, pg, run, crew)
    assert count(pg, UNDONE) == 20
    assert_every_batch_has_one_receipt(pg, run, rows=20)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1, "to be put back is no death"


def test_two_runs_with_every_message_twice_do_every_row_once(hurried: Settings, pg: Pg) -> None:
    """One slot for both of them: neither waits for the other's end (D02)."""
    narrow = hurried.model_copy(update={"sweep_max_parallel": 1})
    with publishing(narrow), runtime(narrow) as rt, workers(narrow, 2, config=BOTH, environment=TWICE) as crew:
        close_gate(pg)
        found = [run_of(start(rt, ERRANDS, filter=kind, options={"page": 2})) for kind in ("odd", "even")]
        wait_for_acts(pg, 1)
        open_gate(pg)
        for run in found:
            finish(rt, pg, run, crew)
    for run in found:
        assert state_of(pg, run) == ("done", None)
        assert_every_batch_has_one_receipt(pg, run)
    assert count(pg, "SELECT sum(rows_done) FROM sweep_receipt") == 40
    assert count(pg, ACTS) == 20, "one act for each page"
