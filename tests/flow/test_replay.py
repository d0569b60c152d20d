"""Replays, end to end: letters go out again with what remains of their time, and once."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from pushops.deadletters import service as replays
from pushops.deadletters.filters import Filter
from pushops.delivery import providers
from pushops.delivery.providers import Pausable
from pushops.errors import RefusedError
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from tests.letters import letter
from tests.outgoing import Outgoing, Pg, outgoing, subscriptions_of
from tests.renderers import BAD
from tests.replaying import age_messages, attempts, change, drain, due, park, parked, states, subscription_ids

HOUR = 3600
GOOGLE = "fcm.googleapis.com"


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def answered(out: Outgoing, *answers: object, **script: object) -> None:
    out.service.script("test", host=GOOGLE, answers=list(answers) or ["as-usual"], **script)


def test_a_letter_is_sent_again_and_closed(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    done = drain(out.rt)
    assert (done.state, done.outcomes) == ("done", {"replayed": 1})
    assert states(pg) == {("replayed", "replayed"): 1}
    assert out.service.accepted(out.endpoints) == [1]
    (attempt,) = attempts(pg, one)
    assert (attempt["outcome"], attempt["attempt"], attempt["run_id"]) == ("accepted", 11, done.run.run_id)
    assert letter(pg, one)["closed_by"] == f"run:{done.run.run_id}"
    assert drain(out.rt).outcomes == {}


def test_what_remains_of_the_ttl_goes_out_with_the_original_urgency_and_topic(out: Outgoing, pg: Pg) -> None:
    parked(out, pg, ttl=6 * HOUR, urgency="high", topic="news")
    age_messages(pg, "3 hours")
    assert drain(out.rt).outcomes == {"replayed": 1}
    (held,) = out.service.messages(out.endpoints[0])
    topic = pg.execute("SELECT topic FROM pushops.push_message").fetchone()
    assert abs(held["ttl"] - 3 * HOUR) <= 2
    assert (held["urgency"], (held["topic"],)) == ("high", topic)


def test_of_a_backlog_of_codes_three_days_old_not_one_is_sent(out: Outgoing, pg: Pg) -> None:
    parked(out, pg, 300, ttl=600)
    age_messages(pg, "3 days")
    before = pg.execute("SELECT dlq_id, expires_at FROM pushops.push_dlq ORDER BY 1").fetchall()
    assert drain(out.rt).outcomes == {"stale": 300}
    assert out.service.received(out.endpoints) == [0] * 300
    assert states(pg) == {("discarded", "ttl_expired"): 300}
    assert pg.execute("SELECT dlq_id, expires_at FROM pushops.push_dlq ORDER BY 1").fetchall() == before


def test_the_preview_of_a_frozen_table_is_what_happens_gate_by_gate(out: Outgoing, pg: Pg) -> None:
    fine = parked(out, pg, 30)
    stale = parked(out, pg, 4)
    change(pg, stale[:2], expires_at="now() + interval '59 seconds'")
    change(pg, stale[2:], replayable="false")
    _end_subscriptions(pg, parked(out, pg, 3))
    twice = parked(out, pg, 2)
    pg.execute(
        "UPDATE pushops.push_dispatch SET outcome = 'accepted' FROM pushops.push_dlq AS d"
        " WHERE push_dispatch.message_id = d.message_id AND d.dlq_id = ANY(%s)",
        [twice],
    )
    change(pg, parked(out, pg, 5), in_doubt="true")
    parked(out, pg, 6, campaign="waits")
    providers.pause(out.rt, Pausable.CAMPAIGN, "waits", actor="test")
    change(pg, parked(out, pg, 7), error_class="'poison'")
    change(pg, parked(out, pg, 8), next_replay_at="now() + interval '1 hour'")
    seen = replays.preview(out.rt, Filter())
    assert (seen.total, seen.poison_left_out, seen.waiting) == (65, 7, 8)
    assert (seen.would_send, seen.services) == (30, {"fcm": 30})
    done = drain(out.rt)
    assert done.outcomes == {"replayed": 30, "stale": 4, "gone": 3, "duplicate": 2, "in_doubt": 5, "held": 6}
    assert (seen.stale, seen.gone, seen.duplicate, seen.in_doubt, seen.held) == (4, 3, 2, 5, 6)
    reasons = {reason: count for (state, reason), count in states(pg).items() if state == "discarded"}
    assert reasons == {name: count for name, count in seen.reasons.items() if name != "held"}
    assert sorted(out.service.accepted(out.endpoints)) == [0] * 35 + [1] * 30
    assert all(letter(pg, each)["replay_state"] == "replayed" for each in fine)


def _end_subscriptions(pg: Pg, ids: list[UUID]) -> None:
    """One left, one changed hands, one is blocked."""
    query = (
        "UPDATE pushops.push_subscription AS s SET {} FROM pushops.push_dlq AS d"
        " WHERE s.id = d.subscription_id AND d.dlq_id = %s"
    )
    ends = (
        "state = 'revoked', deleted_at = now(), revoked_at = now(), end_reason = 'unsubscribed'",
        "user_id = 'somebody else'",
        "send_block = 'dead_service', blocked_at = now()",
    )
    for each, change_of in zip(ids, ends, strict=True):
        pg.execute(query.format(change_of).encode(), [each])


def test_a_failed_replay_is_parked_behind_the_others_and_given_up_at_the_cap(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    with outgoing(settings, pushed_to, replay_attempts=3) as out:
        (one,) = parked(out, pg)
        answered(out, "fcm-503")
        assert drain(out.rt).outcomes == {"failed": 1}
        found = letter(pg, one)
        assert (found["replay_state"], found["attempt_count"], found["replay_count"]) == ("parked", 11, 1)
        assert found["terminal_status"] == 503
        waits = pg.execute("SELECT next_replay_at > now() + interval '20 seconds' FROM pushops.push_dlq").fetchone()
        assert waits == (True,)
        assert drain(out.rt).outcomes == {}
        for _ in range(2):
            due(pg)
            drain(out.rt)
        assert states(pg) == {("discarded", "replay_exhausted"): 1}
        assert [attempt["outcome"] for attempt in attempts(pg, one)] == ["unavailable"] * 3
        assert out.service.received(out.endpoints) == [3]


def test_one_that_failed_is_sent_once_it_is_due(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    answered(out, "fcm-503", "as-usual")
    drain(out.rt)
    due(pg)
    assert drain(out.rt).outcomes == {"replayed": 1}
    assert [attempt["attempt"] for attempt in attempts(pg, one)] == [11, 12]


@pytest.mark.parametrize(("answer", "status"), [("fcm-410", 410), ("fcm-404", 404)])
def test_who_is_gone_ends_the_letter_and_is_believed_as_in_live_sending(
    out: Outgoing, pg: Pg, answer: str, status: int
) -> None:
    (one,) = parked(out, pg)
    answered(out, answer)
    assert drain(out.rt).outcomes == {"gone": 1}
    found = letter(pg, one)
    assert (found["close_reason"], found["terminal_status"]) == ("subscription_gone", 503)
    assert attempts(pg, one)[0]["status"] == status
    assert subscriptions_of(pg, "state", "votes") == {("revoked", 0) if status == 410 else ("pending", 1): 1}


def test_a_throttled_letter_waits_as_long_as_it_was_asked_and_loses_nothing(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    answered(out, {"status": 429, "headers": {"Retry-After": "120"}}, "as-usual")
    assert drain(out.rt).outcomes == {"throttled": 1}
    found = letter(pg, one)
    assert (found["replay_state"], found["attempt_count"], found["replay_count"]) == ("parked", 10, 0)
    assert (found["terminal_status"], found["error_code"]) == (503, "unavailable")
    waits = pg.execute(
        "SELECT next_replay_at - now() BETWEEN interval '115 seconds' AND interval '160 seconds' FROM pushops.push_dlq"
    ).fetchone()
    assert waits == (True,)
    due(pg)
    assert drain(out.rt).outcomes == {"held": 1}  # the endpoint asked to be left alone, whoever sends
    pg.execute("DELETE FROM pushops.push_throttle")
    assert drain(out.rt).outcomes == {"replayed": 1}
    assert out.service.accepted(out.endpoints) == [1]


def test_what_may_have_been_taken_is_in_doubt_and_not_sent_again(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    out.service.script("dies", host=GOOGLE, fault="close", accept=True)
    assert drain(out.rt).outcomes == {"in_doubt": 1}
    assert letter(pg, one)["close_reason"] == "in_doubt"
    out.service.clear()
    due(pg)
    assert drain(out.rt).outcomes == {}
    assert out.service.accepted(out.endpoints) == [1]


def test_what_may_have_been_taken_is_sent_again_where_the_message_says_so(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg, on_in_doubt="resend")
    out.service.script("dies", host=GOOGLE, fault="close", accept=True, times=1)
    assert drain(out.rt).outcomes == {"in_doubt": 1}
    found = letter(pg, one)
    assert (found["replay_state"], found["replay_count"], found["in_doubt"]) == ("parked", 1, True)
    due(pg)
    assert drain(out.rt).outcomes == {"replayed": 1}
    assert out.service.accepted(out.endpoints) == [2]


def test_a_refused_message_becomes_poison_and_is_left_out_from_then_on(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    answered(out, "fcm-400-encoding")
    assert drain(out.rt).outcomes == {"failed": 1}
    assert letter(pg, one)["error_class"] == "poison"
    due(pg)
    assert drain(out.rt).outcomes == {}
    out.service.clear()
    assert drain(out.rt, **{"class": "poison"}).outcomes == {"replayed": 1}


def test_five_failures_in_a_row_stop_the_run_and_release_the_rest(out: Outgoing, pg: Pg) -> None:
    ids = parked(out, pg, 200)
    answered(out, "fcm-500")
    done = drain(out.rt)
    assert done.state == "stopped"
    assert "failures in a row" in (done.run.why or "") or "unhealthy" in (done.run.why or "")
    failed = done.outcomes["failed"]
    assert 5 <= failed <= 20
    assert sum(out.service.received(out.endpoints)) == failed
    found = pg.execute(
        "SELECT replay_state, replay_count, count(*) FROM pushops.push_dlq GROUP BY 1, 2 ORDER BY 2"
    ).fetchall()
    assert found == [("parked", 0, len(ids) - failed), ("parked", 1, failed)]
    untried = pg.execute("SELECT count(*) FROM pushops.push_dlq_attempt WHERE settled_at IS NULL").fetchone()
    assert untried == (0,)


def test_failures_are_counted_over_acts_until_a_success(out: Outgoing, pg: Pg) -> None:
    """Each letter is a page of its own here."""
    parked(out, pg, 8)
    answered(out, "fcm-500")
    done = drain(out.rt, limit=4)
    assert (done.state, done.run.failures_in_row) == ("done", 4)


def test_an_unhealthy_push_service_is_left_alone_and_others_are_sent_to(out: Outgoing, pg: Pg) -> None:
    parked(out, pg, 3, "fcm")
    parked(out, pg, 3, "mozilla")
    pg.execute(
        "INSERT INTO pushops.push_provider (push_service, unhealthy_at, unhealthy_why, probe_at)"
        " VALUES ('fcm', now(), 'faults', now() + interval '1 hour')"
        " ON CONFLICT (push_service) DO UPDATE SET unhealthy_at = now(), unhealthy_why = 'faults'"
    )
    assert drain(out.rt).outcomes == {"replayed": 3, "held": 3}
    assert states(pg) == {("replayed", "replayed"): 3, ("parked", None): 3}


def test_a_push_service_that_becomes_unhealthy_ends_the_run(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    with outgoing(settings, pushed_to, unhealthy_min=4) as out:
        parked(out, pg, 100)
        answered(out, "fcm-500")
        done = drain(out.rt)
    assert done.state == "stopped"
    assert "fcm is unhealthy" in (done.run.why or "")
    assert states(pg) == {("parked", None): 100}
    assert not pg.execute("SELECT FROM pushops.push_dlq WHERE replay_state = 'claimed'").fetchall()


def test_a_renderer_makes_the_payload_anew(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    with outgoing(settings, pushed_to, renderer="tests.renderers:raises") as out:
        good = out.register(pg, "fcm", 5, user_id="good")
        bad = out.register(pg, "fcm", 1, user_id=BAD)
        park(pg, out.send("hello ", ids=subscription_ids(pg, good + bad)))
        assert drain(out.rt).outcomes == {"replayed": 5, "failed": 1}
        assert out.service.messages(good[0])[0]["text"] == "hello good"
        assert out.service.received(bad) == [0]
        assert states(pg) == {("replayed", "replayed"): 5, ("parked", None): 1}


def test_a_payload_that_is_gone_ends_its_letters_only(out: Outgoing, pg: Pg) -> None:
    lost = parked(out, pg, 2, payload=b"lost")
    parked(out, pg, 2, payload=b"kept")
    pg.execute(
        "UPDATE pushops.push_message SET payload_ref = 'no/such/object' WHERE message_id = %s",
        [letter(pg, lost[0])["message_id"]],
    )
    assert drain(out.rt).outcomes == {"replayed": 2, "gone": 2}
    assert states(pg)["discarded", "payload_missing"] == 2


def test_a_hold_that_these_answers_open_ends_the_run_and_the_letters_lose_nothing_more(out: Outgoing, pg: Pg) -> None:
    parked(out, pg, 60)
    answered(out, "fcm-403-jwt")
    done = drain(out.rt)
    assert done.state == "stopped"
    held = drain(out.rt)
    assert held.outcomes.keys() <= {"held"}
    assert held.outcomes["held"] >= 30


@pytest.mark.parametrize("key", ["", "{}"], ids=["as any sweep is run", "as an empty filter is spelled"])
def test_no_run_is_of_everything_however_it_is_asked_for(out: Outgoing, pg: Pg, key: str) -> None:
    parked(out, pg, 3)
    for order in (Order("test", filter=key), Order("beat", filter=key, force=True)):
        with pytest.raises(RefusedError, match="which letters are meant"):
            dispatch(out.rt, replays.DRAIN, None, order)
    assert states(pg) == {("parked", None): 3}


def test_the_task_s_words_open_a_run_for_a_filter_and_join_it(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    with outgoing(settings, pushed_to) as out:
        parked(out, pg, 2, campaign="a")
        parked(out, pg, 3, campaign="b")
        meant, options = replays.parse_words({"campaign": "a", "rate": 5000})
        first = replays.drain(out.rt, meant, options, None, started_by="test")
        second = replays.drain(out.rt, meant, options, None, started_by="test")
        assert first.run is not None
        assert second.run is not None
        assert (first.opened, second.opened, first.run.run_id) == (True, False, second.run.run_id)
        assert drain(out.rt, options={"rate": 5000.0}, campaign="a").outcomes == {"replayed": 2}
        assert states(pg) == {("replayed", "replayed"): 2, ("parked", None): 3}
