"""A drain as a task: real workers, a real broker, and what is doubled, malformed, or paced among them."""

import json
from typing import Any

import pytest

from pushops import tasks
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replaying import parked, states
from tests.sweeping import beat, count, publishing, wait_until, workers
from tests.unsettled import sending

TENDING = {"tend_sweeps": {"task": "pushops.tend_sweeps", "schedule": 0.5, "options": {"expires": 1.0}}}


def quickly(settings: Settings, service: PushService, broker_url: str, **changes: Any) -> Settings:
    return sending(settings, service, broker_url, **{"replay_share": 1.0} | changes)


def over(pg: Pg) -> bool:
    """There were runs, and they have come to their ends."""
    return count(pg, "SELECT coalesce(bool_and(closed_at IS NOT NULL), false)::int FROM sweep_run") == 1


@pytest.mark.long
def test_a_doubled_task_drains_what_its_words_mean_once(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    hurried = quickly(settings, pushed_to, valkey_url)
    words = {"campaign": "spring", "class": "retry_exhausted"}
    assert len(json.dumps(words)) < 256
    with outgoing(hurried, pushed_to) as out:
        meant = _endpoints(out, pg, 1500, "spring")
        others = _endpoints(out, pg, 30, "autumn")
        with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, TENDING):
            for _ in range(3):
                tasks.drain_dlq.delay(**words)
            wait_until(lambda: over(pg), 60, pool.tail)
        assert states(pg) == {("replayed", "replayed"): 1500, ("parked", None): 30}
        assert pushed_to.received(meant) == [1] * 1500
        assert pushed_to.received(others) == [0] * 30
    outcomes = pg.execute("SELECT sum((outcomes ->> 'replayed')::int) FROM sweep_run").fetchone()
    assert outcomes == (1500,)


def test_words_that_mean_nothing_are_acknowledged_and_counted(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    hurried = quickly(settings, pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out:
        parked(out, pg, 2)
        with publishing(hurried), workers(hurried, 1) as pool:
            for words in ({"no_such": "word"}, {"class": "everything"}, {"rate": -1}, {"run_id": "no id"}, {}):
                tasks.drain_dlq.delay(**words)
            wait_until(lambda: len(pool.events("sweep.unknown_id")) == 5, 30, pool.tail)
    assert count(pg, "SELECT count(*) FROM sweep_run") == 0
    assert states(pg) == {("parked", None): 2}


@pytest.mark.long
def test_a_pace_is_kept_by_the_workers_of_a_run(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """400 letters at 80 a second take five seconds, of workers that mostly do something else."""
    hurried = quickly(settings, pushed_to, valkey_url, provider_rate=800.0, replay_share=0.1)
    with outgoing(hurried, pushed_to) as out:
        _endpoints(out, pg, 400, "spring")
        with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, TENDING):
            tasks.drain_dlq.delay(campaign="spring", ramp=0.001)
            wait_until(lambda: over(pg), 60, pool.tail)
        assert states(pg) == {("replayed", "replayed"): 400}
    row = pg.execute("SELECT extract(epoch FROM max(settled_at) - min(at))::float8 FROM push_dlq_attempt").fetchone()
    assert row is not None
    assert 400 / row[0] <= 80 * 1.1


def _endpoints(out: Outgoing, pg: Pg, letters: int, campaign: str) -> list[str]:
    before = len(out.endpoints)
    parked(out, pg, letters, campaign=campaign)
    return out.endpoints[before:]
