"""What a run leaves, exactly, however often and by however many its batches are worked on."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from pushops.retention.policies import AGE_EXPIRED, AGE_STALE, PURGE_TOMBSTONES, SCRUB_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import store
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import Outcome, work
from tests.sweepdb import Conn, add_live, add_tombstones, drive, ids, one, opened, receipts, run_of, scalar

TEST = Order(started_by="test")
SERVICES = "(ARRAY['fcm', 'mozilla', 'wns'])[1 + n %% 3]"
REASONS = "(ARRAY['gone', 'unsubscribed'])[1 + n %% 2]"
AGES = "(ARRAY['1 hour', '3 days', '10 days', '50 days', '200 days', '800 days'])[1 + n %% 6]::interval"


def folded(pg: Conn) -> Counter[tuple[Any, ...]]:
    query = b"SELECT day, push_service, origin, end_reason, lifetime_bucket, ended FROM subscription_ended_daily"
    return Counter({row[:-1]: row[-1] for row in pg.execute(query)})


def bucket(days: float) -> str:
    names = {1: "under 1 day", 7: "1 to 7 days", 30: "7 to 30 days", 90: "30 to 90 days", 365: "90 to 365 days"}
    return next((name for limit, name in names.items() if days < limit), "over 365 days")


def tally(pg: Conn) -> Counter[tuple[Any, ...]]:
    query = b"""SELECT (revoked_at AT TIME ZONE 'UTC')::date, push_service, coalesce(origin, ''), end_reason,
                       extract(epoch FROM revoked_at - created_at)::float8 / 86400 FROM push_subscription"""
    return Counter((*row[:-1], bucket(row[-1])) for row in pg.execute(query))


def add_varied(pg: Conn, count: int) -> list[UUID]:
    ended = "date_trunc('day', now()) - interval '120 days' + n * interval '10 minutes'"
    return add_tombstones(
        pg, count, push_service=SERVICES, end_reason=REASONS, revoked_at=ended, deleted_at=ended,
        created_at=f"{ended} - {AGES}", origin="CASE WHEN n %% 2 = 0 THEN 'https://shop.example' END",
    )  # fmt: skip


def both(rt: Runtime, run_id: UUID, batches: tuple[UUID, ...] = (), workers: int = 2) -> None:
    """So many workers at once, and again, until the run is closed."""
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(50):
            list(pool.map(lambda _: work(rt, SWEEPS, run_id, batches, shift=timedelta(seconds=5)), range(workers)))
            if run_of(rt, run_id).closed_at:
                return
            dispatch(rt, PURGE_TOMBSTONES, None, TEST)
    raise TimeoutError("expected the run to end")


@pytest.mark.parametrize("walk", ["index", "blocks"])
def test_the_counters_say_exactly_what_two_workers_deleted(walk: str, settings: Settings, pg: Conn) -> None:
    add_varied(pg, 1500)
    expected = tally(pg)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=100) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        both(rt, run.run_id)
        add_varied(pg, 300)
        expected += tally(pg)
        drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)
    assert folded(pg) == expected
    assert receipts(pg, run.run_id)[0] == 1500


def test_the_counters_know_days_before_those_that_they_are_numbered_from(settings: Settings, pg: Conn) -> None:
    add_live(pg, 20)  # beside which few rows are a small share
    for day in ("1999-12-31 23:59", "2000-01-01", "1991-02-03 04:05"):
        ended = f"timestamptz '{day}+00'"
        add_tombstones(pg, 1, revoked_at=ended, deleted_at=ended, created_at=f"{ended} - interval '8 days'")
    with opened(settings) as rt:
        drive(rt, PURGE_TOMBSTONES)
    counted = {(str(key[0]), key[-1]): ended for key, ended in folded(pg).items()}
    assert counted == dict.fromkeys([(day, "7 to 30 days") for day in ("1999-12-31", "2000-01-01", "1991-02-03")], 1)


@pytest.mark.parametrize("walk", ["index", "blocks"])
def test_every_message_delivered_to_four_workers_at_once_is_applied_once(
    walk: str, settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 600)
    recorded: list[Any] = []
    with opened(settings, recorded, sweep_walk=walk, sweep_batch_rows=50, sweep_max_parallel=4) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        named = tuple(sorted(ids(pg, "sweep_batch", "batch_id")))
        both(rt, run.run_id, named, workers=4)
        assert work(rt, SWEEPS, run.run_id, named[:4]).outcome is Outcome.ALREADY_APPLIED
    assert not ids(pg)
    assert receipts(pg, run.run_id)[0] == 600
    assert scalar(pg, "SELECT max(attempts) FROM sweep_batch") == 1
    outcomes = Counter(fields["outcome"] for _, name, fields in recorded if name == "sweep.batch")
    assert outcomes["already_applied"] >= 4


def test_no_more_workers_than_slots_work_at_once(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 10)
    with opened(settings, sweep_batch_rows=1) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        hold = "UPDATE sweep_slot SET holder = gen_random_uuid(), free_at = now() + interval '1 h'"
        pg.execute(hold)
        assert work(rt, SWEEPS, run.run_id).outcome is Outcome.NO_SLOT
        pg.execute("UPDATE sweep_slot SET free_at = now() WHERE slot = 1")  # its holder is dead
        assert work(rt, SWEEPS, run.run_id).outcome is Outcome.WORKED
    assert scalar(pg, "SELECT count(*) FROM sweep_slot WHERE sweep = 'purge-tombstones'") == 2


def test_nobody_waits_for_a_slot_unless_one_only_rests(settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:

        def rest() -> float | None:
            with rt.db.transaction() as tx:
                return store.rest(tx, PURGE_TOMBSTONES.name, 2)

        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        pg.execute("UPDATE sweep_slot SET holder = gen_random_uuid(), free_at = now() + interval '1 h'")
        assert rest() is None
        pg.execute("UPDATE sweep_slot SET holder = NULL, free_at = now() + interval '10 s' WHERE slot = 1")
        found = rest()
        assert found is not None
        assert 5 < found <= 10


def test_an_unknown_run_is_counted_and_not_an_error(settings: Settings, pg: Conn) -> None:
    recorded: list[Any] = []
    with opened(settings, recorded) as rt:
        assert work(rt, SWEEPS, uuid4(), (uuid4(),)).outcome is Outcome.UNKNOWN_RUN
    assert [name for _, name, _ in recorded] == ["sweep.unknown_id"]
    assert scalar(pg, "SELECT count(*) FROM sweep_batch") == 0


def test_a_batch_in_which_nothing_matches_any_more_is_told_apart(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 3)
    recorded: list[Any] = []
    with opened(settings, recorded) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        pg.execute("UPDATE push_subscription SET legal_hold = true")
        run = drive(rt, PURGE_TOMBSTONES)
    assert receipts(pg, run.run_id) == (0, 0)
    assert [f["outcome"] for _, name, f in recorded if name == "sweep.batch"] == ["nothing_matched"]
    assert len(ids(pg)) == 3


OLD = "now() - interval '400 days'"
SETS: dict[str, tuple[Sweep, dict[str, str]]] = {
    "age-stale": (AGE_STALE, {"state": "'active'", "last_seen_at": OLD}),
    "age-expired": (
        AGE_EXPIRED,
        {"state": "'pending'", "state_since": OLD, "last_seen_at": OLD, "registered_at": OLD},
    ),
    "scrub": (SCRUB_TOMBSTONES, {"state": "'revoked'", "deleted_at": OLD, "revoked_at": OLD, "end_reason": "'gone'"}),
    "purge": (PURGE_TOMBSTONES, {"state": "'revoked'", "deleted_at": OLD, "revoked_at": OLD, "end_reason": "'gone'"}),
}


@pytest.mark.parametrize("case", SETS)
def test_a_second_run_finds_nothing_and_changes_nothing(case: str, settings: Settings, pg: Conn) -> None:
    sweep, columns = SETS[case]
    add_live(pg, 20, **columns)
    add_live(pg, 5)
    with opened(settings, sweep_batch_rows=7) as rt:
        first = drive(rt, sweep)
        rows = pg.execute("SELECT s.*, s.xmin FROM push_subscription AS s ORDER BY id").fetchall()
        second = drive(rt, sweep)
    assert receipts(pg, first.run_id) == (20, 0)
    assert receipts(pg, second.run_id) == (0, 0)
    assert pg.execute("SELECT s.*, s.xmin FROM push_subscription AS s ORDER BY id").fetchall() == rows


@pytest.mark.parametrize("case", SETS)
def test_a_batch_claimed_again_after_its_receipt_changes_nothing(case: str, settings: Settings, pg: Conn) -> None:
    """As if the receipt had been lost and not the effect: the effect alone is harmless a second time."""
    sweep, columns = SETS[case]
    add_live(pg, 20, **columns)
    with opened(settings, sweep_batch_rows=7) as rt:
        run = drive(rt, sweep)
        rows = pg.execute("SELECT s.*, s.xmin FROM push_subscription AS s ORDER BY id").fetchall()
        counters = folded(pg)
        pg.execute("DELETE FROM sweep_receipt")
        pg.execute("UPDATE sweep_batch SET state = 'due', finished_at = NULL")
        pg.execute("UPDATE sweep_run SET state = 'running', closed_at = NULL")
        assert drive(rt, sweep).run_id == run.run_id
    assert receipts(pg, run.run_id) == (0, 0)
    assert pg.execute("SELECT s.*, s.xmin FROM push_subscription AS s ORDER BY id").fetchall() == rows
    assert folded(pg) == counters


def test_a_page_of_one_second_shift_says_whether_to_ring_again(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 30)
    with opened(settings, sweep_batch_rows=10) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        first = work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        assert (first.outcome, first.batches, first.ring_after) == (Outcome.WORKED, 1, timedelta(0))
        last = work(rt, SWEEPS, run.run_id, shift=timedelta(seconds=9))
        assert (last.batches, last.ring_after, last.more_pages) == (2, None, False)
        assert run_of(rt, run.run_id).state == "done"
    assert one(pg, "SELECT count(*), sum(rows_done) FROM sweep_receipt") == (3, 30)


def test_a_message_for_a_closed_run_finds_nothing_due_and_looks_at_nothing(
    settings: Settings, pg: Conn, tmp_path: Path
) -> None:
    """No valve is read, which would hold it, and no slot is taken, of which none is free."""
    add_tombstones(pg, 10)
    (tmp_path / "stop").touch()
    with opened(settings) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    pg.execute("UPDATE sweep_slot SET holder = gen_random_uuid(), free_at = now() + interval '1 h'")
    with opened(settings, stop_file=tmp_path / "stop") as rt:
        found = work(rt, SWEEPS, run.run_id, [uuid4()])
        assert run_of(rt, run.run_id) == run
    assert (found.outcome, found.batches, found.ring_after) == (Outcome.NOTHING_DUE, 0, None)
