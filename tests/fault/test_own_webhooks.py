"""The webhook log of examples/: what the usual ways to clean it up lose, and the sweep keeps, on the same rows."""

from typing import Any, Final

import psycopg
import pytest

from pushops.retention.catalog import catalog
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import work
from tests.commands import call
from tests.own import (
    BY_AGE,
    BY_IDS,
    FIND_IDS,
    KINDS,
    OVER,
    REOPEN,
    WEBHOOKS,
    Pg,
    config,
    deliveries,
    make_deliveries,
    with_section,
)
from tests.sweepdb import drive, opened
from tests.sweeping import quick

ROWS: Final = 30
FORCED: Final = Order("test", force=True)


@pytest.fixture
def rt(settings: Settings) -> Any:
    with opened(with_section(settings, WEBHOOKS, page_rows=10)) as found:
        yield found


@pytest.fixture
def sweep(rt: Runtime, pg: Pg) -> Sweep:
    """The example's sweep, over a log with rows of every kind."""
    make_deliveries(pg, ROWS)
    return catalog(rt)[WEBHOOKS]


def drive_to_end(rt: Runtime, sweep: Sweep) -> None:
    assert drive(rt, sweep, FORCED, catalog=catalog(rt)).state == "done"


def test_deleting_by_age_loses_what_awaits_its_retry_and_the_sweep_keeps_it(settings: Settings, pg: Pg) -> None:
    make_deliveries(pg, ROWS)
    with pg.transaction(force_rollback=True):
        pg.execute(BY_AGE)
        assert deliveries(pg) == {}, "expected the usual way to lose the unfinished ones too"
    done = call("sweep", "run", WEBHOOKS, "--inline", settings=quick(settings), PUSHOPS_CONFIG=config(WEBHOOKS))
    assert done.code == 0, done.text
    assert deliveries(pg) == dict.fromkeys(KINDS.keys() - OVER, ROWS)


def test_a_list_of_ids_loses_what_was_reopened_meanwhile_and_the_sweep_keeps_it(
    rt: Runtime, sweep: Sweep, pg: Pg
) -> None:
    with pg.transaction(force_rollback=True):
        ids = [row[0] for row in pg.execute(FIND_IDS)]
        reopened = _reopen(pg, 15)
        pg.execute(BY_IDS, [ids])
        assert not _there(pg, reopened), "expected the usual way to lose the reopened one"
    run = dispatch(rt, sweep, None, FORCED).run
    assert run is not None
    reopened = _reopen(pg, 15)  # its page is written, its batch has not begun
    work(rt, catalog(rt), run.run_id)
    drive_to_end(rt, sweep)
    assert _there(pg, reopened)
    assert sum(deliveries(pg).get(kind, 0) for kind in OVER) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_one_that_is_being_reopened_while_its_batch_runs_goes_only_where_that_comes_to_nothing(
    rt: Runtime, sweep: Sweep, pg: Pg, database_url: str, *, kept: bool
) -> None:
    run = dispatch(rt, sweep, None, FORCED).run
    assert run is not None
    with psycopg.connect(database_url) as other:
        reopened = _reopen(other, 15)
        work(rt, catalog(rt), run.run_id)
        assert sum(deliveries(pg).get(kind, 0) for kind in OVER) == 1, "expected the batch to wait for nobody"
        if not kept:
            other.rollback()
    drive_to_end(rt, sweep)
    assert _there(pg, reopened) == kept


def _reopen(conn: Pg, nth: int) -> Any:
    row = conn.execute(REOPEN, [nth]).fetchone()
    assert row is not None
    return row[0]


def _there(pg: Pg, delivery: Any) -> bool:
    return pg.execute("SELECT 1 FROM public.webhook_delivery WHERE delivery_id = %s", [delivery]).fetchone() is not None
