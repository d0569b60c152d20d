"""What becomes of a letter after an answer, when a run stops, and how long it takes: tables of values."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.deadletters.letter import CloseReason, ReplayOutcome
from pushops.deadletters.replay.deciding import FAILS, Facts, Streaks, decide, streaks
from pushops.deadletters.replay.previewing import seconds_for, tell
from pushops.deadletters.store.gates import Counted, LeftOut
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Outcome, table_of
from pushops.delivery.classify.classifying import classify
from tests.made import make_settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = make_settings("postgresql://nobody@nowhere/x")
TABLE = table_of(SETTINGS)


def facts(**changes: Any) -> Facts:
    values = {
        "replay_count": 0,
        "on_in_doubt": "discard",
        "held": False,
        "doubted": False,
        "blocked": False,
        "jitter": 0.0,
    }
    return Facts(**values | changes)


def answer(status: int | None, fault: Fault | None = None, **headers: str) -> Answer:
    return Answer(status, fault, {name.replace("_", "-"): value for name, value in headers.items()})


def decided(found: Answer, **changes: Any) -> tuple[ReplayOutcome, CloseReason | None, bool]:
    verdict = classify(found, "mozilla", TABLE, host="updates.push.services.mozilla.com")
    done = decide(verdict, found, facts(**changes), SETTINGS, NOW)
    return done.counted, done.reason, done.spends


@pytest.mark.parametrize(
    ("found", "changes", "expected"),
    [
        (answer(201), {}, ("replayed", "replayed", False)),
        (answer(410), {}, ("gone", "subscription_gone", False)),
        (answer(404), {}, ("gone", "subscription_gone", False)),
        (answer(410), {"doubted": True}, ("held", None, False)),
        (answer(None, Fault.BAD_KEYS), {}, ("gone", "subscription_gone", False)),
        (answer(429), {}, ("throttled", None, False)),
        (answer(503), {}, ("failed", None, True)),
        (answer(503), {"held": True}, ("held", None, False)),
        (answer(503), {"replay_count": 4}, ("failed", "replay_exhausted", True)),
        (answer(503), {"replay_count": 3}, ("failed", None, True)),
        (answer(None, Fault.AMBIGUOUS), {}, ("in_doubt", "in_doubt", False)),
        (answer(None, Fault.AMBIGUOUS), {"held": True}, ("in_doubt", "in_doubt", False)),
        (answer(None, Fault.AMBIGUOUS), {"on_in_doubt": "resend"}, ("in_doubt", None, True)),
        (
            answer(None, Fault.AMBIGUOUS),
            {"on_in_doubt": "resend", "replay_count": 4},
            ("in_doubt", "replay_exhausted", True),
        ),
        (answer(None, Fault.PAYLOAD_MISSING), {}, ("gone", "payload_missing", False)),
        (answer(413), {}, ("failed", None, True)),
        (answer(413), {"held": True}, ("failed", None, True)),
    ],
)
def test_an_answer_ends_a_letter_or_parks_it_again(
    found: Answer, changes: dict[str, Any], expected: tuple[str, str | None, bool]
) -> None:
    assert decided(found, **changes) == expected


def test_only_what_will_never_be_taken_becomes_poison() -> None:
    poison = {}
    for status in (413, 503, 429, 410):
        verdict = classify(answer(status), "mozilla", TABLE, host="updates.push.services.mozilla.com")
        poison[status] = decide(verdict, answer(status), facts(), SETTINGS, NOW).poison
    assert poison == {413: True, 503: False, 429: False, 410: False}


def test_a_throttle_waits_as_asked_and_a_failure_twice_as_long_each_time() -> None:
    asked = answer(429, retry_after="300")
    verdict = classify(asked, "mozilla", TABLE, host="x")
    assert decide(verdict, asked, facts(), SETTINGS, NOW).wait == timedelta(seconds=300)
    failed = answer(503)
    verdict = classify(failed, "mozilla", TABLE, host="x")
    waits = [decide(verdict, failed, facts(replay_count=n), SETTINGS, NOW).wait for n in range(4)]
    assert waits == [SETTINGS.retry_base * 2**n for n in range(4)]


def test_every_answer_has_a_decision() -> None:
    for status in range(100, 600):
        found = answer(status)
        for service in ("fcm", "mozilla", "apple", "wns"):
            verdict = classify(found, service, TABLE, host="x")
            done = decide(verdict, found, facts(), SETTINGS, NOW)
            assert done.reason is not None or done.wait is not None
            assert (done.counted is ReplayOutcome.REPLAYED) is (verdict.outcome is Outcome.ACCEPTED)


OK, BAD, SLOW = Outcome.ACCEPTED, Outcome.UNAVAILABLE, Outcome.THROTTLED


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], Streaks()),
        ([BAD, BAD], Streaks(2, 2, 2, success=False)),
        ([BAD, OK, BAD, BAD], Streaks(1, 2, 2, success=True)),
        ([OK, BAD, BAD, BAD, OK], Streaks(0, 3, 0, success=True)),
        ([BAD, SLOW, Outcome.GONE, BAD], Streaks(2, 2, 2, success=False)),
    ],
)
def test_failures_are_counted_in_the_order_of_answers(outcomes: list[Outcome], expected: Streaks) -> None:
    assert streaks(outcomes) == expected


@given(st.lists(st.sampled_from([OK, BAD, SLOW, Outcome.AMBIGUOUS]), max_size=30), st.integers(0, 30))
def test_a_row_of_batches_counts_as_one(outcomes: list[Outcome], cut: int) -> None:
    """The end of one batch and the beginning of the next are one row of failures."""
    whole, first, second = streaks(outcomes), streaks(outcomes[:cut]), streaks(outcomes[cut:])
    joined = first.tail + second.lead
    assert whole.longest == max(first.longest, second.longest, joined)
    assert whole.tail == (second.tail if second.success else joined)


def test_deaths_and_throttles_are_no_failures() -> None:
    assert {Outcome.GONE, Outcome.NOT_FOUND, Outcome.THROTTLED, Outcome.BAD_KEYS, Outcome.DROPPED}.isdisjoint(FAILS)


def test_a_preview_s_reasons_add_up_and_the_slowest_push_service_says_how_long() -> None:
    rows = [Counted("fcm", None, 6000), Counted("wns", None, 100), Counted("fcm", "ttl_expired", 5)]
    rows += [Counted("fcm", "not_replayable", 2), Counted("fcm", "held", 3), Counted("wns", "held", 1)]
    seen = tell(SETTINGS, rows, LeftOut(7000, 4, 9), rate=None, ramp=timedelta(seconds=10))
    assert (seen.would_send, seen.stale, seen.held, seen.poison_left_out, seen.waiting) == (6100, 7, 4, 4, 9)
    assert seen.reasons == {"ttl_expired": 5, "not_replayable": 2, "held": 4}
    assert seen.eta == timedelta(seconds=65)  # 100 a second, half of that in the ramp


@pytest.mark.parametrize(("letters", "expected"), [(0, 0.0), (500, 10.0), (125, 5.0), (1500, 20.0)])
def test_a_ramp_takes_its_time(letters: int, expected: float) -> None:
    assert seconds_for(letters, 100, timedelta(seconds=10)) == pytest.approx(expected)
