"""Many drains at the same letters: each letter goes out once, and who comes too late changes nothing."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from pushops.deadletters import service as replays
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.letters import letter
from tests.outgoing import Pg, outgoing, settings_for
from tests.replaying import Drained, attempts, change, drain, parked, states
from tests.sweeping import wait_until

GOOGLE = "fcm.googleapis.com"


@contextmanager
def drains(
    settings: Settings, service: PushService, count: int, sinks: tuple[Any, ...] = (), **words: str
) -> Iterator[list[Future[Drained]]]:
    """Drains side by side, each with a runtime and connections of its own."""

    def one(rt: Runtime) -> Drained:
        try:
            return drain(rt, **words)
        finally:
            rt.close()

    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(one, open_runtime(settings_for(settings, service), sinks=sinks)) for _ in range(count)]


def test_runs_with_overlapping_filters_send_no_letter_twice(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    with outgoing(settings, pushed_to) as out:
        parked(out, pg, 400, campaign="a")
        parked(out, pg, 300, campaign="b")
        with drains(settings, pushed_to, 1) as all_of_them, drains(settings, pushed_to, 1, campaign="a") as some:
            outcomes = [each.result(60).outcomes for each in all_of_them + some]
        assert {name for found in outcomes for name in found} == {"replayed"}
        assert sum(found.get("replayed", 0) for found in outcomes) == 700
        assert pushed_to.received(out.endpoints) == [1] * 700


def test_ten_workers_of_one_run_and_a_slow_push_service_send_no_letter_twice(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    with outgoing(settings, pushed_to) as out:
        parked(out, pg, 1200)
        pushed_to.script("slow", host=GOOGLE, delay=0.05)
        with drains(settings, pushed_to, 10) as pool:
            found = [each.result(120) for each in pool]
        while drain(out.rt).outcomes:
            pass
        assert {each.state for each in found} == {"done"}
        assert states(pg) == {("replayed", "replayed"): 1200}
        assert pushed_to.received(out.endpoints) == [1] * 1200


def test_an_answer_after_the_lease_changes_nothing_and_the_letter_is_in_doubt(
    settings: Settings, pushed_to: PushService, pg: Pg, recorded: Any
) -> None:
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks) as out:
        (one,) = parked(out, pg)
        pushed_to.script("slow", host=GOOGLE, delay=2.0)
        with drains(settings, pushed_to, 1, sinks) as pool:
            _lose_lease_in_flight(out.rt, pushed_to, pg, out.endpoints)
            found = letter(pg, one)
            assert (found["replay_state"], found["close_reason"]) == ("discarded", "in_doubt")
            done = pool[0].result(30)
        assert letter(pg, one) == found
        assert [fields["rows"] for _, name, fields in recorded if name == "replay.lost"] == [1]
        assert done.outcomes == {"in_doubt": 1}
        assert [attempt["outcome"] for attempt in attempts(pg, one)] == ["in_doubt"]
        assert pushed_to.accepted(out.endpoints) == [1]
        assert drain(out.rt).outcomes == {}


def test_a_late_holder_does_not_close_what_another_has_by_now(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    """Where a message may be sent twice, the one who holds it settles it: the late one's answer is dropped."""
    with outgoing(settings, pushed_to) as out:
        (one,) = parked(out, pg, on_in_doubt="resend")
        pushed_to.script("slow", host=GOOGLE, answers=["as-usual"], delay=2.0, times=1)
        with drains(settings, pushed_to, 1) as pool:
            _lose_lease_in_flight(out.rt, pushed_to, pg, out.endpoints)
            assert letter(pg, one)["replay_state"] == "parked"
            mine = {"replay_state": "'claimed'", "claim_token": "new_id()", "claimed_until": "now() + interval '1 h'"}
            change(pg, [one], **mine)
            before = letter(pg, one)
            assert pool[0].result(30).outcomes == {"in_doubt": 1}
        assert letter(pg, one) == before


def _lose_lease_in_flight(rt: Runtime, service: PushService, pg: Pg, endpoints: list[str]) -> None:
    """Wait until the push service has the request, and let the lease behind it run out."""
    wait_until(lambda: service.received(endpoints) == [1], 20, "the request at the push service")
    pg.execute("UPDATE pushops.push_dlq SET claimed_until = now() - interval '1 second' WHERE replay_state = 'claimed'")
    assert [each.opened for each in replays.reap(rt)] == [True]


@pytest.mark.long
def test_a_pace_is_kept_by_all_workers_together(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """Two runs and four workers: no push service is sent to faster than its share."""
    hurried = settings.model_copy(update={"broker_url": SecretStr(valkey_url), "provider_rate": 400.0})
    with outgoing(hurried, pushed_to, provider_rate=400.0) as out:
        parked(out, pg, 300)
        started = pg.execute("SELECT clock_timestamp()").fetchone()
        assert started is not None

        def one(rt: Runtime) -> Drained:
            try:
                return drain(rt, options={"rate": 60, "ramp": 0.001})
            finally:
                rt.close()

        with ThreadPoolExecutor(4) as pool:
            runtimes = [open_runtime(settings_for(hurried, pushed_to, provider_rate=400.0)) for _ in range(4)]
            found = [each.result(60) for each in [pool.submit(one, rt) for rt in runtimes]]
        assert {each.state for each in found} == {"done"}
        took = pg.execute("SELECT extract(epoch FROM clock_timestamp() - %s)::float8", started).fetchone()
        assert took is not None
        assert states(pg) == {("replayed", "replayed"): 300}
        assert 300 / took[0] <= 66


def test_what_was_sent_and_cannot_be_settled_is_in_doubt_and_not_sent_again(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    """An answer that nobody could write down: the letter is not given back as if it had never gone out."""
    with outgoing(settings, pushed_to) as out:
        (one,) = parked(out, pg)
        pg.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
            "CREATE TRIGGER refuse BEFORE UPDATE ON push_dlq_attempt FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        drain(out.rt)
        assert letter(pg, one)["replay_state"] == "claimed"
        pg.execute("DROP TRIGGER refuse ON push_dlq_attempt")
        pg.execute("UPDATE push_dlq SET claimed_until = now() - interval '1 second'")
        replays.reap(out.rt)
        assert states(pg) == {("discarded", "in_doubt"): 1}
        assert drain(out.rt).outcomes == {}
        assert pushed_to.accepted(out.endpoints) == [1]
