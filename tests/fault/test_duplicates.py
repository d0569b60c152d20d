"""Everything twice: messages, beats, dispatchers, and far more workers than may work at once."""

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pushops import tasks
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.hostile import CONFIG, dispatch_together
from tests.sweeping import (
    TEND,
    assert_every_batch_has_one_receipt,
    assert_purged,
    beat,
    closed,
    count,
    finish,
    hashes,
    make_rows,
    open_runs,
    publishing,
    run_of,
    start,
    tombstones,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

TWICE = {"FAULT": "twice"}


def test_every_message_delivered_twice_at_once_changes_nothing(hurried: Settings, pg: psycopg.Connection[Any]) -> None:
    """From the dispatcher's own to the last follow-up: the second finds its receipts, or no slot, or nothing due."""
    make_rows(pg, 400)
    once = {"dispatch": {"task": "pushops.dispatch_sweep", "schedule": 0.3, "args": ["purge-tombstones"]}, "tend": TEND}
    with workers(hurried, 4, config=CONFIG, environment=TWICE) as pool, beat(hurried, once):
        wait_until(lambda: tombstones(pg) == 0 and open_runs(pg) == 0, expected="an empty table and no open run")
        send_again(hurried, pg)
        pool.wait_for_event("sweep.batch", outcome="already_applied")
        assert pool.popen.poll() is None
    assert_every_batch_has_one_receipt(pg, rows=400)
    assert count(pg, "SELECT coalesce(sum(ended), 0) FROM subscription_ended_daily") == 400
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1
    assert count(pg, "SELECT count(*) FROM sweep_run WHERE state <> 'done'") == 0


def send_again(settings: Settings, pg: psycopg.Connection[Any]) -> None:
    """A message so late that its batches have their receipts: whether one of the others is that late is chance."""
    run, batch = pg.execute("SELECT run_id, batch_id FROM sweep_receipt LIMIT 1").fetchall()[0]
    with publishing(settings):
        tasks.sweep_batches.delay(str(run), [str(batch)])


def test_two_beats_purge_once(hurried: Settings, pg: psycopg.Connection[Any]) -> None:
    """Both tick, both dispatch: the second joins the open run (D13, F16)."""
    make_rows(pg, 20, state="active")
    kept = hashes(pg)
    make_rows(pg, 400)
    night = {"purge": {"task": "pushops.dispatch_sweep", "schedule": 0.2, "args": ["purge-tombstones"]}, "tend": TEND}
    with beat(hurried, night) as one, beat(hurried, night) as other, workers(hurried, 2):
        for clock in (one, other):
            clock.wait_for_text("Sending due task purge")
        wait_until(lambda: tombstones(pg) == 0 and open_runs(pg) == 0, expected="an empty table and no open run")
    assert hashes(pg) == kept
    assert_every_batch_has_one_receipt(pg, rows=400)
    assert count(pg, "SELECT count(DISTINCT run_id) FROM sweep_receipt") == 1
    assert count(pg, "SELECT sum(expected) FROM sweep_batch") == 400, "a page twice, or none"


def test_dispatchers_that_start_at_the_same_moment_write_one_set_of_batches(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any]
) -> None:
    """Four processes at a barrier: one run, its pages without gap or overlap (D13)."""
    make_rows(pg, 500)
    context = multiprocessing.get_context("spawn")
    barrier, outcomes = context.Barrier(4), context.Queue()
    dispatchers = [context.Process(target=dispatch_together, args=(hurried, barrier, outcomes)) for _ in range(4)]
    for process in dispatchers:
        process.start()
    found = [outcomes.get(timeout=20) for _ in dispatchers]
    for process in dispatchers:
        process.join()
    assert len({run for _, run in found}) == 1, found
    run = found[0][1]
    assert [outcome for outcome, _ in found].count("dispatched") == 1
    assert count(pg, "SELECT sum(expected) FROM sweep_batch WHERE run_id = %s", run) == 500
    assert count(pg, "SELECT count(*) FROM sweep_batch") == 25
    assert count(pg, "SELECT count(DISTINCT lo) FROM sweep_batch") == 24, "the first page has no lower bound"
    with publishing(hurried), workers(hurried, 2):
        finish(engine, pg, run)
    assert_purged(pg, run, rows=500)


@contextmanager
def most_claimed_at_once(url: str) -> Iterator[list[int]]:
    """Samples of how many batches were claimed under a live lease."""
    samples: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        with psycopg.connect(url, autocommit=True, options="-c search_path=pushops") as conn:
            while not stop.wait(0.005):
                samples.append(count(conn, "SELECT count(*) FROM sweep_batch WHERE claimed_until > clock_timestamp()"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        stop.set()
        watcher.join()


# The receipts' own intervals, swept in order of time: how many were at work at the busiest moment.
BUSIEST = """
WITH edges AS (
  SELECT applied_at - make_interval(secs => seconds) AS at, 1 AS step FROM sweep_receipt
  UNION ALL SELECT applied_at, -1 FROM sweep_receipt)
SELECT max(busy) FROM (SELECT sum(step) OVER (ORDER BY at, step) AS busy FROM edges) AS swept"""


# A batch that takes 20 ms longer: workers meet.
SLOW = """
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$;
CREATE TRIGGER dawdle AFTER DELETE ON push_subscription FOR EACH STATEMENT EXECUTE FUNCTION dawdle()"""


def test_fifty_workers_never_do_more_than_two_batches_at_once(
    hurried: Settings, engine: Runtime, pg: psycopg.Connection[Any], database_url: str
) -> None:
    """Samples of the claims and the receipts' own intervals agree; both slots were used, and nothing is lost."""
    make_rows(pg, 800)
    pg.execute(SLOW)
    crowd = hurried.model_copy(update={"pool_size": 50})
    with publishing(hurried), workers(crowd, 50, pool="threads"), most_claimed_at_once(database_url) as samples:
        run = run_of(start(engine))
        for _ in range(50):
            tasks.bell(engine).ring(run, ())
        wait_until(lambda: closed(pg, run), expected="the run's end")
    assert max(samples) == 2
    assert count(pg, BUSIEST) == 2
    assert count(pg, "SELECT max(attempts) FROM sweep_batch") == 1
    assert_purged(pg, run, rows=800)
