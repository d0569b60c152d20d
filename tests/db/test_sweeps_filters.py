"""Several runs of one sweep, each with its filter: opened, joined, worked on, previewed and tended by themselves."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from pushops.cli.run import as_json, described, summary
from pushops.errors import RefusedError
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import service, store
from pushops.sweeps.dispatch import PER_MESSAGE, Bell, Order, Outcome, dispatch
from pushops.sweeps.inline import run_inline
from pushops.sweeps.preview import preview
from pushops.sweeps.store import RunRow
from pushops.sweeps.work import Outcome as WorkOutcome
from pushops.sweeps.work import work
from tests.errands import Errands, make_errands
from tests.sweepdb import Conn, drive, opened, receipts, run_of, scalar

ODD = Order("test", filter="odd")
EVEN = Order("test", filter="even")


@pytest.fixture
def errands(pg: Conn) -> Errands:
    make_errands(pg)
    return Errands(pg)


@pytest.fixture
def rt(settings: Settings) -> Iterator[Runtime]:
    with opened(settings) as found:
        yield found


def opening(rt: Runtime, errands: Errands, order: Order) -> RunRow:
    found = dispatch(rt, errands.sweep, None, order).run
    assert found is not None
    return found


# Open ----------------------------------------------------------------------------------------------------------------


def test_runs_with_different_filters_are_open_together_and_take_their_own_rows(
    rt: Runtime, pg: Conn, errands: Errands
) -> None:
    odd, even = opening(rt, errands, ODD), opening(rt, errands, EVEN)
    assert odd.run_id != even.run_id
    for run in (even, odd):
        work(rt, errands.catalog, run.run_id)
    assert [page.filter for page in errands.pages] == ["even", "odd"]
    assert errands.done == [2, 4, 6, 8, 10, 1, 3, 5, 7, 9]
    for run in (odd, even):
        assert (run_of(rt, run.run_id).state, receipts(pg, run.run_id)) == ("done", (5, 0))


def test_the_same_filter_joins_its_open_run(rt: Runtime, errands: Errands) -> None:
    odd = opening(rt, errands, ODD)
    opening(rt, errands, EVEN)
    again = dispatch(rt, errands.sweep, None, ODD)
    assert again.run is not None
    assert (again.run.run_id, again.opened) == (odd.run_id, False)


def test_other_options_for_the_same_filter_are_refused_by_the_name_of_the_open_run(
    rt: Runtime, errands: Errands
) -> None:
    run = opening(rt, errands, replace(ODD, options={"rate": 5, "who": ["a"]}))
    assert opening(rt, errands, replace(ODD, options={"who": ("a",), "rate": 5})).run_id == run.run_id
    for options in ({}, {"rate": 6, "who": ["a"]}):
        with pytest.raises(RefusedError, match=str(run.run_id)):
            dispatch(rt, errands.sweep, None, replace(ODD, options=options))
    assert opening(rt, errands, replace(EVEN, options={"rate": 6})).run_id != run.run_id


def test_a_row_limit_counts_the_rows_of_its_own_filter(rt: Runtime, pg: Conn, errands: Errands) -> None:
    run = drive(rt, errands.sweep, replace(EVEN, row_limit=3), catalog=errands.catalog)
    assert (receipts(pg, run.run_id), errands.done) == ((3, 0), [2, 4, 6])


def test_a_sweep_without_filters_refuses_one_and_opens_nothing(rt: Runtime, pg: Conn) -> None:
    with pytest.raises(RefusedError, match="no filter"):
        dispatch(rt, PURGE_TOMBSTONES, None, ODD)
    assert scalar(pg, "SELECT count(*) FROM sweep_run") == 0


def test_a_window_without_settings_is_the_opening_of_the_run_and_counts_from_it(rt: Runtime, errands: Errands) -> None:
    """The count that the brake asks for is made before the run is opened: it must not find its own time too young."""
    braked = replace(errands.sweep, brake=True, predicate=f"({errands.sweep.predicate}) AND now() >= %(asked)s")
    with opened(rt.settings, sweep_max_share=0.9) as careful:
        run = dispatch(careful, braked, None, ODD).run
    assert run is not None
    assert (run.eligible_rows, run.rows_dispatched) == (5, 5)
    assert run.cutoff_times == {"asked": run.opened_at}


# Told ----------------------------------------------------------------------------------------------------------------


def ring_into(rung: list[tuple[UUID, Sequence[UUID]]]) -> Bell:
    return Bell(lambda run, ids: rung.append((run, list(ids))), lambda: 0)


def test_a_message_names_a_run_and_batches_and_never_the_filter(rt: Runtime, errands: Errands) -> None:
    rung: list[tuple[UUID, Sequence[UUID]]] = []
    long = Order("test", filter="x" * 500, options={"page": 1})
    sweep = replace(errands.sweep, filtered=lambda _text: {"kind": None})
    run = dispatch(rt, sweep, ring_into(rung), long).run
    assert run is not None
    assert {named for named, _ in rung} == {run.run_id}
    assert max(len(ids) for _, ids in rung) == PER_MESSAGE
    longest = max(len(json.dumps([str(named), [str(each) for each in ids]])) for named, ids in rung)
    assert longest < 256


def test_tending_looks_at_every_open_run_of_a_sweep(rt: Runtime, errands: Errands) -> None:
    odd, even = opening(rt, errands, ODD), opening(rt, errands, EVEN)
    rung: list[tuple[UUID, Sequence[UUID]]] = []
    found = service.tend(rt, errands.catalog, ring_into(rung), granting=True)
    assert [each.run.run_id for each in found if each.run] == [odd.run_id, even.run_id]
    assert {run for run, _ in rung} == {odd.run_id, even.run_id}


def test_the_next_pages_are_those_of_the_run_that_asks(settings: Settings, errands: Errands) -> None:
    with opened(settings, sweep_max_queue=1) as rt:
        opening(rt, errands, replace(ODD, options={"page": 1}))
        even = opening(rt, errands, replace(EVEN, options={"page": 1}))
        for _ in range(2):
            work(rt, errands.catalog, even.run_id)
        found = service.continue_run(rt, errands.catalog, ring_into([]), even.run_id)
    assert found is not None
    assert found.run is not None
    assert (found.run.run_id, found.run.filter) == (even.run_id, "even")


def test_a_run_in_this_process_is_the_one_with_its_filter(rt: Runtime, errands: Errands) -> None:
    odd = opening(rt, errands, ODD)
    run = run_inline(rt, errands.catalog, errands.sweep, EVEN, lambda _run, _done: None)
    assert (run.state, run.filter, errands.done) == ("done", "even", [2, 4, 6, 8, 10])
    assert run_of(rt, odd.run_id).state == "running"


# Slots ---------------------------------------------------------------------------------------------------------------


def test_all_runs_of_a_sweep_share_its_slots(rt: Runtime, errands: Errands) -> None:
    odd, even = opening(rt, errands, ODD), opening(rt, errands, EVEN)
    seen: list[WorkOutcome] = []
    one = {"errands": replace(errands.sweep, max_parallel=lambda _settings: 1)}
    errands.before = lambda rt: seen.append(work(rt, one, odd.run_id).outcome)
    work(rt, one, even.run_id)
    assert seen == [WorkOutcome.NO_SLOT]


def test_who_leaves_a_slot_rings_for_the_run_that_found_none(rt: Runtime, errands: Errands) -> None:
    paged = {"page": 1}
    odd = opening(rt, errands, replace(ODD, options=paged))
    even = opening(rt, errands, replace(EVEN, options=paged))
    nothing = timedelta()
    first = work(rt, errands.catalog, odd.run_id, shift=nothing)
    assert (first.next_run, first.ring_after) == (even.run_id, nothing)
    with rt.db.transaction() as tx:
        assert store.waiting_run(tx, "errands", even.run_id) == odd.run_id
    service.pause_run(rt, even.run_id, actor="test", why="wait")
    second = work(rt, errands.catalog, odd.run_id, shift=nothing)
    assert (second.next_run, second.ring_after) == (None, nothing)


def test_a_run_that_somebody_works_on_waits_for_nobody(rt: Runtime, errands: Errands) -> None:
    odd, even = opening(rt, errands, ODD), opening(rt, errands, EVEN)
    seen: list[UUID | None] = []

    def look(rt: Runtime) -> None:
        with rt.db.transaction() as tx:
            seen.append(store.waiting_run(tx, "errands", odd.run_id))

    errands.before = look
    work(rt, errands.catalog, even.run_id)
    assert seen == [None]


# Shown ---------------------------------------------------------------------------------------------------------------


def test_a_preview_counts_the_rows_of_its_filter_and_names_its_open_run(
    rt: Runtime, pg: Conn, errands: Errands
) -> None:
    pg.execute("UPDATE errand SET done_at = now() WHERE id = 1")
    even = opening(rt, errands, EVEN)
    found = preview(rt, errands.sweep, replace(ODD, options={"page": 3}))
    assert (found.eligible, found.sample, found.batch_rows, found.batches) == (4, ["3", "5", "7", "9"], 3, 2)
    assert (found.open_run, found.pace_from, found.eta) == (None, "nothing", None)
    assert preview(rt, errands.sweep, EVEN).open_run == even.run_id
    assert preview(rt, errands.sweep, Order("test")).eligible == 9


def test_a_preview_with_a_filter_changes_nothing(rt: Runtime, pg: Conn, errands: Errands) -> None:
    preview(rt, errands.sweep, ODD)
    assert scalar(pg, "SELECT count(*) FROM sweep_run") == 0
    assert dispatch(rt, errands.sweep, None, replace(ODD, opening=False)).outcome is Outcome.NO_RUN


def test_a_run_shows_what_it_was_asked_and_what_came_of_it(rt: Runtime, errands: Errands) -> None:
    run = opening(rt, errands, replace(ODD, options={"rate": 5}))
    with rt.db.transaction() as tx:
        store.add_outcomes(tx, run.run_id, {"failed": 2, "replayed": 1_000}, streak=2)
    after, done = service.show_run(rt, run.run_id)
    told = as_json(after, done)
    assert {name: told[name] for name in ("filter", "options", "outcomes", "failures_in_row")} == {
        "filter": "odd",
        "options": {"rate": 5},
        "outcomes": {"failed": 2, "replayed": 1_000},
        "failures_in_row": 2,
    }
    fields = described(after, done)
    assert (fields["filter"], fields["options"], fields["outcomes"]) == ("odd", ["rate: 5"], "1,000 replayed, 2 failed")
    assert summary(after, done).endswith(": 1,000 replayed, 2 failed")


def test_an_unknown_run_is_no_open_one(rt: Runtime, errands: Errands) -> None:
    assert service.continue_run(rt, errands.catalog, ring_into([]), uuid4()) is None
