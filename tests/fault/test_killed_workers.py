"""Workers that die: in mid-transaction, between commit and acknowledgement, by their own batch, by an order to stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import redis

from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from tests.hostile import CONFIG, KILLER, PURGE_BY_ACTING
from tests.sweeping import (
    DEADLINE,
    TENDING,
    assert_every_batch_has_one_receipt,
    assert_purged,
    closed,
    count,
    expire_leases,
    finish,
    make_rows,
    publishing,
    queue_length,
    run_of,
    start,
    state_of,
    tend,
    tombstones,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

# A delivered message that nobody acknowledges comes back after a second; kombu looks every tenth of one.
IMPATIENT: Final = {"visibility_timeout": 1, "unacked_restore_interval": 0.1, "unacked_restore_throttle": 1}
REDELIVERY: Final = f"broker_transport_options.update({IMPATIENT!r})\n"

# The delete of a gated row waits inside the worker's transaction for whoever holds the lock.
GATE: Final = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN OLD; END $$;
CREATE TRIGGER gate BEFORE DELETE ON push_subscription FOR EACH ROW WHEN (OLD.user_id = 'gated')
EXECUTE FUNCTION gate()"""
WAITING: Final = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@contextmanager
def gate(pg: psycopg.Connection[Any]) -> Iterator[None]:
    """While open, whoever deletes a gated row waits in mid-transaction."""
    pg.execute(GATE)
    pg.execute("SELECT pg_advisory_lock(42)")
    try:
        yield
    finally:
        pg.execute("SELECT pg_advisory_unlock(42)")


def wait_for_a_worker_in_mid_transaction(pg: psycopg.Connection[Any]) -> None:
    wait_until(lambda: count(pg, WAITING) > 0, expected="a worker that waits at the gate")


def test_a_worker_killed_in_mid_transaction_has_done_nothing_and_its_batch_is_done_again(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any]
) -> None:
    """The half-done delete is rolled back; after the real lease another worker takes the batch (D05, D07)."""
    make_rows(pg, 95)
    make_rows(pg, 5, user="gated")
    with publishing(hurried):
        with gate(pg), workers(hurried, 1, pool="solo") as victim:
            run = run_of(start(engine))
            wait_for_a_worker_in_mid_transaction(pg)
            victim.kill()
        with workers(hurried, 1):
            finish(engine, pg, run)
    assert_purged(pg, run, rows=100)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch WHERE run_id = %s", run) == 2


@pytest.fixture
def dying(tmp_path: Path) -> dict[str, str]:
    """A worker with this environment dies between the commit and the acknowledgement of its first batches, once."""
    flag = tmp_path / "die"
    flag.touch()
    return {"FAULT": "die-after-work", "FAULT_FLAG": str(flag)}


def test_a_child_killed_between_commit_and_acknowledgement_costs_a_message_and_no_row(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any], dying: dict[str, str]
) -> None:
    """Its parent puts the only message back, and the next child finds the receipt (D02, D07)."""
    make_rows(pg, 20)
    with publishing(hurried), workers(hurried, 1, config=CONFIG, environment=dying) as pool:
        run = run_of(start(engine))
        pool.wait_for_event("sweep.batch", outcome="already_applied")
        finish(engine, pg, run, pool)
        assert len(pool.events("sweep.batch")) == 2
    assert_purged(pg, run, rows=20)
    assert not Path(dying["FAULT_FLAG"]).exists()


def test_a_worker_killed_between_commit_and_acknowledgement_costs_a_message_and_no_row(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any], dying: dict[str, str]
) -> None:
    """The broker delivers the only message again after the visibility timeout, to another worker (D02)."""
    make_rows(pg, 20)
    with publishing(hurried):
        with workers(hurried, 1, pool="solo", config=CONFIG, environment=dying) as victim:
            run = run_of(start(engine))
            victim.popen.wait(DEADLINE)
        assert_purged(pg, run, rows=20)
        with workers(hurried, 1, config=REDELIVERY) as rescuer:
            rescuer.wait_for_event("sweep.batch", outcome="already_applied")
    assert_purged(pg, run, rows=20)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1


def test_a_batch_that_kills_its_worker_is_quarantined_after_three_and_the_rest_is_purged(
    hurried: Settings, pg: psycopg.Connection[Any]
) -> None:
    """The attempt is committed before the work: three deaths name the batch, and the pool goes on (D07)."""
    make_rows(pg, 50)
    make_rows(pg, 1, user=KILLER)
    make_rows(pg, 49)
    roomy = hurried.model_copy(update={"sweep_max_parallel": 8})  # each death leaves a slot taken until its lease ends
    with runtime(roomy) as rt, publishing(roomy), workers(roomy, 2, config=CONFIG) as pool:
        run = run_of(start(rt, PURGE_BY_ACTING))
        for deaths in (1, 2, 3):
            _expect_death(rt, pg, deaths)
        finish(rt, pg, run)
        assert pool.popen.poll() is None
    assert state_of(pg, run) == ("done", "1 quarantined")
    killer = "SELECT count(*) FROM push_subscription WHERE user_id = %s"
    assert count(pg, killer, KILLER) == 1
    assert tombstones(pg) == 20, "one page stays, the others are gone"
    assert_every_batch_has_one_receipt(pg, run, rows=80)
    found = pg.execute("SELECT state, attempts, last_error FROM sweep_batch WHERE state <> 'done'").fetchall()
    assert found == [("quarantined", 3, "worker_lost")]
    assert count(pg, "SELECT count(*) FROM sweep_quarantine WHERE error = 'worker_lost'") == 1


def _expect_death(rt: Runtime, pg: psycopg.Connection[Any], deaths: int) -> None:
    """Wait until the killing batch has taken that many workers, and let its last claim run out.

    Where the lease ran out by itself, the tending may have set the batch apart already, or another have claimed it.
    """
    query = (
        "SELECT batch_id, worker FROM sweep_batch"
        " WHERE state IN ('claimed', 'quarantined') AND attempts >= %s AND failures = 0"
    )

    def dead() -> Any:
        tend(rt)
        found = pg.execute(query, [deaths]).fetchone()
        return found and not Path(f"/proc/{found[1].split(':')[1]}").exists() and found

    batch, _ = wait_until(dead, expected=f"death {deaths}", poll=TENDING)
    expire_leases(pg, batch)


def test_a_warm_shutdown_under_load_leaves_nothing_in_hand(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any], valkey_url: str
) -> None:
    """SIGTERM ends with code 0, no claim, no slot and no unacknowledged message; others finish (D04, D05)."""
    make_rows(pg, 600)
    slow = hurried.model_copy(update={"sweep_pause_ms": 200})
    with publishing(hurried), redis.Redis.from_url(valkey_url) as broker:
        with workers(slow, 2) as stopped:
            run = run_of(start(engine))
            wait_until(lambda: count(pg, "SELECT count(*) FROM sweep_receipt") >= 3, expected="the first batches")
            assert stopped.terminate() == 0
        assert not closed(pg, run), "expected to stop it in the middle"
        assert count(pg, "SELECT count(*) FROM sweep_batch WHERE state = 'claimed'") == 0
        assert count(pg, "SELECT count(*) FROM sweep_slot WHERE holder IS NOT NULL") == 0
        assert broker.hlen("unacked") == 0
        assert queue_length(broker) > 0
        with workers(hurried, 2):
            finish(engine, pg, run)
    assert_purged(pg, run, rows=600)
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1
