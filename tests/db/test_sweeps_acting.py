"""Acting sweeps: claimed in a transaction, acted on in none, settled in another with the receipt."""

from typing import Any

import pytest

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Acted, Acting, Batch, Page, Sweep
from pushops.sweeps.work import work
from tests.errands import Errands, make_errands
from tests.sweepdb import Conn, batch_states, drive, opened, receipts, scalar
from tests.sweeping import expire_leases

TEST = Order(started_by="test")


@pytest.fixture
def errands(pg: Conn) -> Errands:
    make_errands(pg)
    return Errands(pg)


def undone(pg: Conn) -> int:
    found: int = scalar(pg, "SELECT count(*) FROM errand WHERE done_at IS NULL OR claimed_by IS NOT NULL")
    return found


def test_every_row_is_acted_on_once_with_no_transaction_open_meanwhile(
    settings: Settings, pg: Conn, errands: Errands
) -> None:
    transactions: list[int] = []
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE application_name = 'pushops' AND datname = current_database() AND xact_start IS NOT NULL"""
    errands.before = lambda _rt: transactions.append(scalar(pg, query))
    with opened(settings, sweep_batch_rows=4) as rt:
        run = drive(rt, errands.sweep, catalog=errands.catalog)
    assert transactions == [0, 0, 0]
    assert errands.done == list(range(1, 11))
    assert (run.state, receipts(pg, run.run_id), undone(pg)) == ("done", (10, 0), 0)


def test_an_act_that_returns_nothing_is_settled_all_the_same(settings: Settings, pg: Conn, errands: Errands) -> None:
    seen: list[Any] = []

    def settle(tx: Tx, batch: Batch, acted: Acted) -> int:
        seen.append(acted)
        return errands.settle(tx, batch, Acted(0, result=errands.done))

    def act(_rt: Runtime, page: Page) -> Acted:
        errands.done += page.rows
        return Acted(0)

    acting = Acting(errands.claim, act, settle)
    sweep = Sweep(**(vars(errands.sweep) | {"acting": acting}))
    with opened(settings) as rt:
        run = drive(rt, sweep, catalog={"errands": sweep})
    assert seen == [Acted(0)]
    assert (run.state, receipts(pg, run.run_id), undone(pg)) == ("done", (10, 0), 0)


def test_a_worker_that_lost_its_claim_settles_nothing(settings: Settings, pg: Conn, errands: Errands) -> None:
    """Another took the batch while it acted: what it would settle is rolled back, there is one receipt."""
    rivals: list[Any] = []

    def lose(rt: Runtime) -> None:
        if not rivals:
            rivals.append(None)
            expire_leases(pg)
            rivals.append(work(rt, errands.catalog, run_id))

    errands.before = lose
    with opened(settings) as rt:
        found = dispatch(rt, errands.sweep, None, TEST).run
        assert found is not None
        run_id = found.run_id
        work(rt, errands.catalog, run_id)
        run = drive(rt, errands.sweep, catalog=errands.catalog) if undone(pg) else found
    assert rivals[1].batches == 1
    assert sorted(errands.done) == sorted([*range(1, 11), *range(1, 11)])  # at least once: both did act
    assert receipts(pg, run.run_id) == (10, 0)
    assert undone(pg) == 0


class Died(BaseException):
    """The process is gone: nobody records anything."""


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_between_claim_and_settlement_is_tried_again(
    after: bool, settings: Settings, pg: Conn, errands: Errands
) -> None:
    acting = errands.sweep.acting
    assert acting is not None

    def die(rt: Runtime, page: Page) -> Any:
        if after:
            acting.act(rt, page)
        raise Died

    deadly = Sweep(**(vars(errands.sweep) | {"acting": Acting(acting.claim, die, acting.settle)}))
    with opened(settings) as rt:
        found = dispatch(rt, errands.sweep, None, TEST).run
        assert found is not None
        with pytest.raises(Died):
            work(rt, {"errands": deadly}, found.run_id)
        assert batch_states(pg, found.run_id) == {"claimed": 1}
        assert receipts(pg, found.run_id) == (0, 0)
        assert undone(pg) == 10
        expire_leases(pg)
        run = drive(rt, errands.sweep, catalog=errands.catalog)
    assert errands.done == [*range(1, 11)] * (2 if after else 1)
    assert (run.state, receipts(pg, run.run_id), undone(pg)) == ("done", (10, 0), 0)


def test_an_act_that_fails_is_cut_down_to_the_row_that_fails(settings: Settings, pg: Conn, errands: Errands) -> None:
    acting = errands.sweep.acting
    assert acting is not None

    def act(rt: Runtime, page: Page) -> Any:
        if 7 in page.rows:
            raise ValueError("a secret")
        return acting.act(rt, page)

    sweep = Sweep(**(vars(errands.sweep) | {"acting": Acting(acting.claim, act, acting.settle)}))
    with opened(settings) as rt:
        run = drive(rt, sweep, catalog={"errands": sweep})
    assert (run.state, run.why) == ("done", "1 quarantined")
    assert sorted(errands.done) == [n for n in range(1, 11) if n != 7]
    assert receipts(pg, run.run_id) == (9, 0)
    assert pg.execute("SELECT identity, error FROM sweep_quarantine").fetchall() == [("7", "ValueError")]
