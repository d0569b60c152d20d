"""Troubles that no row is to blame for, and words of operators that no valve writes over."""

import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from pushops.errors import RefusedError
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.settings import Settings
from pushops.sweeps import service
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.work import Outcome, work
from tests.sweepdb import Conn, add_tombstones, drive, ids, make_role, one, opened, run_of, scalar

TEST = Order(started_by="test")


def test_a_missing_right_holds_the_run_and_sets_no_row_apart(settings: Settings, pg: Conn, database_url: str) -> None:
    add_tombstones(pg, 40)
    make_role(pg, "no_delete")
    pg.execute("REVOKE DELETE ON push_subscription FROM no_delete")
    pg.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA pushops TO no_delete")
    poor = settings.model_copy(update={"database_url": SecretStr(make_conninfo(database_url, user="no_delete"))})
    with opened(poor, sweep_batch_rows=20, expected_replicas=None) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        for _ in range(4):
            pg.execute("UPDATE sweep_batch SET due_at = now() - interval '1 s' WHERE state = 'due'")
            work(rt, SWEEPS, run.run_id)
        held = run_of(rt, run.run_id)
    assert (held.state, held.held_by) == ("running", "setup")
    assert held.why is not None
    assert held.why.startswith("42501 InsufficientPrivilege")
    assert scalar(pg, "SELECT count(*) FROM sweep_quarantine") == 0
    assert len(ids(pg)) == 40
    with opened(settings, sweep_batch_rows=20) as rt:
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
    assert ids(pg) == set()


def test_a_worker_needs_no_more_than_the_smallest_pool(settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    with opened(settings, sweep_batch_rows=20, pool_size=1) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        assert work(rt, SWEEPS, run.run_id).batches == 2
        assert run_of(rt, run.run_id).state == "done"


@pytest.mark.parametrize("ask", ["pause", "cancel"])
def test_a_valve_does_not_write_over_what_an_operator_said(ask: str, settings: Settings, pg: Conn) -> None:
    add_tombstones(pg, 40)
    with opened(settings) as rt:
        run = dispatch(rt, PURGE_TOMBSTONES, None, TEST).run
        assert run is not None
        pg.execute(
            "UPDATE sweep_batch SET state = 'claimed', claim_token = gen_random_uuid(), claimed_until = now() + '1h'"
        )
        verb = service.pause_run if ask == "pause" else service.cancel_run
        verb(rt, run.run_id, actor="anna", why="incident 7")
        service.pause_sweep(rt, PURGE_TOMBSTONES, actor="ben", why="other")
        assert work(rt, SWEEPS, run.run_id).outcome is Outcome.HELD
        assert "anna: incident 7" in (run_of(rt, run.run_id).why or "")


def test_asking_a_closed_run_is_refused(settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        run = drive(rt, PURGE_TOMBSTONES)
        with pytest.raises(RefusedError, match="expected a run that is running, got one that is done"):
            service.pause_run(rt, run.run_id, actor="anna", why="too late")
    assert one(pg, "SELECT state, why FROM sweep_run") == ("done", None)
