"""Rows that somebody else holds, wants or brings back while a sweep is at them (C02, C06, C08, F09)."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

import psycopg
import pytest

from pushops.retention.policies import AGE_EXPIRED, AGE_STALE, PURGE_TOMBSTONES, SCRUB_TOMBSTONES, SWEEPS
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.identity import endpoint_hash
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import work
from tests.browser import new_endpoint, subscribe
from tests.sweepdb import (
    Conn,
    add_ended,
    add_live,
    add_tombstones,
    close_gate,
    drive,
    hash_of,
    ids,
    in_background,
    one,
    open_gate,
    opened,
    receipts,
    register,
    scalar,
    wait_at_gate,
    wait_blocked,
)
from tests.sweeping import expire_leases

TEST = Order(started_by="test")
BOTH = pytest.mark.parametrize("walk", ["index", "blocks"])


@pytest.fixture
def other(database_url: str) -> Iterator[Conn]:
    """Another session, in transactions of its own."""
    with psycopg.connect(database_url, options="-c search_path=pushops") as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def third(database_url: str) -> Iterator[Conn]:
    with psycopg.connect(database_url, options="-c search_path=pushops") as conn:
        yield conn
        conn.rollback()


WAIT = timedelta(seconds=4)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a lock waits long: that nobody did is then beyond doubt, however slow the machine."""
    monkeypatch.setattr("pushops.sweeps.batch.LOCK_TIMEOUT", WAIT)


def longest_batch(pg: Conn) -> float:
    found: float = scalar(pg, "SELECT max(seconds) FROM sweep_receipt")
    return found


@BOTH
def test_a_row_registered_again_between_page_and_batch_is_kept(walk: str, settings: Settings, pg: Conn) -> None:
    made = add_tombstones(pg, 50)
    back = [hash_of(pg, made[n]) for n in (0, 20, 49)]
    with opened(settings, sweep_walk=walk, sweep_batch_rows=20) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        register(pg, *back)
        run = drive(rt, PURGE_TOMBSTONES)
    kept = pg.execute("SELECT endpoint_hash, state, registration_no, deleted_at FROM push_subscription").fetchall()
    assert sorted(kept) == sorted((h, "pending", 2, None) for h in back)
    assert (run.state, receipts(pg, run.run_id)) == ("done", (47, 0))


@BOTH
def test_a_registration_that_began_before_the_batch_and_commits_after_it_wins(
    walk: str, settings: Settings, pg: Conn, other: Conn
) -> None:
    made = add_tombstones(pg, 50)
    with opened(settings, sweep_walk=walk) as rt:
        register(other, hash_of(pg, made[20]))
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        assert ids(pg) == {made[20]}
        other.commit()
        drive(rt, PURGE_TOMBSTONES)
    assert one(pg, "SELECT id, state, registration_no FROM push_subscription") == (made[20], "pending", 2)
    visits = pg.execute("SELECT visit, rows_done, rows_locked FROM sweep_receipt JOIN sweep_batch USING (batch_id)")
    assert [row for row in visits if row[1:] != (0, 0)] == [(1, 49, 1)]


@BOTH
def test_a_registration_that_meets_a_delete_under_way_waits_for_it_and_is_stored(
    walk: str, settings: Settings, pg: Conn, other: Conn
) -> None:
    made = add_tombstones(pg, 30)
    back = hash_of(pg, made[7])
    close_gate(pg)
    with opened(settings, sweep_walk=walk) as rt:
        with in_background(lambda: drive(rt, PURGE_TOMBSTONES)) as purge:
            wait_at_gate(pg)
            with in_background(lambda: register(other, back)):
                wait_blocked(pg, other.info.backend_pid)
                open_gate(pg)
            other.commit()
        run = purge.result()
    assert one(pg, "SELECT endpoint_hash, state, registration_no FROM push_subscription") == (back, "pending", 1)
    assert receipts(pg, run.run_id) == (30, 0)


def add_quiet(pg: Conn, count: int, **columns: str) -> list[object]:
    times = {"last_seen_at": "now() - interval '400 days'", "state": "'active'"} | columns
    return list(add_live(pg, count, **times))


def add_aged(pg: Conn, count: int, **columns: str) -> list[object]:
    old = "now() - interval '400 days'"
    return add_quiet(pg, count, **({"state": "'stale'", "state_since": old} | columns))


LEFT = {
    "purge-tombstones": "SELECT id FROM push_subscription",
    "scrub-tombstones": "SELECT id FROM push_subscription WHERE endpoint IS NOT NULL",
    "age-stale": "SELECT id FROM push_subscription WHERE state = 'active'",
    "age-expired": "SELECT id FROM push_subscription WHERE state = 'stale'",
}
WALKS = [
    (PURGE_TOMBSTONES, add_tombstones, "index"),
    (PURGE_TOMBSTONES, add_tombstones, "blocks"),
    (SCRUB_TOMBSTONES, add_ended, "index"),
    (SCRUB_TOMBSTONES, add_ended, "blocks"),
    (AGE_STALE, add_quiet, "index"),
    (AGE_EXPIRED, add_aged, "index"),
]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("mode", ["UPDATE", "KEY SHARE"])
@pytest.mark.parametrize(("sweep", "add", "walk"), WALKS, ids=[f"{s.name}-{w}" for s, _, w in WALKS])
def test_a_row_locked_throughout_is_skipped_without_waiting_and_gone_by_the_next_run(
    sweep: Sweep, add: object, walk: str, mode: str, settings: Settings, pg: Conn, other: Conn
) -> None:
    """F09: looked at once more at the end of the run, then left to the next one."""
    made = add(pg, 30)  # type: ignore[operator]
    held = made[11]
    left = LEFT[sweep.name].encode()
    with opened(settings, sweep_walk=walk, sweep_batch_rows=10) as rt:
        other.execute(f"SELECT FROM push_subscription WHERE id = %s FOR {mode}".encode(), [held])
        began = monotonic()
        run = drive(rt, sweep)
        assert (run.state, run.revisited) == ("done", True)
        assert pg.execute(left).fetchall() == [(held,)]
        assert receipts(pg, run.run_id) == (29, 2)
        looks = "SELECT visit, rows_locked FROM sweep_receipt JOIN sweep_batch USING (batch_id) WHERE rows_locked > 0"
        assert sorted(pg.execute(looks.encode()).fetchall()) == [(1, 1), (2, 1)]
        assert monotonic() - began < WAIT.total_seconds()
        other.rollback()
        again = drive(rt, sweep)
    assert pg.execute(left).fetchall() == []
    assert receipts(pg, again.run_id) == (1, 0)


@BOTH
def test_a_row_freed_before_the_end_of_the_run_goes_with_its_second_visit(
    walk: str, settings: Settings, pg: Conn, other: Conn
) -> None:
    made = add_tombstones(pg, 30)
    with opened(settings, sweep_walk=walk) as rt:
        other.execute("SELECT FROM push_subscription WHERE id = %s FOR UPDATE", [made[3]])
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        other.rollback()
        drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)
    assert receipts(pg, run.run_id) == (30, 1)


@BOTH
@pytest.mark.parametrize("older", [False, True])
def test_rows_that_an_aborted_delete_or_a_finished_check_has_marked_are_taken(
    older: bool, walk: str, settings: Settings, pg: Conn, other: Conn, third: Conn
) -> None:
    """Their xmax is set, and nobody holds them; with an older transaction still running the mark looks like a lock."""
    made = add_tombstones(pg, 40)
    if older:
        third.execute("INSERT INTO audit (verb, actor) VALUES ('test', 'test')")
    other.execute("DELETE FROM push_subscription WHERE id = ANY (%s)", [made[:20]])
    other.rollback()
    other.execute("SELECT FROM push_subscription WHERE id = ANY (%s) FOR KEY SHARE", [made[20:30]])
    other.commit()
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE xmax <> 0") == 30
    with opened(settings, sweep_walk=walk) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    assert receipts(pg, run.run_id) == (40, 0)


@BOTH
def test_rows_held_by_several_sessions_together_do_not_block_and_are_taken_once_freed(
    walk: str, settings: Settings, pg: Conn, other: Conn, third: Conn
) -> None:
    """A multixact in xmax is misread as free: the lock timeout is the backstop, and then rows are taken one by one."""
    made = add_tombstones(pg, 40)
    for conn in (other, third):
        conn.execute("SELECT FROM push_subscription WHERE id = ANY (%s) FOR KEY SHARE", [made[5:15]])
    with opened(settings, sweep_walk=walk) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
        assert ids(pg) == set(made[5:15])
        assert receipts(pg, run.run_id) == (30, 20)
        assert longest_batch(pg) < 1
        assert scalar(pg, "SELECT max(attempts) FROM sweep_batch") == 1
        other.rollback()
        third.commit()
        again = drive(rt, PURGE_TOMBSTONES)
    assert receipts(pg, again.run_id) == (10, 0)
    assert not ids(pg)


@BOTH
def test_a_worker_that_lost_its_lease_changes_nothing_more(walk: str, settings: Settings, pg: Conn) -> None:
    """C08: two workers on the same batch; the slower one rolls back, and no row is counted twice or missed."""
    add_tombstones(pg, 40)
    close_gate(pg)
    recorded: list[Any] = []
    with opened(settings, recorded, sweep_walk=walk) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            expire_leases(pg)
            work(rt, SWEEPS, run.run_id, shift=timedelta(0))
            open_gate(pg)
        drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)
    assert receipts(pg, run.run_id)[0] == 40
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == 40
    assert scalar(pg, "SELECT max(attempts) FROM sweep_batch") == 2
    errors = [fields["error"] for _, name, fields in recorded if name == "sweep.batch" and "error" in fields]
    assert errors == ["lost_claim"]


@BOTH
def test_a_storm_of_registrations_against_a_purge_lets_no_deadlock_escape_and_loses_none(
    walk: str, settings: Settings, pg: Conn, database_url: str
) -> None:
    """C06: every registration is stored, within its own lock timeout."""
    made = add_tombstones(pg, 3000)
    hashes = [row[0] for row in pg.execute("SELECT endpoint_hash FROM push_subscription")]
    over = Event()

    def storm(seed: int) -> set[bytes]:
        chance, stored = random.Random(seed), set()
        with psycopg.connect(
            database_url, autocommit=True, options="-c search_path=pushops -c lock_timeout=1s"
        ) as conn:
            while not over.is_set():
                some = chance.sample(hashes, 20)
                register(conn, *some)
                stored |= set(some)
        return stored

    with opened(settings, sweep_walk=walk, sweep_batch_rows=100) as rt:
        with in_background(lambda: storm(1)) as one_, in_background(lambda: storm(2)) as two:
            try:
                run = drive(rt, PURGE_TOMBSTONES)
            finally:
                over.set()
        stored = one_.result() | two.result()
    assert run.state == "done"
    assert ids(pg, key="endpoint_hash") == stored
    rows, _ = receipts(pg, run.run_id)
    assert len(made) - len(stored) <= rows <= len(made)
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == rows
    assert scalar(pg, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@BOTH
def test_a_storm_of_rotations_against_a_purge_lets_no_deadlock_escape_and_loses_no_heir(
    walk: str, settings: Settings, pg: Conn
) -> None:
    """C06: rotations take two rows each, both of them doomed; the purge takes them by the page."""
    endpoints = [new_endpoint() for _ in range(300)]
    add_tombstones(pg, len(endpoints))
    for (row_id,), endpoint in zip(pg.execute("SELECT id FROM push_subscription").fetchall(), endpoints, strict=True):
        pg.execute("UPDATE push_subscription SET endpoint_hash = %s WHERE id = %s", [endpoint_hash(endpoint), row_id])
    pairs = list(zip(endpoints[::-2], endpoints[::2], strict=True))
    with opened(settings, sweep_walk=walk, sweep_batch_rows=7) as rt:

        def storm(part: int) -> None:
            for old, new in pairs[part::3]:
                service.rotate(rt, old, subscribe(new))

        with ExitStack() as storms:
            for part in range(3):
                storms.enter_context(in_background(partial(storm, part)))
            run = drive(rt, PURGE_TOMBSTONES)
        last = drive(rt, PURGE_TOMBSTONES)
    heirs = {endpoint_hash(new) for _, new in pairs}
    live = pg.execute("SELECT endpoint_hash FROM push_subscription WHERE state = 'pending' AND deleted_at IS NULL")
    assert {row[0] for row in live} == heirs
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE deleted_at < now() - interval '90 days'") == 0
    assert (run.state, last.state) == ("done", "done")
    gone = receipts(pg, run.run_id)[0] + receipts(pg, last.run_id)[0]
    assert scalar(pg, "SELECT sum(ended) FROM subscription_ended_daily") == gone
