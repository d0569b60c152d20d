"""When a push service is believed to be in trouble: pure rules, walked over counts."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.delivery import health, holds
from pushops.delivery.health import Why, Window
from pushops.delivery.observation import Kind, Observation
from pushops.delivery.observing import count, streak_after
from pushops.delivery.providers import why_it_waits
from pushops.delivery.store.health import Tally
from pushops.delivery.store.holds import Lane
from pushops.delivery.store.providers import Listed
from pushops.settings import Settings
from tests.made import make_settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings("postgresql://nobody@nowhere/none")


@given(st.integers(1, 100_000), st.data())
def test_the_lower_bound_lies_below_the_share_and_comes_near_it_with_more_answers(total: int, data: Any) -> None:
    hits = data.draw(st.integers(0, total))
    bound = health.lower_bound(hits, total)
    assert 0 <= bound <= hits / total + 1e-12
    assert bound <= health.lower_bound(hits * 4, total * 4) + 1e-12


def test_the_lower_bound_is_wilsons() -> None:
    """The bound p is where a share of p would make what was seen 2.3263 standard deviations too many."""
    for hits, total in ((11, 100), (40, 100), (900, 10_000)):
        bound = health.lower_bound(hits, total)
        assert (hits - total * bound) / math.sqrt(total * bound * (1 - bound)) == pytest.approx(2.3263, rel=1e-6)
    assert health.lower_bound(0, 0) == 0.0


@pytest.mark.parametrize(
    ("usual", "expected"),
    [(None, 0.05), (0.0, 0.05), (0.003, 0.05), (0.005, 0.05), (0.01, 0.1), (0.02, 0.2), (0.4, 0.2)],
)
def test_ten_times_the_usual_share_within_bounds(usual: float | None, expected: float, settings: Settings) -> None:
    assert health.threshold(usual, settings) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("window", "streak", "usual", "expected"),
    [
        (Window(answers=100, terminal=10), 0, None, None),
        (Window(answers=100, terminal=11), 0, None, Why.SHARE),
        (Window(answers=99, terminal=19), 5, None, None),
        (Window(answers=10_000, terminal=550), 0, None, None),
        (Window(answers=10_000, terminal=551), 0, None, Why.SHARE),
        (Window(answers=1_000, terminal=150), 0, 0.02, None),
        (Window(answers=1_000, terminal=250), 0, 0.02, Why.SHARE),
        (Window(answers=1_000, terminal=500), 0, 0.5, Why.SHARE),
        (Window(answers=20, terminal=20), 20, None, Why.STREAK),
        (Window(answers=40, terminal=20), 19, None, None),
        (Window(answers=3, terminal=3), 40, None, None),
    ],
)
def test_the_guard_opens_on_a_share_that_cannot_be_or_on_a_streak_of_the_hour(
    window: Window, streak: int, usual: float | None, expected: Why | None, settings: Settings
) -> None:
    assert health.guard_opens(window, streak, usual, settings) is expected


@pytest.mark.parametrize(("share", "seed"), [(0.02, 1), (0.02, 2), (0.03, 3), (0.03, 4)])
def test_a_normal_campaign_does_not_open_it(share: float, seed: int, settings: Settings) -> None:
    """20,000 answers, looked at after each batch of 50, with two or three per cent dead."""
    drawn = random.Random(seed)
    answers = terminal = streak = 0
    for number in range(20_000):
        dead = drawn.random() < share
        answers, terminal, streak = answers + 1, terminal + dead, streak + 1 if dead else 0
        if number % 50 == 0:
            assert health.guard_opens(Window(answers, terminal), streak, None, settings) is None


@pytest.mark.parametrize(
    ("attempts", "faults", "expected"),
    [(20, 14, True), (20, 13, False), (19, 19, False), (1_000, 699, False), (1_000, 700, True), (0, 0, False)],
)
def test_a_push_service_fails_at_seven_tenths_of_twenty(
    attempts: int, faults: int, expected: bool, settings: Settings
) -> None:
    assert health.fails(Window(attempts=attempts, faults=faults), settings) is expected


@pytest.mark.parametrize(
    ("ages", "expected"),
    [([0] * 5, True), ([0] * 4, False), ([299, 200, 100, 50, 0], True), ([300, 200, 100, 50, 0], False), ([], False)],
)
def test_five_faults_of_ours_within_five_minutes_hold(ages: list[int], expected: bool, settings: Settings) -> None:
    assert health.holds([NOW - timedelta(seconds=age) for age in ages], range(len(ages)), NOW, settings) is expected


@pytest.mark.parametrize(("whose", "expected"), [([7] * 5, False), ([7, 7, 7, 7, 8], True), ([0] * 5, True)])
def test_one_subscription_alone_never_holds(whose: list[int], expected: bool, settings: Settings) -> None:
    assert health.holds([NOW] * 5, whose, NOW, settings) is expected


def seen(*kinds: Kind) -> list[Observation]:
    return [Observation(1, kind, answered=kind is not Kind.FAULTY, code=f"c{n}") for n, kind in enumerate(kinds)]


def test_only_a_success_ends_a_streak() -> None:
    assert streak_after(3, seen(Kind.TERMINAL, Kind.THROTTLED, Kind.FAULTY, Kind.DENIED, Kind.TERMINAL)) == 5
    assert streak_after(19, seen(Kind.TERMINAL, Kind.ACCEPTED, Kind.TERMINAL)) == 1


@given(st.lists(st.sampled_from(Kind)))
def test_every_kind_is_counted_once(kinds: list[Kind]) -> None:
    tally = count(seen(*kinds))
    named = [tally.accepted, tally.terminal, tally.throttled, tally.faults]
    others = sum(kind in {Kind.DENIED, Kind.MISMATCH, Kind.OTHER} for kind in kinds)
    assert tally.attempts == len(kinds) == sum(named) + others
    assert tally.answers == len(kinds) - tally.faults


def test_a_death_without_a_status_is_an_answer() -> None:
    assert count([Observation(1, Kind.TERMINAL, answered=False, code="dns")]) == Tally(1, 1, 1)


def lane(*faults: int) -> Lane:
    times = [NOW - timedelta(seconds=age) for age in faults]
    return Lane(1, "fcm", "host", "key", None, times, [0] * len(times), None)


def test_a_lane_keeps_its_newest_faults_since_the_last_success(settings: Settings) -> None:
    story = holds.tell(lane(9, 8, 7, 6, 5), seen(Kind.DENIED, Kind.MISMATCH), NOW, settings)
    assert story.faults == (*(NOW - timedelta(seconds=age) for age in (7, 6, 5)), NOW, NOW)
    assert (story.succeeded, story.answers, story.code) == (False, 2, "c1")


def test_a_success_of_a_lane_forgets_its_faults(settings: Settings) -> None:
    story = holds.tell(lane(9, 8), seen(Kind.DENIED, Kind.ACCEPTED, Kind.DENIED, Kind.FAULTY), NOW, settings)
    assert (story.succeeded, story.faults, story.answers) == (True, (NOW,), 1)


def test_every_reason_to_wait_is_said_the_gravest_first() -> None:
    found = Listed(
        "fcm", True, NOW, "faults", "dns", NOW, NOW, "ann", "release", 0.25, None, 0, ["h k: tls"], *[0] * 5, None, 0
    )
    reasons = why_it_waits(found)
    assert [reason.split()[0] for reason in reasons] == ["paused", "guard", "unhealthy:", "hold", "throttled"]
    assert reasons[0] == "paused by ann: release"
    assert "dns" in reasons[2]
    quiet = Listed("fcm", False, *[None] * 7, 1.0, None, 0, [], *[0] * 5, None, 0)
    assert why_it_waits(quiet) == ()
