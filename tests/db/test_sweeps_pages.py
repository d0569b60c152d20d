"""Pages: cut without overlap or gap from any keys, resumed exactly where a dispatcher died, bounded in any case."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pushops.errors import BrokerError
from pushops.retention.policies import PURGE_TOMBSTONES, SCRUB_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import plan, runs, sql, store
from pushops.sweeps.batch import Shift
from pushops.sweeps.dispatch import MOST_PAGES, Bell, Order, Outcome, dispatch
from pushops.sweeps.sql import Held
from pushops.sweeps.store import BatchRow, NewBatch, RunRow
from pushops.sweeps.work import Outcome as WorkOutcome
from pushops.sweeps.work import work
from tests.sweepdb import Conn, add_tombstones, drive, ids, one, open_run, opened, receipts, run_of, scalar

TEST = Order(started_by="test")
# Without shrinking: an example of a hundred rows is small enough to look at, and each one costs a run.
SOME = hypothesis_settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@dataclass
class Rung:
    """A bell that remembers; ``depth`` is what its broker would say."""

    depth: int | None = 0
    calls: list[tuple[UUID, list[UUID]]] = field(default_factory=list)

    def ring(self, run_id: UUID, batches: Sequence[UUID]) -> None:
        self.calls.append((run_id, list(batches)))

    @property
    def bell(self) -> Bell:
        return Bell(self.ring, lambda: self.depth)

    @property
    def batches(self) -> list[UUID]:
        return [batch for _, named in self.calls for batch in named]


def pages(pg: Conn, run_id: UUID) -> list[tuple[list[str] | None, list[str], int | None]]:
    query = b"SELECT lo, hi, expected FROM sweep_batch WHERE run_id = %s AND visit = 1 ORDER BY seq"
    return [(lo, hi, expected) for lo, hi, expected in pg.execute(query, [run_id])]


def assert_joined(pg: Conn, run_id: UUID, first: list[str] | None) -> None:
    """Each page begins where the one before it ends."""
    found = pages(pg, run_id)
    assert [lo for lo, _, _ in found] == [first, *(hi for _, hi, _ in found[:-1])]


def rows_in_pages(pg: Conn, rt: Runtime, run: RunRow) -> list[int]:
    """How many rows each page selects while all of them are still there."""
    shift = Shift(rt, PURGE_TOMBSTONES, run, Held(), uuid4())
    counts = []
    for lo, hi, expected in pages(pg, run.run_id):
        batch = shift.bind(BatchRow(uuid4(), 1, 1, lo, hi, expected, 1, 0))
        with rt.db.transaction() as tx:
            counts.append(tx.scalar(sql.count_left(PURGE_TOMBSTONES, batch.clause), batch.params))
    return counts


def reset(pg: Conn) -> None:
    pg.execute("TRUNCATE push_subscription, sweep_run, sweep_batch, sweep_receipt, sweep_control")


@SOME
@given(
    seconds=st.lists(st.integers(0, 6), min_size=40, max_size=120),
    size=st.integers(1, 30),
    walk=st.sampled_from(["index", "blocks"]),
)
def test_pages_of_any_keys_neither_overlap_nor_leave_gaps(
    settings: Settings, pg: Conn, seconds: list[int], size: int, walk: str
) -> None:
    """Keys with ties: several rows ended at the same moment, and their ids are random."""
    reset(pg)
    for count in Counter(seconds).items():
        ended = f"date_trunc('day', now()) - interval '100 days' + {count[0]} * interval '1 s'"
        add_tombstones(pg, count[1], id="gen_random_uuid()", deleted_at=ended)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=size) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        assert run.walked
        assert_joined(pg, run.run_id, ["(0,0)"] if walk == "blocks" else None)
        counts = rows_in_pages(pg, rt, run)
        assert sum(counts) == len(seconds)
        if walk == "index":
            expected = [n for _, _, n in pages(pg, run.run_id)]
            assert expected == [size] * (len(seconds) // size) + [len(seconds) % size] * bool(len(seconds) % size)
            assert counts == expected
        drive(rt, PURGE_TOMBSTONES)
    done = [
        row[0]
        for row in pg.execute("SELECT rows_done FROM sweep_receipt JOIN sweep_batch USING (batch_id) ORDER BY seq")
    ]
    assert sum(done) == len(seconds)
    assert walk == "blocks" or done == expected
    assert not ids(pg)


@pytest.mark.parametrize(("limit", "size"), [(1, 5), (5, 5), (7, 5), (10, 5), (12, 5), (3, 20), (20, 5), (40, 7)])
def test_a_row_limit_is_exact(limit: int, size: int, settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 30)
    with opened(settings, sweep_batch_rows=size) as rt:
        run = drive(rt, PURGE_TOMBSTONES, Order(started_by="test", row_limit=limit))
    assert run.state == "done"
    assert len(ids(pg)) == 30 - min(limit, 30)
    assert receipts(pg, run.run_id) == (min(limit, 30), 0)


def test_the_oldest_rows_go_first_under_a_row_limit(settings: Settings, pg: Conn) -> None:
    made = add_tombstones(pg, 10, deleted_at="now() - interval '100 days' - n * interval '1 day'")
    with opened(settings) as rt:
        drive(rt, PURGE_TOMBSTONES, Order(started_by="test", row_limit=4))
    assert ids(pg) == set(made[:6])


def test_writing_stops_at_the_high_water_mark_and_goes_on_under_the_low_one(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 200)
    with opened(settings, sweep_batch_rows=1, sweep_max_queue=10, sweep_low_water=4) as rt:
        rung = Rung()
        first = dispatch(rt, PURGE_TOMBSTONES, rung.bell, TEST)
        assert first.run is not None
        assert first.outcome is Outcome.FULL
        assert 10 <= first.batches < 10 + MOST_PAGES
        assert sorted(rung.batches) == sorted(ids(pg, "sweep_batch", "batch_id"))
        assert dispatch(rt, PURGE_TOMBSTONES, rung.bell, TEST).batches == 0
        assert not work(rt, SWEEPS, first.run.run_id, shift=timedelta(0)).more_pages
        pg.execute("UPDATE sweep_batch SET due_at = now() + interval '1 h' WHERE seq > 5")
        assert work(rt, SWEEPS, first.run.run_id, shift=timedelta(seconds=9)).more_pages
        pg.execute("UPDATE sweep_batch SET due_at = now()")
        drive(rt, PURGE_TOMBSTONES)
        assert receipts(pg, first.run.run_id) == (200, 0)
        assert_joined(pg, first.run.run_id, None)


@pytest.mark.parametrize(("depth", "outcome"), [(10, Outcome.FULL), (None, Outcome.NO_BROKER)])
def test_a_queue_that_is_full_or_cannot_be_read_gets_no_pages(
    depth: int | None, outcome: Outcome, settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 5)
    with opened(settings, sweep_max_queue=10, sweep_low_water=1) as rt:
        found = dispatch(rt, PURGE_TOMBSTONES, Rung(depth).bell, TEST)
    assert (found.outcome, found.batches) == (outcome, 0)
    assert scalar(pg, "SELECT count(*) FROM sweep_batch") == 0


def test_no_more_than_four_batches_are_rung_for_in_one_message(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 50)
    rung = Rung()
    with opened(settings, sweep_batch_rows=1) as rt:
        dispatch(rt, PURGE_TOMBSTONES, rung.bell, TEST)
    assert max(len(batches) for _, batches in rung.calls) == 4
    assert len(rung.batches) == len(set(rung.batches)) == 50


def test_pages_that_nobody_could_be_told_of_stay_due(settings: Settings, pg: Conn) -> None:
    def refuse(_run: UUID, _batches: Sequence[UUID]) -> None:
        raise BrokerError("refused")

    add_tombstones(pg, 20)
    with opened(settings, sweep_batch_rows=5) as rt:
        assert dispatch(rt, PURGE_TOMBSTONES, Bell(refuse, lambda: 0), TEST).outcome is Outcome.NO_BROKER
        run = drive(rt, PURGE_TOMBSTONES)
    assert receipts(pg, run.run_id) == (20, 0)


class Died(BaseException):
    """What the death of a process looks like from inside: nothing after it happens."""


@pytest.mark.parametrize("walk", ["index", "blocks"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_dispatcher_that_dies_between_two_steps_is_followed_exactly(
    steps: int, walk: str, settings: Settings, pg: Conn
) -> None:
    """It dies after a step's commit and before anybody was rung for: the next one goes on from the stored cursor."""
    add_tombstones(pg, 500)
    rung = Rung()

    def die(run_id: UUID, batches: Sequence[UUID]) -> None:
        if len(rung.calls) == steps:
            raise Died
        rung.ring(run_id, batches)

    with opened(settings, sweep_walk=walk, sweep_batch_rows=20) as rt:
        with pytest.raises(Died):
            dispatch(rt, PURGE_TOMBSTONES, Bell(die, lambda: 0), TEST)
        before = ids(pg, "sweep_batch", "batch_id")
        assert len(before) > len(rung.batches)
        run = drive(rt, PURGE_TOMBSTONES)
        assert before <= ids(pg, "sweep_batch", "batch_id")
        assert_ids_are_derived(pg, rt, run.run_id)
    assert_joined(pg, run.run_id, ["(0,0)"] if walk == "blocks" else None)
    assert receipts(pg, run.run_id) == (500, 0)


def assert_ids_are_derived(pg: Conn, rt: Runtime, run_id: UUID) -> None:
    cutoffs = runs.cutoff_key(run_of(rt, run_id))
    query = b"SELECT batch_id, lo, hi, visit FROM sweep_batch WHERE run_id = %s"
    for batch_id, lo, hi, visit in pg.execute(query, [run_id]):
        assert batch_id == plan.batch_id(run_id, cutoffs, lo, hi, visit)


def test_the_same_pages_written_again_change_nothing(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 20)
    with opened(settings, sweep_batch_rows=5) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        before = pg.execute("SELECT * FROM sweep_batch ORDER BY seq").fetchall()
        again = [
            NewBatch(plan.batch_id(run.run_id, runs.cutoff_key(run), lo, hi), lo, hi, n)
            for lo, hi, n in pages(pg, run.run_id)
        ]
        with rt.db.transaction() as tx:
            assert store.add_batches(tx, run.run_id, 0, plan.as_json(again)) == 0
        assert pg.execute("SELECT * FROM sweep_batch ORDER BY seq").fetchall() == before


def test_two_dispatchers_at_once_write_each_page_once(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 600)
    rung = Rung()
    with opened(settings, sweep_batch_rows=3, sweep_max_queue=1000) as rt:
        open_run(rt, PURGE_TOMBSTONES)
        threads = [threading.Thread(target=dispatch, args=(rt, PURGE_TOMBSTONES, rung.bell, TEST)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run = drive(rt, PURGE_TOMBSTONES)
    assert scalar(pg, "SELECT count(*) FROM sweep_run") == 1
    assert len(rung.batches) == len(set(rung.batches))
    assert_joined(pg, run.run_id, None)
    assert receipts(pg, run.run_id) == (600, 0)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("walk", ["index", "blocks"])
def test_no_batch_takes_more_than_its_page_whatever_the_statistics_say(
    walk: str, locked: bool, settings: Settings, pg: Conn
) -> None:
    """F01: statistics of ten rows, thousands in the table; both ways of taking rows."""
    pg.execute("ALTER TABLE push_subscription SET (autovacuum_enabled = off)")
    add_tombstones(pg, 10)
    pg.execute("ANALYZE push_subscription")
    made = add_tombstones(pg, 3000)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=100) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        if locked:
            pg.execute("BEGIN")
            pg.execute("SELECT FROM push_subscription WHERE id = %s FOR UPDATE", [made[50]])
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
    done, hi = one(pg, "SELECT rows_done, hi FROM sweep_receipt JOIN sweep_batch USING (batch_id)")
    pg.execute("ROLLBACK" if locked else "SELECT")
    assert 3010 - len(ids(pg)) == done
    if walk == "index":
        assert done <= 100
    else:
        last = int(hi[0].strip("()").split(",")[0])
        assert done <= scalar(
            pg,
            "SELECT max(per) * %(n)s::int FROM (SELECT count(*) AS per FROM push_subscription"
            " GROUP BY (ctid::text::point)[0]) AS b",
            n=last,
        )


def test_a_spent_time_budget_holds_until_the_next_grant(settings: Settings, pg: Conn) -> None:
    """F09: the cursor stays, and the next slot goes on from it, not from the beginning."""
    add_tombstones(pg, 60)
    ungranted = Order(started_by="tend", opening=False, granting=False)
    with opened(settings, sweep_batch_rows=5, sweep_max_queue=4, sweep_low_water=1) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        pg.execute("UPDATE sweep_run SET budget_until = now()")
        held = work(rt, SWEEPS, run.run_id)
        assert held.outcome is WorkOutcome.HELD
        assert held.reading is not None
        assert held.reading.valve == "budget"
        found = dispatch(rt, PURGE_TOMBSTONES, None, ungranted)
        assert (found.outcome, found.why) == (Outcome.HELD, held.reading.reason)
        attempts = scalar(pg, "SELECT sum(attempts) FROM sweep_batch")
        assert attempts == 1  # what is held is not tried
        assert run_of(rt, run.run_id).held_by == "budget"
        after = drive(rt, PURGE_TOMBSTONES)
    assert (after.run_id, after.state, after.held_by) == (run.run_id, "done", None)
    assert receipts(pg, run.run_id) == (60, 0)


def test_rows_that_ended_behind_the_cursor_go_with_the_next_run(settings: Settings, pg: Conn) -> None:
    """F09: the next run starts from the beginning, so that no row is passed over for good."""
    add_tombstones(pg, 40)
    with opened(settings, sweep_batch_rows=5, sweep_max_queue=2, sweep_low_water=1) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        assert not run.walked
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        behind = add_tombstones(pg, 7, deleted_at="now() - interval '200 days'")
        assert drive(rt, PURGE_TOMBSTONES).run_id == run.run_id
        assert ids(pg) == set(behind)
        drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)


def test_a_row_that_comes_under_two_sweeps_at_once_is_done_by_both(settings: Settings, pg: Conn) -> None:
    """A scrub moves rows that a purge walks: what it moved ahead of the purge, or behind it, goes with the next run."""
    made = add_tombstones(pg, 50, **UNSCRUBBED)
    with opened(settings, sweep_walk="blocks", sweep_batch_rows=10) as rt:
        purge = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert purge is not None
        assert drive(rt, SCRUB_TOMBSTONES).state == "done"
        assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE endpoint IS NULL") == len(made)
        drive(rt, PURGE_TOMBSTONES)
        drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)


UNSCRUBBED: dict[str, str] = {
    "endpoint": "'https://push.example/' || n",
    "p256dh": "repeat('p', 87)",
    "auth_sealed": r"'\x01'::bytea",
    "auth_key_version": "1",
    "scrubbed_at": "NULL",
}


def events(recorded: list[Any], name: str) -> list[Any]:
    return [fields for _, found, fields in recorded if found == name]


def test_a_dispatcher_says_what_it_did(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 12)
    recorded: list[Any] = []
    with opened(settings, recorded, sweep_batch_rows=5) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    (opening,) = events(recorded, "sweep.opened")
    assert (opening["run"], opening["eligible"], opening["started_by"]) == (run.run_id, 12, "test")
    assert [(e["rows"], e["outcome"]) for e in events(recorded, "sweep.batch")] == [
        (5, "applied"),
        (5, "applied"),
        (2, "applied"),
    ]
    (closing,) = events(recorded, "sweep.closed")
    assert (closing["state"], closing["rows"], closing["batches"]) == ("done", 12, 3)
