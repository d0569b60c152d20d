"""Retry-After is read in every form that services send, and nothing that they send hurts."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.delivery.retry_after import LONGEST, parse_retry_after

NOW = datetime(2026, 10, 21, 7, 26, 0, tzinfo=UTC)
IN_TWO_MINUTES = [
    "Wed, 21 Oct 2026 07:28:00 GMT",
    "Wednesday, 21-Oct-26 07:28:00 GMT",
    "Wed Oct 21 07:28:00 2026",
    "wed, 21 oct 2026 07:28:00 gmt",
    "Wed, 21 Oct 2026 07:28:00 +0000",
    "21 Oct 2026 07:28:00 GMT",
]


def seconds(text: str | None, date: str | None = None) -> float | None:
    found = parse_retry_after(text, NOW, date)
    return None if found is None else found.total_seconds()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("117", 117),
        (" 120 ", 120),
        ("00120", 120),
        ("+5", 5),
        ("0", 0),
        ("-5", 0),
        ("12.5", 13),
        ("12.0", 12),
        ("9" * 12, LONGEST.total_seconds()),
        ("9" * 9000, LONGEST.total_seconds()),
        ("120, 240", 240),
        ("240,120", 240),
        ("soon, 60", 60),
        ("60, Wed, 21 Oct 2026 07:28:00 GMT", 120),
        ("Wed, 21 Oct 2026 07:28:00 GMT, 300", 300),
    ],
)
def test_seconds_in_any_form(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", IN_TWO_MINUTES)
def test_a_date_in_any_of_the_three_forms(text: str) -> None:
    assert seconds(text) == 120


@pytest.mark.parametrize("text", ["Wed, 21 Oct 2020 07:28:00 GMT", "Wed, 21 Oct 2026 07:25:59 GMT"])
def test_a_date_that_is_past_is_now(text: str) -> None:
    assert seconds(text) == 0


@pytest.mark.parametrize(
    "text",
    [None, "", "  ", "soon", "12s", "1e3", "0x10", "1 2", "\u0661\u0662", "Wed, 31 Feb 2026 07:28:00 GMT", "inf"],
)
def test_garbage_says_nothing(text: str | None) -> None:
    assert seconds(text) is None


@pytest.mark.parametrize(
    "text", ["Wed, 21 Foo 2026 07:28:00 GMT", "Wed, 21 Oct 2026 25:28:00 GMT", "2026-10-21T07:28:00Z", ", ,"]
)
def test_a_date_that_is_none_says_nothing(text: str | None) -> None:
    assert seconds(text) is None


@pytest.mark.parametrize("text", IN_TWO_MINUTES)
def test_a_date_is_compared_with_the_answers_own_clock(text: str) -> None:
    assert seconds(text, "Wed, 21 Oct 2026 07:27:30 GMT") == 30
    assert seconds(text, "Tue, 20 Oct 2026 07:27:30 GMT") == 86_430


@pytest.mark.parametrize("date", ["", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_clock_that_cannot_be_right_is_not_believed(date: str) -> None:
    assert seconds(IN_TWO_MINUTES[0], date) == 120


def test_two_digits_of_a_year_are_the_near_century() -> None:
    assert seconds("Sunday, 06-Nov-94 08:49:37 GMT") == 0
    assert seconds("Sunday, 06-Nov-27 07:26:00 GMT") == timedelta(days=381).total_seconds()


def test_a_leap_second_is_a_time() -> None:
    assert seconds("Wed, 21 Oct 2026 07:26:60 GMT") == 59


@given(text=st.text(max_size=80), date=st.one_of(st.none(), st.text(max_size=40)))
def test_whatever_comes_is_a_wait_or_nothing(text: str, date: str | None) -> None:
    found = parse_retry_after(text, NOW, date)
    assert found is None or timedelta(0) <= found <= LONGEST


@given(at=st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)))  # noqa: DTZ001  (made aware)
def test_a_date_that_is_printed_is_the_date_that_is_read(at: datetime) -> None:
    expected = max((at.replace(microsecond=0) - NOW).total_seconds(), 0)
    assert seconds(f"{at:%a, %d %b %Y %H:%M:%S} GMT") == min(expected, LONGEST.total_seconds())
