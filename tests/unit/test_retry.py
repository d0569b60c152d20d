"""What becomes of a message after an answer: its end, or when it is tried again and at what cost."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Dead, Outcome, Retry, Verdict, classify, load_table
from pushops.delivery.retry import Again, Decision, End, Ended, Facts, Why, decide, wait_of
from pushops.errors import SettingsError
from pushops.settings import Settings, load_settings
from tests.answers import CASES, apple, mozilla, text

NOW = datetime(2026, 10, 21, 7, 26, 0, tzinfo=UTC)
TABLE = load_table()
SETTINGS = Settings()
SECOND = timedelta(seconds=1)


def facts(**changes: Any) -> Facts:
    """A first attempt of a message that has a day left, with nothing else going on."""
    usual: Mapping[str, Any] = {
        "attempts": 1,
        "first_attempt_at": NOW - timedelta(hours=1),
        "last_code": None,
        "repeats": 0,
        "ambiguous": 0,
        "expires_at": NOW + timedelta(days=1),
        "on_ambiguous": "retry",
        "waits": False,
        "others_succeed": False,
        "jitter": 0.0,
    }
    return Facts(**{**usual, **changes})


def judged(answer: Answer, service: str = "fcm") -> Verdict:
    return classify(answer, service, TABLE, host="push.example.net")


def decided(answer: Answer, service: str = "fcm", settings: Settings = SETTINGS, **changes: Any) -> Decision:
    return decide(judged(answer, service), answer, facts(**changes), settings, NOW)


def again(seconds: float, why: Why = Why.RETRY, *, spends: bool = True) -> Again:
    return Again(NOW + seconds * SECOND, spends, why)


DNS = Answer(None, Fault.DNS)
TIMEOUT = Answer(None, Fault.AMBIGUOUS)


@pytest.mark.parametrize(
    ("attempts", "wait"),
    [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 960), (7, 1920), (8, 3600), (9, 3600)],
)
def test_waits_double_up_to_an_hour(attempts: int, wait: int) -> None:
    assert decided(DNS, attempts=attempts) == again(wait)


def test_the_tenth_attempt_is_the_last() -> None:
    assert decided(DNS, attempts=10) == Ended(End.EXHAUSTED, "dns")
    assert decided(DNS, attempts=3, settings=load_settings(retry_attempts=3)) == Ended(End.EXHAUSTED, "dns")


@pytest.mark.parametrize(("jitter", "wait"), [(-1, 24), (-0.5, 27), (1, 36)])
def test_jitter_goes_both_ways(jitter: float, wait: float) -> None:
    assert decided(DNS, jitter=jitter) == again(wait)


@pytest.mark.parametrize("jitter", [-1, 1])
def test_jitter_goes_upward_only_on_a_retry_after(jitter: float) -> None:
    assert decided(text(503, retry_after="100"), jitter=jitter) == again(120)
    throttle = text(429, retry_after="117")
    assert decided(throttle, jitter=jitter) == again(117 * 1.2, Why.THROTTLED, spends=False)
    assert decided(text(429), jitter=jitter) == again(72, Why.THROTTLED, spends=False)


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("117", 117),
        (" 120 ", 120),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 120),
        ("Wed, 21 Oct 2020 07:28:00 GMT", 10),
        ("0", 10),
        ("-5", 10),
        ("soon", 60),
        ("", 60),
        ("99999999", 3600),
        ("9" * 4000, 3600),
        ("Wed, 21 Oct 2027 07:28:00 GMT", 3600),
    ],
)
def test_a_throttle_lasts_as_long_as_the_push_service_says_within_bounds(header: str, wait: int) -> None:
    answer = text(429, retry_after=header)
    assert wait_of(answer, judged(answer), SETTINGS, NOW) == wait * SECOND
    assert decided(answer) == again(wait, Why.THROTTLED, spends=False)


def test_a_date_is_compared_with_the_answers_clock() -> None:
    answer = text(503, retry_after="Wed, 21 Oct 2026 08:00:00 GMT", date="Wed, 21 Oct 2026 07:58:00 GMT")
    assert decided(answer) == again(120)


@pytest.mark.parametrize("answer", [text(406), text(429, "App is throttled"), text(200, x_wns_status="appthrottled")])
def test_wns_throttles_for_a_quarter_of_an_hour(answer: Answer) -> None:
    assert decided(answer, "wns") == again(900, Why.THROTTLED, spends=False)


def test_a_setting_says_how_long_a_throttle_without_a_time_lasts() -> None:
    assert decided(text(429), settings=load_settings(throttle_default="5m")) == again(300, Why.THROTTLED, spends=False)


@pytest.mark.parametrize("attempts", [1, 10, 500])
def test_a_throttle_spends_nothing_and_is_never_exhausted(attempts: int) -> None:
    same = {"attempts": attempts, "repeats": attempts, "last_code": "throttled", "others_succeed": True}
    assert decided(text(429), **same) == again(60, Why.THROTTLED, spends=False)


@pytest.mark.parametrize("left", [1, 30, 59.9, 60])
def test_a_throttle_that_outlasts_the_message_ends_it_by_name(left: float) -> None:
    assert decided(text(429), expires_at=NOW + left * SECOND) == Ended(End.THROTTLED, "throttled")
    assert isinstance(decided(text(429), expires_at=NOW + 60.1 * SECOND), Again)


@pytest.mark.parametrize("answer", [DNS, text(500), text(503), text(403), TIMEOUT])
def test_what_waits_behind_a_hold_or_an_outage_spends_nothing(answer: Answer) -> None:
    found = decided(answer, attempts=10, waits=True, repeats=9, others_succeed=True)
    assert isinstance(found, Again)
    assert (found.spends, found.why) == (False, Why.HELD)
    assert decided(answer, waits=True, expires_at=NOW + SECOND).outcome is End.HELD  # type: ignore[union-attr]  # it ended


def test_an_outage_named_in_a_retry_after_is_waited_for_too() -> None:
    assert decided(text(503, retry_after="600"), waits=True) == again(600, Why.HELD, spends=False)


@pytest.mark.parametrize("left", [10, 30])
def test_a_retry_that_would_come_too_late_ends_the_message(left: int) -> None:
    assert decided(DNS, expires_at=NOW + left * SECOND) == Ended(End.EXHAUSTED, "dns")
    assert decided(DNS, expires_at=NOW + 31 * SECOND) == again(30)


def test_a_retry_after_is_the_least_to_wait_and_never_shortens_the_backoff() -> None:
    assert decided(text(503, retry_after="120")) == again(120)
    assert decided(text(503, retry_after="120"), attempts=6) == again(960)
    assert decided(text(500, retry_after="120")) == again(120)


def test_fcm_is_left_alone_for_ten_seconds_whatever_the_setting() -> None:
    assert decided(text(500), settings=load_settings(retry_base="1s")) == again(10)
    assert decided(text(500), "mozilla", settings=load_settings(retry_base="1s")) == again(1)


def test_a_doubtful_404_is_tried_again_twice() -> None:
    page = text(404, "<html>")
    assert [decided(page, attempts=attempts) for attempts in (1, 2, 3)] == [
        again(30),
        again(60),
        Ended(End.NOT_FOUND, "routing_404"),
    ]
    assert decided(page, repeats=5, others_succeed=True, attempts=2) == again(60)


def test_a_refused_token_is_signed_again_once_at_once_and_free_of_charge() -> None:
    answer = mozilla(401, 109, "Auth expired")
    assert decided(answer, "mozilla") == again(0, Why.RESIGN, spends=False)
    assert decided(answer, "mozilla", last_code="vapid_auth") == again(30)
    assert decided(answer, "mozilla", waits=True) == again(30, Why.HELD, spends=False)


def test_errno_202_is_tried_at_once_unless_it_says_when_or_says_so_again() -> None:
    answer = mozilla(503, 202)
    assert decided(answer, "mozilla") == again(0)
    assert decided(answer, "mozilla", last_code="errno_202", attempts=2) == again(60)
    assert decided(mozilla(503, 202, retry_after="120"), "mozilla") == again(120)


def test_an_idle_connection_is_no_reason_to_wait() -> None:
    assert decided(apple(400, "IdleTimeout"), "apple") == again(0)


def test_an_ambiguous_end_is_for_the_message_to_judge() -> None:
    assert decided(TIMEOUT) == again(30, Why.AMBIGUOUS)
    assert decided(TIMEOUT, on_ambiguous="drop") == Ended(End.AMBIGUOUS, "ambiguous_timeout")
    assert decided(TIMEOUT, on_ambiguous="drop", waits=True) == Ended(End.AMBIGUOUS, "ambiguous_timeout")
    assert decided(TIMEOUT, attempts=10) == Ended(End.EXHAUSTED, "ambiguous_timeout")


def test_a_lone_refusal_is_tried_like_any_fault_until_the_lane_is_held() -> None:
    assert decided(text(403), "ntfy") == again(30)
    assert decided(text(403), "ntfy", attempts=10) == Ended(End.EXHAUSTED, "vapid_unknown")
    assert decided(apple(400, "VapidPkHashMismatch"), "apple") == again(30)


THIRD = {"attempts": 3, "repeats": 2}


def test_the_same_answer_for_the_third_time_is_poison() -> None:
    assert decided(text(408), **THIRD) == Ended(End.POISON, "http_408")
    assert isinstance(decided(text(408), attempts=3, repeats=1), Again)


@pytest.mark.parametrize("answer", [text(500), text(502), text(504), text(403, "no"), text(601)])
def test_what_may_be_an_outage_is_poison_only_while_others_succeed(answer: Answer) -> None:
    assert isinstance(decided(answer, "ntfy", **THIRD), Again)
    found = decided(answer, "ntfy", **THIRD, others_succeed=True)
    assert isinstance(found, Ended)
    assert found.outcome is End.POISON


@pytest.mark.parametrize("answer", [text(503), text(429), DNS, TIMEOUT, Answer(None, Fault.TLS), text(404, "<html>")])
def test_some_answers_are_never_poison_however_often_they_come(answer: Answer) -> None:
    found = decided(answer, attempts=9, repeats=8, others_succeed=True)
    assert found == Ended(End.NOT_FOUND, "routing_404") if answer.status == 404 else isinstance(found, Again)


def test_answers_to_attempts_in_quick_succession_are_one_observation() -> None:
    assert isinstance(decided(text(408), **THIRD, first_attempt_at=NOW - 47 * SECOND), Again)
    assert decided(text(408), **THIRD, first_attempt_at=NOW - 48 * SECOND) == Ended(End.POISON, "http_408")
    at_once = mozilla(503, 202)
    assert isinstance(decided(at_once, "mozilla", last_code="errno_202", **THIRD, others_succeed=True), Again)


@pytest.mark.parametrize(
    ("row", "end"),
    [
        ("1", End.ACCEPTED),
        ("6", End.NOT_FOUND),
        ("8", End.GONE),
        ("14", End.POISON),
        ("30", End.POISON),
        ("51", End.DROPPED),
        ("64", End.GONE),
        ("77", End.BAD_KEYS),
    ],
)
def test_what_is_not_tried_again_ends_at_once(row: str, end: End) -> None:
    case = CASES[row]
    verdict = classify(case.answer, case.service, TABLE, host=case.host)
    assert decide(verdict, case.answer, facts(waits=True), SETTINGS, NOW) == Ended(end, case.code)


@pytest.mark.parametrize("row", sorted(CASES))
def test_a_letter_is_written_only_where_the_table_says_so(row: str) -> None:
    """404, 410, 429, holds and their like end under names that are never parked."""
    case = CASES[row]
    verdict = classify(case.answer, case.service, TABLE, host=case.host)
    for waits in (False, True):
        found = decide(verdict, case.answer, facts(attempts=99, waits=waits, expires_at=NOW), SETTINGS, NOW)
        assert isinstance(found, Ended)
        if verdict.dead is Dead.POISON:
            assert found.outcome is End.POISON
        elif verdict.dead is Dead.NO and verdict.outcome is not Outcome.MISMATCH:
            assert found.outcome not in (End.POISON, End.EXHAUSTED)


FACTS = st.builds(
    Facts,
    attempts=st.integers(0, 32_767),
    first_attempt_at=st.one_of(st.none(), st.datetimes(timezones=st.just(UTC)).filter(lambda at: at.year > 1)),
    last_code=st.one_of(st.none(), st.sampled_from(["vapid_auth", "errno_202", "dns"])),
    repeats=st.integers(0, 100),
    ambiguous=st.integers(0, 100),
    expires_at=st.integers(-10, 10_000).map(lambda seconds: NOW + seconds * SECOND),
    on_ambiguous=st.sampled_from(["retry", "drop"]),
    waits=st.booleans(),
    others_succeed=st.booleans(),
    jitter=st.floats(-1, 1),
)


@given(row=st.sampled_from(sorted(CASES)), known=FACTS, header=st.one_of(st.none(), st.text(max_size=20)))
def test_a_row_ends_or_is_tried_again_before_it_expires(row: str, known: Facts, header: str | None) -> None:
    case = CASES[row]
    headers = {**case.answer.headers, **({} if header is None else {"retry-after": header})}
    answer = Answer(case.answer.status, case.answer.fault, headers, case.answer.body)
    verdict = classify(answer, case.service, TABLE, host=case.host)
    found = decide(verdict, answer, known, SETTINGS, NOW)
    if isinstance(found, Again):
        assert NOW <= found.at < known.expires_at
        assert found.at > NOW or verdict.retry in (Retry.AT_ONCE, Retry.RESIGN)
        assert found.spends == (found.why in (Why.RETRY, Why.AMBIGUOUS))
        assert not found.spends or known.attempts < SETTINGS.retry_attempts


def test_a_cap_below_the_base_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected PUSHOPS_RETRY_CAP to be at least PUSHOPS_RETRY_BASE"):
        load_settings(retry_base="1m", retry_cap="30s")
