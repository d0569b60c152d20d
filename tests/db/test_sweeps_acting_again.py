"""Acts that leave rows for later, that end their run, that are asked to stop, and what is counted of them."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import service, store
from pushops.sweeps.acting import LOOK
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.store import Progress, RunRow
from pushops.sweeps.sweep import Acted, Page
from pushops.sweeps.work import Outcome, Worked, work
from tests.errands import ZERO, Errands, make_errands
from tests.sweepdb import Conn, batch_states, drive, in_background, one, opened, receipts, run_of, scalar
from tests.sweeping import expire_leases

TEST = Order(started_by="test")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def errands(pg: Conn) -> Errands:
    make_errands(pg)
    return Errands(pg)


@pytest.fixture
def rt(settings: Settings, recorded: list[Any]) -> Iterator[Runtime]:
    with opened(settings, recorded) as found:
        yield found


def opening(rt: Runtime, errands: Errands, **order: Any) -> RunRow:
    found = dispatch(rt, errands.sweep, None, Order("test", **order)).run
    assert found is not None
    return found


def progress(rt: Runtime, run_id: UUID) -> Progress:
    return service.show_run(rt, run_id)[1]


def doing(errands: Errands, count: int, again: timedelta | None = ZERO) -> Callable[[Runtime, Page], Acted]:
    """An act that does so many rows of its page and leaves the others."""

    def act(rt: Runtime, page: Page) -> Acted:
        errands.act(rt, Page(**(vars(page) | {"rows": page.rows[:count]})))
        return Acted(count, again if len(page.rows) > count else None, result=page.rows[:count])

    return act


# For later -----------------------------------------------------------------------------------------------------------


def test_rows_left_for_later_are_done_in_the_end_with_one_receipt_no_death_and_no_failure(
    rt: Runtime, pg: Conn, errands: Errands
) -> None:
    """Put back four times: more often than a batch may be lost."""
    run = drive(rt, errands.sweep, catalog=errands.acting_as(doing(errands, 2)))
    assert (run.state, run.why, receipts(pg, run.run_id)) == ("done", None, (10, 0))
    assert errands.done == list(range(1, 11))
    query = "SELECT attempts, failures, rows_before, state FROM sweep_batch"
    assert one(pg, query) == (1, 0, 8, "done")


def test_what_is_put_back_is_counted_before_it_has_a_receipt(rt: Runtime, pg: Conn, errands: Errands) -> None:
    run = opening(rt, errands)
    work(rt, errands.acting_as(doing(errands, 3, MINUTE)), run.run_id)
    assert batch_states(pg, run.run_id) == {"due": 1}
    assert (receipts(pg, run.run_id), progress(rt, run.run_id).rows_done) == ((0, 0), 3)


def test_a_batch_put_back_waits_for_its_time_and_keeps_its_run_open(rt: Runtime, pg: Conn, errands: Errands) -> None:
    run = opening(rt, errands)
    first = work(rt, errands.acting_as(doing(errands, 3, MINUTE)), run.run_id)
    assert (first.batches, first.ring_after) == (1, None)
    assert work(rt, errands.catalog, run.run_id).outcome is Outcome.NOTHING_DUE
    dispatch(rt, errands.sweep, None, TEST)
    assert run_of(rt, run.run_id).state == "running"
    assert drive(rt, errands.sweep, catalog=errands.catalog).state == "done"
    assert receipts(pg, run.run_id) == (10, 0)


def test_a_batch_put_back_for_a_moment_is_rung_for_by_its_worker(rt: Runtime, errands: Errands) -> None:
    run = opening(rt, errands)
    soon = work(rt, errands.acting_as(doing(errands, 3, timedelta(seconds=2))), run.run_id)
    assert soon.ring_after is not None
    assert ZERO < soon.ring_after <= timedelta(seconds=2)


def test_rows_that_went_meanwhile_close_their_batch_with_what_it_did(rt: Runtime, pg: Conn, errands: Errands) -> None:
    run = opening(rt, errands)
    work(rt, errands.acting_as(doing(errands, 4, MINUTE)), run.run_id)
    pg.execute("DELETE FROM errand")
    assert drive(rt, errands.sweep, catalog=errands.catalog).state == "done"
    assert receipts(pg, run.run_id) == (4, 0)


def test_who_lost_the_batch_puts_nothing_back(rt: Runtime, pg: Conn, errands: Errands) -> None:
    run = opening(rt, errands)

    def act(rt: Runtime, page: Page) -> Acted:
        expire_leases(pg)
        work(rt, errands.catalog, run.run_id)
        return Acted(2, again=ZERO, result=page.rows[:2])

    work(rt, errands.acting_as(act), run.run_id)
    assert receipts(pg, run.run_id) == (10, 0)
    assert batch_states(pg, run.run_id) == {"done": 1}


def test_what_an_act_says_stands_in_its_receipt(rt: Runtime, pg: Conn, errands: Errands) -> None:
    def act(rt: Runtime, page: Page) -> Acted:
        return Acted(0, detail={"taken": 7}, result=errands.act(rt, page).result)

    drive(rt, errands.sweep, catalog=errands.acting_as(act))
    assert scalar(pg, "SELECT detail FROM sweep_receipt") == {"taken": 7}


# The message twice ---------------------------------------------------------------------------------------------------


def test_a_second_message_finds_nothing_while_the_act_goes_on_and_the_receipt_after_it(
    rt: Runtime, pg: Conn, errands: Errands
) -> None:
    run = opening(rt, errands)
    batch = scalar(pg, "SELECT batch_id FROM sweep_batch")
    seconds: list[Worked] = []
    errands.before = lambda rt: seconds.append(work(rt, errands.catalog, run.run_id, [batch]))
    work(rt, errands.acting_as(doing(errands, 5)), run.run_id, [batch])
    assert [second.outcome for second in seconds] == [Outcome.NOTHING_DUE] * 2
    assert work(rt, errands.catalog, run.run_id, [batch]).outcome is Outcome.ALREADY_APPLIED
    assert (receipts(pg, run.run_id), errands.done) == ((10, 0), list(range(1, 11)))


# The end of the run --------------------------------------------------------------------------------------------------


def test_an_act_ends_its_run_with_its_reason_and_the_rows_so_far(
    rt: Runtime, pg: Conn, errands: Errands, recorded: list[Any]
) -> None:
    def act(rt: Runtime, page: Page) -> Acted:
        if 4 not in page.rows:
            return errands.act(rt, page)
        with rt.db.transaction() as tx:
            store.add_outcomes(tx, UUID(page.run_id), {"taken": 1, "refused": 5}, streak=5)
        return Acted(1, stop="five failures in a row", result=[4])

    run = opening(rt, errands, options={"page": 3})
    work(rt, errands.acting_as(act), run.run_id)
    after = run_of(rt, run.run_id)
    assert (after.state, after.why) == ("stopped", "five failures in a row")
    assert (after.outcomes, after.failures_in_row) == ({"taken": 1, "refused": 5}, 5)
    assert (receipts(pg, run.run_id), progress(rt, run.run_id).rows_done) == ((4, 0), 4)
    assert batch_states(pg, run.run_id) == {"done": 2, "cancelled": 2}
    (closed,) = [fields for _, name, fields in recorded if name == "sweep.closed"]
    assert (closed["state"], closed["outcomes"]) == ("stopped", '{"taken": 1, "refused": 5}')
    assert opening(rt, errands).run_id != run.run_id


def test_a_stop_takes_the_batches_that_others_have_in_hand(rt: Runtime, pg: Conn, errands: Errands) -> None:
    """The other one's receipt is refused; what it did is settled by its own means, or not at all."""
    run = opening(rt, errands, options={"page": 5})
    others: list[Worked] = []

    def stop(_rt: Runtime, _page: Page) -> Acted:
        return Acted(0, stop="enough", result=[])

    def act(rt: Runtime, page: Page) -> Acted:
        others.append(work(rt, errands.acting_as(stop), run.run_id))
        return errands.act(rt, page)

    work(rt, errands.acting_as(act), run.run_id)
    assert len(others) == 1
    after = run_of(rt, run.run_id)
    assert (after.state, after.why) == ("stopped", "enough")
    assert batch_states(pg, run.run_id) == {"done": 1, "cancelled": 1}
    assert receipts(pg, run.run_id) == (0, 0)


def test_two_that_stop_at_once_end_the_run_once(rt: Runtime, pg: Conn, errands: Errands, recorded: list[Any]) -> None:
    run = opening(rt, errands, options={"page": 5})
    both = threading.Barrier(2, timeout=10)

    def stop(_rt: Runtime, page: Page) -> Acted:
        both.wait()
        return Acted(0, stop=f"seen at {page.rows[0]}", result=[])

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, rt, errands.acting_as(stop), run.run_id) for _ in range(2)]:
            future.result(20)
    assert run_of(rt, run.run_id).state == "stopped"
    assert len([name for _, name, _ in recorded if name == "sweep.closed"]) == 1
    assert batch_states(pg, run.run_id) == {"done": 1, "cancelled": 1}


# Asked in the middle -------------------------------------------------------------------------------------------------


@pytest.fixture
def standing(errands: Errands) -> "Standing":
    return Standing(errands)


class Standing:
    """An act that does two rows and then stands until it is asked to stop."""

    def __init__(self, errands: Errands) -> None:
        self.errands = errands
        self.stands = threading.Event()
        self.waited = 0.0

    def act(self, rt: Runtime, page: Page) -> Acted:
        self.stands.set()
        began = time.monotonic()
        while not page.asked():
            assert time.monotonic() - began < 20, "expected to be asked"
            time.sleep(0.01)
        self.waited = time.monotonic() - began
        return doing(self.errands, 2)(rt, page)


ASKS: dict[str, Callable[[Runtime, Errands, UUID], object]] = {
    "paused": lambda rt, _, run: service.pause_run(rt, run, actor="test", why="wait"),
    "cancelled": lambda rt, _, run: service.cancel_run(rt, run, actor="test", why="no more"),
    "running": lambda rt, errands, _: service.pause_sweep(rt, errands.sweep, actor="test", why="all of them"),
}


@pytest.mark.parametrize("state", ASKS)
def test_an_act_sees_a_pause_or_a_cancel_and_what_it_did_stays_done(
    state: str, rt: Runtime, pg: Conn, errands: Errands, standing: Standing
) -> None:
    run = opening(rt, errands)
    with in_background(lambda: work(rt, errands.acting_as(standing.act), run.run_id)):
        assert standing.stands.wait(10)
        ASKS[state](rt, errands, run.run_id)
    assert LOOK * 0.9 <= standing.waited < LOOK + 5
    after, done = service.show_run(rt, run.run_id)
    assert (after.state, done.rows_done, done.claimed) == (state, 2, 0)
    assert batch_states(pg, run.run_id) == {"cancelled" if state == "cancelled" else "due": 1}
    assert errands.done == [1, 2]


def test_a_run_paused_in_mid_act_goes_on_where_it_was(
    rt: Runtime, pg: Conn, errands: Errands, standing: Standing
) -> None:
    run = opening(rt, errands)
    with in_background(lambda: work(rt, errands.acting_as(standing.act), run.run_id)):
        assert standing.stands.wait(10)
        service.pause_run(rt, run.run_id, actor="test", why="wait")
    service.resume_run(rt, run.run_id, actor="test")
    assert drive(rt, errands.sweep, catalog=errands.catalog).run_id == run.run_id
    assert (receipts(pg, run.run_id), errands.done) == ((10, 0), list(range(1, 11)))


def test_an_act_looks_at_most_once_a_second(rt: Runtime, errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    look = store.asked
    monkeypatch.setattr(store, "asked", lambda tx, run: looks.append(time.monotonic()) or look(tx, run))

    def act(rt: Runtime, page: Page) -> Acted:
        until = time.monotonic() + LOOK * 1.5
        while time.monotonic() < until:
            assert not page.asked()
            time.sleep(0.005)
        return errands.act(rt, page)

    work(rt, errands.acting_as(act), opening(rt, errands).run_id)
    assert len(looks) == 1


def test_an_act_that_cannot_ask_stops(settings: Settings, pg: Conn, errands: Errands) -> None:
    said: list[bool] = []

    def act(rt: Runtime, page: Page) -> Acted:
        pg.execute("ALTER TABLE sweep_run RENAME TO away")
        time.sleep(LOOK)
        said.append(page.asked())
        pg.execute("ALTER TABLE away RENAME TO sweep_run")
        return errands.act(rt, page)

    with opened(settings) as rt:
        drive(rt, errands.sweep, catalog=errands.acting_as(act))
    assert said == [True]


# What an act is given ------------------------------------------------------------------------------------------------


def test_an_act_knows_its_run_and_how_long_it_may_begin_things(rt: Runtime, errands: Errands) -> None:
    before = time.monotonic()
    run = drive(rt, errands.sweep, Order("test", filter="odd", options={"rate": 3}), catalog=errands.catalog)
    (page,) = errands.pages
    assert (page.run_id, page.filter, page.options) == (str(run.run_id), "odd", {"rate": 3})
    assert (page.opened_at, page.cutoffs["asked"]) == (run.opened_at, run.opened_at)
    assert 5 <= page.stop_at - before < 15


def test_who_acts_holds_no_connection_meanwhile(settings: Settings, errands: Errands) -> None:
    """With a pool of one: an act that asks it for a connection would wait for its own worker's."""

    def act(rt: Runtime, page: Page) -> Acted:
        with rt.db.transaction() as tx:
            store.add_outcomes(tx, UUID(page.run_id), {"done": len(page.rows)})
        return errands.act(rt, page)

    with opened(settings, pool_size=1) as rt:
        run = drive(rt, errands.sweep, catalog=errands.acting_as(act))
    assert run.outcomes == {"done": 10}


@pytest.mark.parametrize(("asked", "least"), [(None, 40), (lambda _settings: timedelta(seconds=300), 290)])
def test_claim_and_slot_are_held_for_as_long_as_an_act_may_take(
    asked: Any, least: int, rt: Runtime, pg: Conn, errands: Errands
) -> None:
    """Ten seconds of work and a network deadline of 25, or what the sweep says."""
    held: list[tuple[Any, ...]] = []
    query = """SELECT extract(epoch FROM b.claimed_until - clock_timestamp())::int,
                      extract(epoch FROM s.free_at - clock_timestamp())::int
                 FROM sweep_batch AS b, sweep_slot AS s WHERE b.state = 'claimed' AND s.holder IS NOT NULL"""

    def act(rt: Runtime, page: Page) -> Acted:
        held.append(one(pg, query))
        return errands.act(rt, page)

    work(rt, errands.acting_as(act, lease=asked), opening(rt, errands).run_id)
    assert min(held[0]) >= least


def test_pages_are_as_large_as_the_sweep_says_whatever_batches_were_like(
    settings: Settings, pg: Conn, errands: Errands
) -> None:
    with opened(settings, sweep_pause_ms=100) as rt:
        opening(rt, errands, filter="odd")
        pg.execute("UPDATE sweep_control SET batch_rows = 1")
        run = drive(rt, errands.sweep, Order("test", options={"page": 4}), catalog=errands.catalog)
    assert [len(page.rows) for page in errands.pages] == [4, 4, 2]
    assert run.page_rows == 4
    assert scalar(pg, "SELECT batch_rows FROM sweep_control") == 1


def test_nothing_is_waited_for_between_two_acts(settings: Settings, errands: Errands) -> None:
    with opened(settings, sweep_pause_ms=30_000) as rt:
        began = time.monotonic()
        drive(rt, errands.sweep, Order("test", options={"page": 2}), catalog=errands.catalog)
    assert time.monotonic() - began < 10
    assert len(errands.pages) == 5


# Outcomes ------------------------------------------------------------------------------------------------------------


def add(rt: Runtime, run_id: UUID, counts: dict[str, int], **streak: Any) -> int:
    with rt.db.transaction() as tx:
        return store.add_outcomes(tx, run_id, counts, **streak)


def test_outcomes_add_up_by_name(rt: Runtime, errands: Errands) -> None:
    run = opening(rt, errands)
    add(rt, run.run_id, {"replayed": 3, "held": 1})
    add(rt, run.run_id, {})
    add(rt, run.run_id, {"replayed": 2, "in_doubt": 1})
    assert run_of(rt, run.run_id).outcomes == {"replayed": 5, "held": 1, "in_doubt": 1}


def test_failures_in_a_row_go_on_until_a_success_stands_between(rt: Runtime, errands: Errands) -> None:
    run = opening(rt, errands)
    said = [add(rt, run.run_id, {}, **each) for each in (
        {"streak": 2}, {"streak": 2}, {"streak": 0}, {"streak": 3, "reset": True}, {"reset": True},
    )]  # fmt: skip
    assert said == [2, 4, 4, 3, 0]


def test_outcomes_of_many_at_once_are_all_counted(rt: Runtime, errands: Errands) -> None:
    run = opening(rt, errands)
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda _: add(rt, run.run_id, {"failed": 1}, streak=1), range(60)))
    after = run_of(rt, run.run_id)
    assert (after.outcomes, after.failures_in_row) == ({"failed": 60}, 60)
    assert sorted(said) == list(range(1, 61)), "each one's answer is another"


def test_outcomes_of_an_unknown_run_are_nobodys(rt: Runtime) -> None:
    assert add(rt, uuid4(), {"failed": 1}, streak=1) == 0
