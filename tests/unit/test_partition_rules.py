"""Spans of time: every moment is in one, what is missing is made once, and bounds read back as they were written."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.adopting import ddl, sweeping
from pushops.adopting.words import Adoption, Losers
from pushops.errors import RefusedError
from pushops.retention.partitions import rules
from pushops.retention.partitions.words import Kind, Part, Span
from pushops.settings.partitions import Interval

moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
intervals = st.sampled_from(Interval)


def part(low: datetime | None, high: datetime | None, *, default: bool = False) -> Part:
    return Part("public", "p", low, high, "", default, pending=False, rows=0, bytes=0)


@given(moments, intervals)
def test_every_moment_is_in_its_span_and_spans_follow_each_other(at: datetime, interval: Interval) -> None:
    span = rules.span_of(at, interval)
    assert span.begin <= at < span.end
    assert rules.span_of(span.begin, interval) == span
    assert rules.span_of(span.end - timedelta(microseconds=1), interval) == span
    spans = rules.wanted(at, interval, 30)
    assert all(before.end == after.begin for before, after in pairwise(spans))


@pytest.mark.parametrize(
    ("interval", "begin"),
    [(Interval.DAY, (2026, 3, 1)), (Interval.WEEK, (2026, 2, 23)), (Interval.MONTH, (2026, 3, 1))],
)
def test_spans_begin_at_midnight_utc_whatever_the_zone_of_the_moment(
    interval: Interval, begin: tuple[int, int, int]
) -> None:
    at = datetime(2026, 3, 2, 3, tzinfo=timezone(timedelta(hours=13)))  # still the first in UTC
    assert rules.span_of(at, interval).begin == datetime(*begin, tzinfo=UTC)


@given(moments, intervals, st.lists(st.tuples(st.integers(-60, 60), st.integers(1, 20)), max_size=5))
def test_what_is_missing_is_covered_afterwards_and_nothing_twice(
    now: datetime, interval: Interval, standing: list[tuple[int, int]]
) -> None:
    day = rules.span_of(now, Interval.DAY).begin
    parts = [part(day + timedelta(days=low), day + timedelta(days=low + length)) for low, length in standing]
    spans = rules.wanted(now, interval, 2)
    made = [part(span.begin, span.end) for span in rules.missing(parts, spans)]
    assert rules.missing(parts + made, spans) == []
    for each in made:
        others = [other for other in parts + made if other is not each]
        assert rules.missing(others, [Span(each.low or now, each.high or now)]) == [
            Span(each.low or now, each.high or now)
        ]


def test_an_open_partition_covers_what_lies_beyond_and_a_default_nothing() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    spans = rules.wanted(now, Interval.DAY, 1)
    assert rules.missing([part(None, None)], spans) == []
    assert rules.missing([part(now, None)], spans) == []
    assert rules.missing([part(None, None, default=True)], spans) == spans


def test_what_has_no_end_is_never_over() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    old, ended = part(None, now - timedelta(days=9)), part(now - timedelta(days=9), now)
    assert rules.over([ended, part(now, None), part(None, None, default=True), old], now) == [old, ended]
    assert rules.over([ended], now - timedelta(microseconds=1)) == []


@given(moments.map(lambda at: at.replace(hour=0, minute=0, second=0, microsecond=0)), st.sampled_from(Kind))
def test_a_bound_reads_back_as_it_was_written(at: datetime, kind: Kind) -> None:
    assert rules.from_bound(rules.as_bound(at, kind), kind) == at


@pytest.mark.parametrize("text", [None, "infinity", "-infinity", "4713-01-01 BC", "294276-12-31 00:00:00+00"])
def test_a_bound_beyond_the_calendar_is_an_open_one(text: str | None) -> None:
    assert rules.from_bound(text, Kind.TIMESTAMPTZ) is None


@pytest.mark.parametrize("name", ["x%sx", "x{schema}", 'x"; DROP TABLE y; --', ""])
def test_a_name_that_would_leave_its_quotes_is_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        Adoption("public", name, "id", "bigint")


def test_a_name_of_mixed_case_is_quoted_wherever_it_stands() -> None:
    one = Adoption("public", "Subscribers", "Id", "bigint", "endPoint", latest="updatedAt", losers=Losers.REMOVE)
    texts = [ddl.function(one, bridge=True), *ddl.trigger(one), *ddl.unique(one), str(sweeping.settle(one))]
    for text in texts:
        for name in ("Subscribers", "Id", "endPoint", "updatedAt"):
            assert f" {name}" not in text.replace(f'"{name}"', "")
