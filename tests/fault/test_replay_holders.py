"""Many drains, a slow push service, leases that run out, and a push service that begins to fail in mid-drain."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from pushops.deadletters import service as replays
from pushops.deadletters.replay.deciding import FAILURES
from pushops.deadletters.replay.sending import FEW
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.hostile import CONFIG
from tests.outgoing import Pg, outgoing
from tests.replay_faults import (
    CLAIMED,
    OPENED,
    SCHEDULE,
    as_counted,
    ask,
    at_most_once,
    changed_after_its_end,
    ends_of_runs,
    outcomes,
    replaying,
    run_over,
    watch_ends,
)
from tests.replaying import parked, states
from tests.sweeping import Process, beat, count, publishing, wait_until, workers

pytestmark = pytest.mark.long

TWICE: Final[dict[str, Any]] = {"config": CONFIG, "environment": {"FAULT": "twice"}}
GOOGLE: Final = "fcm.googleapis.com"
CHILDREN: Final = 10
DONE: Final = "SELECT count(*) FROM push_dlq WHERE replay_state IN ('replayed', 'discarded')"
# Whoever stands in a claim for longer than this loses it.
LOSE_SOME: Final = """
UPDATE pushops.push_dlq SET claimed_until = clock_timestamp() - interval '1 ms'
 WHERE dlq_id IN (SELECT dlq_id FROM pushops.push_dlq WHERE replay_state = 'claimed' ORDER BY random() LIMIT 10
                     FOR UPDATE SKIP LOCKED)"""


@contextmanager
def again_and_again(what: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do something beside the test until its block ends."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            what()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lost(pool: Process) -> int:
    """Letters whose answers came to workers that held them no more."""
    return sum(event["rows"] for event in pool.events("replay.lost"))


def test_ten_workers_two_drains_and_lost_leases_send_no_letter_twice(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """Every task is doubled; late holders settle nothing, and no letter changes after its end (E05, E06, E08)."""
    hurried = replaying(settings, pushed_to, valkey_url, replay_parallel=CHILDREN)
    with outgoing(hurried, pushed_to) as out:
        for campaign in ("a", "b"):
            parked(out, pg, 600, campaign=campaign)
        watch_ends(pg)
        out.service.script("slow", host=GOOGLE, delay=0.4)
        reaped: list[bool] = []

        def lose_some() -> None:
            with out.rt.db.transaction() as tx:
                tx.conn.execute(LOSE_SOME)
            reaped.extend(each.opened for each in replays.reap(out.rt))

        def all_done() -> bool:
            if count(pg, DONE) == 1200:
                return run_over(pg)
            if run_over(pg):
                ask()
            return False

        with publishing(hurried), workers(hurried, CHILDREN, **TWICE) as pool, beat(hurried, SCHEDULE):
            ask(2)
            ask(2, campaign="a")
            with again_and_again(lose_some, 0.5):
                wait_until(lambda: len(reaped) >= 30, expected=pool.tail)
            out.service.clear()
            wait_until(all_done, 60, pool.tail, poll=0.3)
            late = lost(pool)
        assert max(out.service.received(out.endpoints)) == 1
    at_most_once(pg, pushed_to)
    as_counted(pg)
    assert outcomes(pg).keys() == {"replayed", "in_doubt"}
    assert outcomes(pg)["in_doubt"] == reaped.count(True)
    assert 0 < late <= reaped.count(True), "expected answers that came after their leases"
    assert changed_after_its_end(pg) == 0


def test_a_push_service_that_begins_to_fail_ends_the_drain_of_all_its_workers(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """Four children; what was claimed is as it was, and few were tried (E15)."""
    hurried = replaying(settings, pushed_to, valkey_url, in_flight=10)
    with outgoing(hurried, pushed_to) as out:
        parked(out, pg, 2000)
        out.service.script("slow", host=GOOGLE, delay=0.1)
        with publishing(hurried), workers(hurried, 4) as pool:
            ask()
            wait_until(lambda: out.service.counts()["accepted"] > 100, expected=pool.tail)
            out.service.script("fails", host=GOOGLE, answer="fcm-500", delay=0.1)
            wait_until(lambda: run_over(pg) and count(pg, CLAIMED) == 0, expected=pool.tail)
    ((state, why),) = ends_of_runs(pg)
    assert state == "stopped", why
    assert why
    assert "failures in a row" in why or "fcm is unhealthy" in why
    found, said = states(pg), outcomes(pg)
    assert found.keys() == {("replayed", "replayed"), ("parked", None)}
    tried = count(pg, "SELECT count(*) FROM push_dlq_attempt WHERE kind = 'replay' AND outcome = 'unavailable'")
    assert FAILURES <= tried <= 4 * (10 + FAILURES)
    assert said.get("failed", 0) + said.get("held", 0) >= tried
    assert count(pg, OPENED) == 0
    untouched = "SELECT count(*) FROM push_dlq WHERE replay_state = 'parked' AND attempt_count = 10"
    assert count(pg, untouched) >= found["parked", None] - tried
    at_most_once(pg, pushed_to)


def test_a_push_service_that_is_down_from_the_start_is_tried_a_few_times_by_all_workers_together(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    hurried = replaying(settings, pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out:
        parked(out, pg, 2000)
        out.service.script("fails", host=GOOGLE, answer="fcm-500", delay=0.1)
        with publishing(hurried), workers(hurried, 4, **TWICE) as pool:
            ask(3)
            wait_until(lambda: run_over(pg) and count(pg, CLAIMED) == 0, expected=pool.tail)
        assert FAILURES <= out.service.counts()["received"] <= 4 * (FEW + FAILURES)
    ((state, why),) = ends_of_runs(pg)
    assert (state, bool(why)) == ("stopped", True)
    assert states(pg) == {("parked", None): 2000}
    assert count(pg, OPENED) == 0
    assert count(pg, "SELECT failures_in_row FROM sweep_run") >= FAILURES
