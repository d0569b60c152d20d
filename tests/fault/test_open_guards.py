"""What changes while a run is open, or while it is being closed, opens no guard and loses no batch."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from pushops.errors import RefusedError
from pushops.retention.policies import AGE_STALE, PURGE_TOMBSTONES, SWEEPS
from pushops.settings import Settings
from pushops.sweeps import dispatch as dispatching
from pushops.sweeps import plan, service, store
from pushops.sweeps.batch import Shift, execute
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sql import Held
from pushops.sweeps.work import Outcome, work
from tests.sweepdb import (
    Conn,
    add_live,
    add_tombstones,
    batch_states,
    ids,
    open_run,
    opened,
    run_of,
    scalar,
    skip_back_offs,
)
from tests.sweeping import wait_until

TEST = Order(started_by="test")
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("days", [31, 365])
def test_a_process_with_other_windows_does_nothing_for_an_open_run(days: int, settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    with opened(settings, sweep_batch_rows=10) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
    assert run is not None
    with opened(settings, sweep_batch_rows=10, tombstone_retention=timedelta(days=days)) as rt:
        assert work(rt, SWEEPS, run.run_id).outcome is Outcome.HELD
        (found,) = service.tend(rt, SWEEPS, None, granting=True)
        assert (found.batches, run_of(rt, run.run_id).held_by) == (0, "settings")
    assert len(ids(pg)) == 40
    assert scalar(pg, "SELECT acknowledged ->> 'cutoff' FROM sweep_control") == "7776000.0"


def test_a_limit_is_refused_where_a_run_without_it_is_open(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    with opened(settings) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        with pytest.raises(RefusedError, match="expected to open a run of at most 5 rows"):
            dispatch(rt, PURGE_TOMBSTONES, None, Order(started_by="test", row_limit=5))
    assert len(ids(pg)) == 40


def test_rows_that_come_under_the_predicate_later_do_not_pass_the_brake(settings: Settings, pg: Conn) -> None:
    quiet = {"state": "'active'", "last_seen_at": "now() - interval '40 days'"}
    add_live(pg, 2000, **quiet)
    add_live(pg, 10, **quiet | {"last_tried_at": "now()"})
    with opened(settings, sweep_max_share=0.2) as rt:
        service.pause_sweep(rt, AGE_STALE, actor="test", why="look")
        run = dispatch(rt, AGE_STALE, None, TEST).run
        assert run is not None
        pg.execute("UPDATE push_subscription SET last_tried_at = now()")
        service.resume_sweep(rt, AGE_STALE, actor="test")
        for _ in range(3):
            dispatch(rt, AGE_STALE, None, TEST)
            work(rt, SWEEPS, run.run_id)
        assert run_of(rt, run.run_id).held_by == "share"
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE state = 'stale'") <= 0.2 * 2010


def test_the_brake_does_not_believe_statistics_of_another_time(settings: Settings, pg: Conn) -> None:
    live = add_live(pg, 20_000)
    add_tombstones(pg, 1_500)
    pg.execute("ANALYZE push_subscription")
    pg.execute("DELETE FROM push_subscription WHERE id = ANY (%s)", [live[:19_000]])
    with opened(settings, sweep_max_share=0.2) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        assert scalar(pg, "SELECT held_by FROM sweep_run") == "share"


def test_a_run_is_not_cancelled_while_a_claim_is_being_made(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    holder, token = uuid4(), uuid4()
    with opened(settings) as rt, ThreadPoolExecutor(1) as pool:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        values = {"sweep": run.sweep, "slots": 2, "holder": holder, "run_id": run.run_id, "ids": None, "token": token}
        with rt.db.transaction() as tx:
            store.take_slot(tx, run.sweep, 2, holder, timedelta(seconds=30))
        with rt.db.transaction() as tx:
            row = store.claim(tx, values | {"worker": "w", "lease": timedelta(seconds=30), "deaths": plan.DEATHS})
            asked = pool.submit(service.cancel_run, rt, run.run_id, actor="test", why="stop")
            wait_until(lambda: scalar(pg, BLOCKED), expected="the cancel to wait for the claim")
        assert row is not None
        assert asked.result(10).state == "cancelling"
        execute(Shift(rt, PURGE_TOMBSTONES, run, Held(), holder), row, token)
        service.tend(rt, SWEEPS, None, granting=False)
        assert run_of(rt, run.run_id).state == "cancelled"
        assert batch_states(pg, run.run_id) == {"done": 1}


def test_pages_that_are_being_written_end_with_their_run(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    with opened(settings) as rt, opened(settings, tombstone_retention=timedelta(days=95)) as other:
        run = open_run(rt, PURGE_TOMBSTONES)
        with ThreadPoolExecutor(1) as pool:
            with rt.db.transaction() as tx:
                held = store.lock_run(tx, run.run_id)
                assert held is not None
                step = dispatching._cut_index(tx, PURGE_TOMBSTONES, held, 10, 2, None)
                store.add_batches(tx, run.run_id, 0, plan.as_json(step.batches))
                asked = pool.submit(open_run, other, PURGE_TOMBSTONES)
                wait_until(lambda: scalar(pg, BLOCKED), expected="the stop to wait for the dispatcher")
            asked.result(10)
        assert run_of(rt, run.run_id).state == "stopped"
        assert batch_states(pg, run.run_id) == {"cancelled": 2}


def test_a_lock_on_a_child_s_row_keeps_one_row_and_not_the_page(
    settings: Settings, pg: Conn, database_url: str
) -> None:
    gone = add_tombstones(pg, 20)
    pg.execute("CREATE TABLE child (sub uuid PRIMARY KEY REFERENCES push_subscription ON DELETE CASCADE)")
    pg.execute("INSERT INTO child VALUES (%s)", [gone[0]])
    with psycopg.connect(database_url, options="-c search_path=pushops") as other, opened(settings) as rt:
        other.execute("SELECT FROM child FOR UPDATE")
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        for _ in range(20):
            skip_back_offs(rt)
            work(rt, SWEEPS, run.run_id)
        assert (run_of(rt, run.run_id).state, ids(pg)) == ("done", {gone[0]})
    assert scalar(pg, "SELECT count(*) FROM sweep_quarantine") == 0


@pytest.mark.parametrize("code", ["54000", "58030"])
def test_an_error_of_one_row_that_no_moment_mends_sets_it_apart(code: str, settings: Settings, pg: Conn) -> None:
    gone = add_tombstones(pg, 20)
    pg.execute(
        f"""CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
              IF OLD.id = '{gone[0]}' THEN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END IF; RETURN OLD; END $$;
            CREATE TRIGGER bad BEFORE DELETE ON push_subscription FOR EACH ROW EXECUTE FUNCTION bad()""".encode()
    )
    with opened(settings) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        for _ in range(12):
            skip_back_offs(rt)
            work(rt, SWEEPS, run.run_id)
        assert (run_of(rt, run.run_id).why, ids(pg)) == ("1 quarantined", {gone[0]})
