"""The pace of a replay: a share of the rate, a ramp, and a bucket that holds a quarter of a second's worth."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.db import Database
from pushops.deadletters.replay.pacing import FIRST, HOLDS, Grant, Pace, rate_at, spend
from pushops.events import Events
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.made import make_settings

NOW = datetime(2026, 10, 21, 7, 26, 0, tzinfo=UTC)
LONG = timedelta(hours=1)
SECOND = timedelta(seconds=1)
RATES = Settings(provider_rate=1_000, provider_rates={"fcm": 5_000}, replay_share=0.1, replay_ramp=60 * SECOND)


@pytest.mark.parametrize(
    ("service", "options", "rate"),
    [
        ("mozilla", {}, 100),
        ("fcm", {}, 500),
        ("fcm", {"rate": 50}, 50),
        ("mozilla", {"rate": 900.5}, 900.5),
        ("mozilla", {"rate": 3_000}, 1_000),
    ],
)
def test_the_pace_is_the_share_or_what_is_named_and_never_above_the_services_own(
    service: str, options: dict[str, Any], rate: float
) -> None:
    assert rate_at(RATES, options, service, LONG) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("age", "ramp", "share"),
    [(-5, None, 0.1), (0, None, 0.1), (30, None, 0.55), (60, None, 1), (999, None, 1), (5, 10, 0.55), (0, 0, 1)],
)
def test_the_pace_climbs_evenly_from_a_tenth(age: float, ramp: float | None, share: float) -> None:
    assert rate_at(RATES, {"ramp": ramp}, "mozilla", age * SECOND) == pytest.approx(100 * share)


@given(
    st.floats(0.05, 20_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 600)), min_size=1, max_size=60),
)
def test_no_stretch_of_time_brings_more_than_the_pace_and_what_the_bucket_holds(
    rate: float, asked: list[tuple[float, int]]
) -> None:
    spent, now, taken = 0.0, 1_000.0, list[tuple[float, int]]()
    for pause, wanted in asked:
        now += pause
        grant, spent = spend(spent, now, rate, wanted)
        assert 0 <= grant.granted <= wanted
        taken.append((now, grant.granted))
    for first, (began, _) in enumerate(taken):
        for last in range(first, len(taken)):
            most = rate * (taken[last][0] - began) + max(1, HOLDS * rate)
            assert sum(granted for _, granted in taken[first : last + 1]) <= most * (1 + 1e-6) + 1e-3


@given(st.floats(0.05, 20_000), st.integers(1, 600))
def test_whoever_waits_as_told_gets_something(rate: float, wanted: int) -> None:
    _, spent = spend(0.0, 1_000.0, rate, 100_000)
    refused, spent = spend(spent, 1_000.0, rate, wanted)
    assert refused.granted == 0
    grant, _ = spend(spent, 1_000.0 + refused.wait + 1e-6, rate, wanted)
    assert grant.granted >= 1


def test_a_slow_run_beside_a_fast_one_keeps_its_pace_and_both_the_wholes() -> None:
    spent, counts = 0.0, {10.0: 0, 100.0: 0}
    for tick in range(1_000):
        for rate in counts:
            grant, spent = spend(spent, 1_000 + tick / 100, rate, 1)
            counts[rate] += grant.granted
    assert counts[10.0] <= 10 * 10 + 3
    assert counts[10.0] / 10 + counts[100.0] / 100 <= 10 + HOLDS + 0.1
    assert sum(counts.values()) <= 100 * 10 + 25


def test_a_process_without_any_redis_paces_itself_over_all_its_pages() -> None:
    settings = make_settings("postgresql://nobody@localhost/none", provider_rate=100, db_schema="alone")
    rt = Runtime(settings, Database(settings), None, Events())
    pages = [Pace(rt, {"rate": 20, "ramp": 0}, NOW, NOW) for _ in range(3)]
    granted = [page.take("fcm", 50) for page in pages]
    assert [grant.granted for grant in granted] == [20 * HOLDS, 0, 0]
    assert 0 < granted[1].wait <= HOLDS
    assert pages[0].take("mozilla", 50).granted == 20 * HOLDS


def test_the_first_of_a_young_run_come_at_a_tenth() -> None:
    settings = make_settings("postgresql://nobody@localhost/none", provider_rate=1_000, db_schema="young")
    rt = Runtime(settings, Database(settings), None, Events())
    assert Pace(rt, {"rate": 400}, NOW, NOW).take("fcm", 500).granted == 400 * HOLDS * FIRST


def test_who_wants_nothing_is_told_to_wait_for_nothing() -> None:
    settings = make_settings("postgresql://nobody@localhost/none")
    rt = Runtime(settings, Database(settings), None, Events())
    assert Pace(rt, {}, NOW, NOW).take("fcm", 0) == Grant(0, 0.0)
