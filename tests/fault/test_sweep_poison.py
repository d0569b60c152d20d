"""Rows and pages that fail: isolated in few steps, named, left alone until released, and never in the others' way."""

from datetime import timedelta
from math import ceil, log2
from uuid import UUID, uuid4

import pytest

from pushops.retention.policies import PURGE_RECEIPTS, PURGE_RUNS, PURGE_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import runs, service, store
from pushops.sweeps.batch import Shift, claim
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sql import Held
from pushops.sweeps.store import BatchRow, RunRow
from pushops.sweeps.work import work
from tests.sweepdb import (
    Conn,
    add_tombstones,
    batch_states,
    close_gate,
    drive,
    ids,
    in_background,
    open_gate,
    opened,
    receipts,
    run_of,
    scalar,
    wait_at_gate,
)
from tests.sweeping import expire_leases

TEST = Order(started_by="test")
DAY = timedelta(days=1)
BOTH = pytest.mark.parametrize("walk", ["index", "blocks"])
ONE_OF_BOTH = pytest.mark.parametrize("walk", ["index", pytest.param("blocks", marks=pytest.mark.long)])
NAMED = "23503 ForeignKeyViolation on constraint orders_subscription_fkey of public.orders"


def foreign_key(pg: Conn, *referred: UUID, options: str = "") -> None:
    """A table of somebody else's that points into ours and says nothing about deletion."""
    pg.execute(f"CREATE TABLE public.orders (subscription uuid REFERENCES push_subscription (id) {options})".encode())
    pg.execute("CREATE INDEX ON public.orders (subscription)")
    for row in referred:
        pg.execute("INSERT INTO public.orders VALUES (%s)", [row])


def held_keys(rt: Runtime) -> dict[str | None, str]:
    return {found.identity: found.error for found in service.quarantined(rt)}


@BOTH
@pytest.mark.parametrize("options", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_a_key_that_a_foreign_table_needs_is_quarantined_by_name_and_the_rest_purged(
    options: str, walk: str, settings: Settings, pg: Conn
) -> None:
    made = add_tombstones(pg, 64)
    foreign_key(pg, made[20], options=options)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=64) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
        assert held_keys(rt) == {str(made[20]): NAMED}
    assert (run.state, run.why) == ("done", "1 quarantined")
    assert ids(pg) == {made[20]}
    assert receipts(pg, run.run_id) == (63, 0)
    states = batch_states(pg, run.run_id)
    assert states["quarantined"] == 1
    assert states["split"] <= ceil(log2(64))


@BOTH
def test_several_such_keys_cost_a_logarithmic_number_of_splits_each(walk: str, settings: Settings, pg: Conn) -> None:
    made = add_tombstones(pg, 400)
    bad = {made[n] for n in (0, 1, 77, 210, 399)}
    foreign_key(pg, *bad)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=500) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
        assert held_keys(rt) == {str(key): NAMED for key in bad}
    assert (run.state, run.why) == ("done", "5 quarantined")
    assert ids(pg) == bad
    assert receipts(pg, run.run_id) == (395, 0)
    states = batch_states(pg, run.run_id)
    assert states["quarantined"] == 5
    assert states["split"] <= 5 * ceil(log2(400))


@BOTH
def test_a_quarantined_key_is_left_alone_until_it_is_released(walk: str, settings: Settings, pg: Conn) -> None:
    made = add_tombstones(pg, 20)
    foreign_key(pg, made[5])
    with opened(settings, sweep_walk=walk) as rt:
        drive(rt, PURGE_TOMBSTONES)
        add_tombstones(pg, 3)
        second = drive(rt, PURGE_TOMBSTONES)
        assert (second.state, second.why) == ("done", None)
        assert batch_states(pg, second.run_id) == {"done": 1}
        service.release(rt, PURGE_TOMBSTONES, actor="test")
        third = drive(rt, PURGE_TOMBSTONES)
        assert (third.state, third.why) == ("done", "1 quarantined")
        pg.execute("DELETE FROM public.orders")
        assert service.release(rt, PURGE_TOMBSTONES, actor="test") == 1
        fourth = drive(rt, PURGE_TOMBSTONES)
    assert (fourth.state, fourth.why, receipts(pg, fourth.run_id)) == ("done", None, (1, 0))
    assert not ids(pg)


def test_one_failing_batch_does_not_stop_the_others_and_is_tried_again_once(settings: Settings, pg: Conn) -> None:
    """F07, F10: the failed one comes back after a pause; a moment's failure leaves no trace but the count."""
    made = add_tombstones(pg, 40)
    foreign_key(pg, made[0])
    with opened(settings, sweep_batch_rows=10) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        work(rt, SWEEPS, run.run_id, shift=timedelta(seconds=9))
        assert ids(pg) == set(made[:10])
        assert batch_states(pg, run.run_id) == {"done": 3, "due": 1}
        found = pg.execute("SELECT attempts, failures, last_error, due_at > now() FROM sweep_batch WHERE state = 'due'")
        assert found.fetchall() == [(1, 1, NAMED, True)]
        pg.execute("DELETE FROM public.orders")
        run = drive(rt, PURGE_TOMBSTONES)
    assert (run.state, run.why) == ("done", None)
    assert receipts(pg, run.run_id) == (40, 0)


def slow_rows(pg: Conn, seconds: float, only: UUID | None = None) -> None:
    """Deleting a row takes a while; or only this one does."""
    pg.execute(
        f"""CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_sleep({seconds}); RETURN OLD; END $$""".encode()
    )
    when = f"WHEN (OLD.id = '{only}')" if only else ""
    pg.execute(
        f"CREATE TRIGGER slow BEFORE DELETE ON push_subscription FOR EACH ROW {when} EXECUTE FUNCTION slow()".encode()
    )


@ONE_OF_BOTH
def test_a_statement_timeout_halves_the_batch_and_the_pages_to_come(walk: str, settings: Settings, pg: Conn) -> None:
    """F11: nothing is stuck at a size that never ends in time; what was done stays done."""
    add_tombstones(pg, 1000)
    slow_rows(pg, 0.0005)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=1000, statement_timeout=timedelta(milliseconds=500)) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    assert (run.state, run.why) == ("done", None)
    assert not ids(pg)
    assert receipts(pg, run.run_id) == (1000, 0)
    assert batch_states(pg, run.run_id)["split"] >= 1
    assert "StatementTimeout" not in scalar(pg, "SELECT coalesce(max(error), '') FROM sweep_quarantine")
    size = scalar(pg, "SELECT batch_rows FROM sweep_control WHERE sweep = 'purge-tombstones'")
    assert 250 <= size <= 500
    add_tombstones(pg, 600)
    pg.execute("DROP TRIGGER slow ON push_subscription")
    with opened(settings, sweep_batch_rows=1000) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
    assert scalar(pg, "SELECT max(expected) FROM sweep_batch WHERE state = 'due'") == size


def test_one_key_that_never_ends_in_time_is_isolated(settings: Settings, pg: Conn) -> None:
    made = add_tombstones(pg, 16)
    slow_rows(pg, 5, only=made[9])
    with opened(settings, statement_timeout=timedelta(milliseconds=200)) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
        assert held_keys(rt) == {str(made[9]): "57014 QueryCanceled"}
    assert (run.state, run.why) == ("done", "1 quarantined")
    assert receipts(pg, run.run_id) == (15, 0)


# Workers that die -----------------------------------------------------------------------------------------------------


def claim_and_die(rt: Runtime, pg: Conn, run: RunRow, batch_id: UUID | None = None) -> BatchRow:
    """What a worker killed in mid-batch leaves: a slot and a claim that nobody will settle, long ago."""
    shift = Shift(rt, PURGE_TOMBSTONES, run, Held(), uuid4())
    with rt.db.transaction() as tx:
        store.ensure_control(tx, run.sweep, runs.as_seconds(runs.windows_of(rt.settings, PURGE_TOMBSTONES)), 2)
        assert store.take_slot(tx, run.sweep, 2, shift.holder, timedelta(seconds=30)) is not None
    found = claim(shift, [batch_id] if batch_id else None)
    assert found is not None
    expire_leases(pg)
    return found[0]


@BOTH
def test_a_page_that_takes_three_workers_with_it_is_quarantined_and_the_others_done(
    walk: str, settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 400)
    with opened(settings, sweep_walk=walk, sweep_batch_rows=40) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        killer = claim_and_die(rt, pg, run)
        for _ in range(2):
            assert claim_and_die(rt, pg, run, killer.batch_id) == killer_again(pg, killer)
        after = drive(rt, PURGE_TOMBSTONES)
        assert (after.state, after.why) == ("done", "1 quarantined")
        (found,) = service.quarantined(rt)
        assert (found.batch_id, found.identity, found.error) == (killer.batch_id, None, "worker_lost")
        left = ids(pg)
        assert len(left) + receipts(pg, run.run_id)[0] == 400
        assert left
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
        assert ids(pg) == left
        service.release(rt, PURGE_TOMBSTONES, actor="test")
        last = drive(rt, PURGE_TOMBSTONES)
    assert not ids(pg)
    assert receipts(pg, last.run_id) == (len(left), 0)


def killer_again(pg: Conn, row: BatchRow) -> BatchRow:
    attempts = scalar(pg, "SELECT attempts FROM sweep_batch WHERE batch_id = %(id)s", id=row.batch_id)
    return BatchRow(**(vars(row) | {"attempts": attempts}))


@pytest.mark.parametrize(("first", "second"), [("index", "blocks"), ("blocks", "index")])
def test_a_quarantined_page_is_left_alone_whichever_way_the_next_run_walks(
    first: str, second: str, settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 400)
    with opened(settings, sweep_walk=first, sweep_batch_rows=40) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        killer = claim_and_die(rt, pg, run)
        for _ in range(2):
            claim_and_die(rt, pg, run, killer.batch_id)
        drive(rt, PURGE_TOMBSTONES)
    left = ids(pg)
    add_tombstones(pg, 30)
    with opened(settings, sweep_walk=second, sweep_batch_rows=40) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
    assert ids(pg) == left
    assert receipts(pg, run.run_id) == (30, 0)


def test_two_deaths_and_a_failure_are_no_killer(settings: Settings, pg: Conn) -> None:
    """A worker that lived to say why is not lost: only claims without an answer count."""
    made = add_tombstones(pg, 10)
    foreign_key(pg, made[0])
    with opened(settings) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        claim_and_die(rt, pg, run)
        work(rt, SWEEPS, run.run_id, shift=timedelta(0))
        pg.execute("DELETE FROM public.orders")
        pg.execute("UPDATE sweep_batch SET due_at = now()")
        claim_and_die(rt, pg, run)
        after = drive(rt, PURGE_TOMBSTONES)
    assert (after.state, after.why) == ("done", None)
    assert receipts(pg, run.run_id) == (10, 0)


# Runs that end while a batch is in hand -------------------------------------------------------------------------------


def assert_cleaned_away(settings: Settings, pg: Conn, run_id: UUID) -> None:
    """After the receipts' retention nothing of the run is left."""
    pg.execute("UPDATE sweep_run SET closed_at = closed_at - interval '60 days' WHERE run_id = %s", [run_id])
    pg.execute("UPDATE sweep_batch SET finished_at = finished_at - interval '60 days' WHERE run_id = %s", [run_id])
    with opened(settings) as rt:
        drive(rt, PURGE_RECEIPTS)
        drive(rt, PURGE_RUNS)
    assert scalar(pg, "SELECT count(*) FROM sweep_batch WHERE run_id = %(run)s", run=run_id) == 0
    assert scalar(pg, "SELECT count(*) FROM sweep_run WHERE run_id = %(run)s", run=run_id) == 0


def stop(settings: Settings, run_id: UUID) -> None:
    """Other retention settings end an open run."""
    with opened(settings, tombstone_retention=120 * DAY) as rt:
        dispatch(rt, PURGE_TOMBSTONES, None, TEST)
        assert run_of(rt, run_id).state == "stopped"


def test_a_batch_in_hand_when_its_run_is_stopped_has_a_named_end_though_its_worker_is_dead(
    settings: Settings, pg: Conn
) -> None:
    add_tombstones(pg, 10)
    with opened(settings, sweep_batch_rows=5) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        claim_and_die(rt, pg, run)
        pg.execute("UPDATE sweep_batch SET claimed_until = now() + interval '1 h' WHERE state = 'claimed'")
    stop(settings, run.run_id)
    assert batch_states(pg, run.run_id) == {"cancelled": 2}
    assert_cleaned_away(settings, pg, run.run_id)


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_in_hand_when_its_run_is_stopped_changes_nothing_by_the_old_cutoff(
    fails: bool, settings: Settings, pg: Conn
) -> None:
    made = add_tombstones(pg, 10)
    if fails:
        foreign_key(pg, made[0], options="DEFERRABLE INITIALLY DEFERRED")
    close_gate(pg)
    with opened(settings, sweep_batch_rows=5) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        with in_background(lambda: work(rt, SWEEPS, run.run_id)):
            wait_at_gate(pg)
            stop(settings, run.run_id)
            open_gate(pg)
    assert ids(pg) == set(made)
    assert batch_states(pg, run.run_id) == {"cancelled": 2}
    assert receipts(pg, run.run_id) == (0, 0)
    assert_cleaned_away(settings, pg, run.run_id)
