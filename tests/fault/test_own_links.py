"""The short links of examples/: many ended ones beside few that live, under a statement timeout, and workers that die.

The one statement that one would write is cancelled and leaves every row; the sweep ends exact, wherever it is killed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from pushops import tasks
from pushops.retention.catalog import catalog
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from pushops.sweeps import service
from tests.commands import call, spawn
from tests.own import LINKS, ONE_SHOT, Pg, codes, config, make_links, with_section
from tests.sweepdb import scalar
from tests.sweeping import (
    TENDING,
    Process,
    assert_every_batch_has_one_receipt,
    closed,
    count,
    expire_leases,
    publishing,
    quick,
    run_of,
    start,
    state_of,
    wait_until,
    workers,
)

LIMIT: Final = timedelta(milliseconds=100)  # a quarter of what the one statement takes over the small table
LONG_LIMIT: Final = timedelta(milliseconds=500)  # a fifth, over the large one
PAGE: Final = 5_000
LARGE: Final = (300_000, 30_000)

# Whoever deletes the gated link waits in mid-transaction for whoever holds the lock.
GATE: Final = """
CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 SET statement_timeout = 0 AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN OLD; END $$;
CREATE TRIGGER gate BEFORE DELETE ON public.short_link FOR EACH ROW WHEN (OLD.owner = 'gated')
EXECUTE FUNCTION public.gate()"""
GATED: Final = """
UPDATE public.short_link SET owner = 'gated'
 WHERE code = (SELECT code FROM public.short_link WHERE owner = 'over' ORDER BY expires_at, code OFFSET %s LIMIT 1)"""
WAITING: Final = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def test_one_statement_under_a_timeout_deletes_nothing_and_the_sweep_finishes(settings: Settings, pg: Pg) -> None:
    live = make_links(pg, 40_000, 4_000)
    _assert_one_shot_deletes_nothing(pg, LIMIT)
    limited = quick(settings, statement_timeout=LIMIT, sweep_batch_rows=500, sweep_max_share=0.2)
    held = _sweep(limited)
    assert held.code == 3, held.text
    assert "would take 40000 of 44000 rows" in " ".join(held.text.split())
    done = _sweep(limited, "--force")
    assert done.code == 0, done.text
    assert codes(pg) == live


@pytest.mark.long
def test_a_run_without_a_broker_that_is_killed_in_a_batch_is_finished_by_the_next(settings: Settings, pg: Pg) -> None:
    live = make_links(pg, 2_000, 200)
    hurried = quick(settings, sweep_batch_rows=100)
    with gate(pg, 1_050):
        victim = spawn("sweep", "run", LINKS, "--inline", settings=hurried, PUSHOPS_CONFIG=config(LINKS))
        wait_for_a_worker_in_mid_transaction(pg)
        victim.kill()
        victim.communicate()
    assert 0 < len(codes(pg) - live) < 2_000, "expected it to die half-way"
    expire_leases(pg)
    done = _sweep(hurried)
    assert done.code == 0, done.text
    assert codes(pg) == live
    assert_every_batch_has_one_receipt(pg, rows=2_000)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_killed_in_the_first_a_middle_and_the_last_page_of_a_large_table_leave_it_exact(
    settings: Settings, valkey_url: str, pg: Pg
) -> None:
    over, _ = LARGE
    live = make_links(pg, *LARGE)
    _assert_one_shot_deletes_nothing(pg, LONG_LIMIT)
    limited = quick(settings, valkey_url, statement_timeout=LONG_LIMIT, sweep_batch_rows=PAGE)
    with publishing(limited), runtime(with_section(limited, LINKS, page_rows=PAGE)) as rt:
        run = run_of(start(rt, catalog(rt)[LINKS]))
        for page in (0, over // PAGE // 2, over // PAGE - 1):
            _kill_in_page(rt, pg, limited, page)
            assert not closed(pg, run)
        with _working(limited) as crew:
            _finish(rt, pg, run, crew)
    assert state_of(pg, run) == ("done", None)
    assert codes(pg) == live
    assert_every_batch_has_one_receipt(pg, run, rows=over)
    assert scalar(pg, "SELECT sum(attempts - 1)::int FROM sweep_batch") >= 3, "expected three batches to be done again"


def _kill_in_page(rt: Runtime, pg: Pg, settings: Settings, page: int) -> None:
    """SIGKILL a worker while it deletes that page, and let its claim run out."""
    done = LARGE[0] - len(codes(pg)) + LARGE[1]
    with gate(pg, page * PAGE + PAGE // 2 - done), _working(settings, 1) as victim:
        wait_until(lambda: _tend(rt) or count(pg, WAITING) > 0, expected=victim.tail, poll=TENDING, timeout=60)
        victim.kill()
    expire_leases(pg)


@contextmanager
def gate(pg: Pg, nth: int) -> Iterator[None]:
    """While open, whoever deletes the nth of the ended links that are left waits in mid-transaction."""
    if scalar(pg, "SELECT to_regproc('public.gate') IS NULL"):
        pg.execute(GATE)
    pg.execute(GATED, [nth])
    pg.execute("SELECT pg_advisory_lock(42)")
    try:
        yield
    finally:
        pg.execute("SELECT pg_advisory_unlock(42)")
        pg.execute("UPDATE public.short_link SET owner = 'over' WHERE owner = 'gated'")


def wait_for_a_worker_in_mid_transaction(pg: Pg) -> None:
    wait_until(lambda: count(pg, WAITING) > 0, expected="a worker that waits at the gate")


def _assert_one_shot_deletes_nothing(pg: Pg, limit: timedelta) -> None:
    before = count(pg, "SELECT count(*) FROM public.short_link")
    pg.execute(f"SET statement_timeout = {limit // timedelta(milliseconds=1)}".encode())
    with pytest.raises(psycopg.errors.QueryCanceled):
        pg.execute(ONE_SHOT)
    pg.execute("RESET statement_timeout")
    assert count(pg, "SELECT count(*) FROM public.short_link") == before


def _sweep(settings: Settings, *options: str) -> Any:
    return call("sweep", "run", LINKS, "--inline", *options, settings=settings, PUSHOPS_CONFIG=config(LINKS))


def _working(settings: Settings, n: int = 2) -> Any:
    pool = "solo" if n == 1 else "prefork"
    return workers(settings, n, pool=pool, environment={"PUSHOPS_CONFIG": config(LINKS)})


def _tend(rt: Runtime) -> None:
    service.tend(rt, catalog(rt), tasks.bell(rt), granting=True)


def _finish(rt: Runtime, pg: Pg, run: UUID, crew: Process) -> None:
    def done() -> bool:
        _tend(rt)
        return closed(pg, run)

    wait_until(done, expected=crew.tail, poll=TENDING, timeout=60)
