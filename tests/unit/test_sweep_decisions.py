"""The engine's pure decisions: identities, sizes, pauses, and what each valve makes of what was seen."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.errors import DatabaseError, SettingsError
from pushops.retention.policies import SWEEPS
from pushops.settings import load_settings
from pushops.sweeps import plan, runs, sql, valves
from pushops.sweeps.probes import Lag, Snapshot
from pushops.sweeps.store import ControlRow, PageEnd, RunRow, TableFacts
from pushops.sweeps.sweep import Walk
from pushops.sweeps.valves import Reading, State

RUN = UUID(int=7)
NOW = datetime(2026, 5, 1, tzinfo=UTC)
DAY = timedelta(days=1)
KEYS = st.lists(st.text(max_size=5), min_size=1, max_size=3)


def a_run(**changes: Any) -> RunRow:
    base = RunRow(
        run_id=RUN, sweep="s", state="running", why=None, started_by="test", opened_at=NOW, cutoffs={}, windows={},
        walk="index", cursor=None, walk_end=None, walked=False, revisited=False, force=False, row_limit=None,
        eligible_rows=0, table_rows=0, page_rows=None, rows_dispatched=0, pages=0, held_since=None, held_by=None,
        rung_at=None, budget_until=None, closed_at=None,
    )  # fmt: skip
    return replace(base, **changes)


def a_control(**changes: Any) -> ControlRow:
    return replace(ControlRow("s", None, None, None, {}, None, None, None), **changes)


# Identities -----------------------------------------------------------------------------------------------------------


@given(KEYS, KEYS)
def test_a_page_has_one_id_whoever_writes_it_down(lo: list[str], hi: list[str]) -> None:
    assert plan.batch_id(RUN, "c", lo, hi) == plan.batch_id(UUID(str(RUN)), "c", tuple(lo), tuple(hi))


def test_another_run_cutoff_bound_or_visit_is_another_batch() -> None:
    given_ = [
        (RUN, "c", ["a"], ["b"], 1), (uuid4(), "c", ["a"], ["b"], 1), (RUN, "d", ["a"], ["b"], 1),
        (RUN, "c", None, ["b"], 1), (RUN, "c", ["a", "a"], ["b"], 1), (RUN, "c", ["a"], ["c"], 1),
        (RUN, "c", ["a"], ["b"], 2),
    ]  # fmt: skip
    assert len({plan.batch_id(*one) for one in given_}) == len(given_)


# Pages ----------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 60), st.integers(0, 700), st.integers(1, 40))
def test_block_pages_are_joined_and_cover_what_they_say(first: int, step: int, end: int, count: int) -> None:
    pages = plan.block_pages(RUN, "c", first, step, end, count)
    bounds = [first, *(int(page.hi[0].strip("()").split(",")[0]) for page in pages)]
    assert [page.lo for page in pages] == [[f"({n},0)"] for n in bounds[:-1]]
    assert bounds[-1] == (max(first, min(end, first + step * count)) if pages else first)
    assert all(0 < after - before <= step for before, after in pairwise(bounds))
    assert bool(pages) == (first < end)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_index_pages_hold_the_rows_between_their_ends(sizes: list[int]) -> None:
    ends = [PageEnd([str(n)], sum(sizes[: n + 1])) for n in range(len(sizes))]
    pages = plan.index_pages(RUN, "c", ["start"], ends)
    assert [page.expected for page in pages] == sizes
    assert [page.lo for page in pages] == [["start"], *(page.hi for page in pages[:-1])]


@given(st.integers(2, 20_000))
def test_halves_are_joined_at_the_middle_row_and_neither_is_empty(total: int) -> None:
    left, right = plan.halves(RUN, "c", None, ["m"], ["z"], total)
    assert (left.lo, left.hi, right.lo, right.hi) == (None, ["m"], ["m"], ["z"])
    assert left.expected is not None
    assert right.expected is not None
    assert left.expected + right.expected == total
    assert 0 <= left.expected - right.expected <= 1


@given(st.integers(1, 20_000), st.floats(0, 60), st.integers(5, 5000))
def test_pages_grow_and_shrink_within_their_bounds(size: int, seconds: float, target: int) -> None:
    after = plan.next_page_rows(size, seconds, target)
    assert min(size, 250) <= after <= 20_000
    assert after <= size * 1.25 + 1
    assert after >= size // 2
    if target / 2 <= seconds * 1000 <= target * 4:
        assert after == size


@pytest.mark.parametrize(
    ("seconds", "after"), [(0.0249, 6250), (0.025, 5000), (0.05, 5000), (0.2, 5000), (0.201, 2500)]
)
def test_a_page_is_adapted_towards_its_target(seconds: float, after: int) -> None:
    assert plan.next_page_rows(5000, seconds, 50) == after


@pytest.mark.parametrize(
    ("learnt", "asked", "pause", "rows"),
    [
        (None, 5000, 0, 5000),
        (20_000, 5000, 0, 20_000),
        (None, 5000, 100, 2000),
        (None, 500, 100, 500),
        (3000, 5000, 100, 3000),
        (20_000, 5000, 1, 5000),  # learnt when nobody asked for a pause
        (250, 5000, 100, 250),
    ],
)
def test_a_pause_asks_for_small_pages_too(learnt: int | None, asked: int, pause: int, rows: int) -> None:
    assert plan.page_rows(learnt, asked, pause) == rows


@pytest.mark.parametrize(("pause", "target"), [(0, 50), (1, 1), (100, 10), (500, 50), (60_000, 50)])
def test_a_batch_aims_at_a_small_part_of_the_pause(pause: int, target: int) -> None:
    assert plan.target_ms(50, pause) == target


def test_back_off_doubles_up_to_a_minute() -> None:
    assert [plan.back_off(n).total_seconds() for n in (0, 1, 2, 5, 6, 60)] == [1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize(
    ("eligible", "blocks", "walk"),
    [(None, 10, Walk.INDEX), (0, 0, Walk.INDEX), (19, 10, Walk.INDEX), (20, 10, Walk.BLOCKS), (900, 10, Walk.BLOCKS)],
)
def test_blocks_are_walked_where_the_rows_are_dense(eligible: int | None, blocks: int, walk: Walk) -> None:
    assert plan.choose_walk(eligible, TableFacts(blocks, 0)) is walk


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**6))
def test_a_bad_estimate_makes_no_page_of_much_more_than_was_asked_for(eligible: int, rows: int, blocks: int) -> None:
    step = plan.blocks_per_page(5_000, eligible, rows, blocks, guessed=True)
    assert step == 1 or step * rows / blocks <= 2 * 5_000 * 1.5
    counted = plan.blocks_per_page(5_000, eligible, rows, blocks)
    assert counted == 1 or counted * rows / blocks <= plan.LARGEST_PAGE * 1.5


@given(st.integers(1, 20_000), st.integers(0, 10**7), st.integers(1, 10**6))
def test_a_block_page_is_never_empty_and_holds_about_the_rows_asked_for(size: int, eligible: int, blocks: int) -> None:
    step = plan.blocks_per_page(size, eligible, None, blocks)
    assert step >= 1
    if step > 1 and eligible:
        assert abs(step * eligible / blocks - size) <= eligible / blocks


# Valves ---------------------------------------------------------------------------------------------------------------

NONE = Lag(0, 0, 0, 0, "")


@pytest.mark.parametrize(
    ("lag", "expected", "state"),
    [
        (NONE, None, State.OPEN),
        (NONE, 0, State.OPEN),
        (NONE, 1, State.UNKNOWN),
        (Lag(1, 0, 0, 100, "r"), None, State.OPEN),
        (Lag(1, 0, 0, 101, "r"), None, State.HOLD),
        (Lag(0, 1, 0, 101, "slot s"), None, State.HOLD),
        (Lag(1, 0, 1, 0, "r"), None, State.UNKNOWN),
        (Lag(2, 0, 1, 500, "r"), None, State.UNKNOWN),
        (Lag(2, 0, 0, 0, "r"), 2, State.OPEN),
        (Lag(2, 0, 0, 0, "r"), 3, State.UNKNOWN),
    ],
)
def test_lag(lag: Lag, expected: int | None, state: State) -> None:
    """C19: what cannot be seen is never zero lag."""
    assert valves.decide_lag(lag, 100, expected).state is state


@pytest.mark.parametrize(
    ("seconds", "hidden", "hold_after", "state"),
    [
        (0, 0, None, State.OPEN),
        (9e9, 3, None, State.OPEN),
        (59, 0, 60, State.OPEN),
        (61, 0, 60, State.HOLD),
        (0, 1, 60, State.UNKNOWN),
    ],
)
def test_snapshot(seconds: float, hidden: int, hold_after: int | None, state: State) -> None:
    limit = None if hold_after is None else timedelta(seconds=hold_after)
    assert valves.decide_snapshot(Snapshot(seconds, "x", hidden), limit).state is state


@pytest.mark.parametrize(
    ("eligible", "rows", "braked", "force", "state"),
    [
        (200, 1000, True, False, State.OPEN),
        (201, 1000, True, False, State.HOLD),
        (201, 1000, True, True, State.OPEN),
        (201, 1000, False, False, State.OPEN),
        (999, 999, True, False, State.OPEN),
        (None, 1000, True, False, State.UNKNOWN),
        (200, None, True, False, State.UNKNOWN),
        (None, None, True, True, State.OPEN),
    ],
)
def test_share(eligible: int | None, rows: int | None, braked: bool, force: bool, state: State) -> None:
    run = a_run(eligible_rows=eligible, table_rows=rows, force=force)
    assert valves.decide_share(run, 0.2, braked=braked).state is state


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({}, State.OPEN),
        ({"w": 10.0}, State.OPEN),
        ({"w": 9.0}, State.OPEN),
        ({"w": 11.0}, State.HOLD),
        ({"v": 99.0}, State.OPEN),
    ],
)
def test_retention(known: dict[str, float], state: State) -> None:
    assert valves.decide_retention({"w": 10.0}, a_control(acknowledged=known)).state is state


def test_retention_of_a_sweep_that_nobody_knows_yet_is_open() -> None:
    assert valves.decide_retention({"w": 10.0}, None).open


@pytest.mark.parametrize(
    ("until", "state"), [(None, State.OPEN), (NOW + DAY, State.OPEN), (NOW, State.HOLD), (NOW - DAY, State.HOLD)]
)
def test_budget(until: datetime | None, state: State) -> None:
    assert valves.decide_budget(a_run(budget_until=until), NOW).state is state


@pytest.mark.parametrize(
    ("depth", "waiting", "state"),
    [(0, 0, State.OPEN), (9, 9, State.OPEN), (10, 0, State.HOLD), (0, 10, State.HOLD), (None, 0, State.UNKNOWN)],
)
def test_queue(depth: int | None, waiting: int, state: State) -> None:
    assert valves.decide_queue(depth, waiting, 10).state is state


def test_pause_says_who_and_why() -> None:
    assert valves.decide_pause(None).open
    assert valves.decide_pause(a_control()).open
    reading = valves.decide_pause(a_control(paused_at=NOW, paused_by="ada"))
    assert (reading.state, reading.reason) == (State.HOLD, "paused by ada: no reason given")


def test_stop_file(tmp_path: Path) -> None:
    assert valves.decide_stop_file(None).open
    assert valves.decide_stop_file(tmp_path / "stop").open
    assert valves.decide_stop_file(tmp_path).state is State.HOLD


@pytest.mark.parametrize(("error", "name"), [(DatabaseError("x"), "database"), (ValueError("x"), "ValueError")])
def test_a_probe_that_raises_is_unknown_without_the_errors_text(error: Exception, name: str) -> None:
    def probe() -> Reading:
        raise error

    reading = valves.seen("lag", probe)
    assert (reading.state, reading.reason) == (State.UNKNOWN, f"the probe failed: {name}")


def test_the_first_valve_that_is_not_open_is_the_one_named() -> None:
    readings = [valves.opened("a"), valves.unknown("b", "?"), valves.hold("c", "!")]
    assert valves.first_closed(readings) is readings[1]
    assert valves.first_closed(readings[:1]) is None


# Settings and declarations --------------------------------------------------------------------------------------------

WINDOWS = sorted({name for sweep in SWEEPS.values() for window in sweep.windows for name in window.settings})


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(
    "value",
    [
        "0",
        "0d",
        "-1",
        "-1d",
        "",
        " ",
        "abc",
        "90",
        "1e9",
        "1e9d",
        "nan",
        "inf",
        "1d2h",
        "9999999d",
        "1ms",
        True,
        90,
        None,
    ],
)
def test_a_retention_that_could_mean_now_never_or_the_future_is_refused_at_load(name: str, value: Any) -> None:
    """F03: 0 never means "delete all", nor "for ever"; a bare number has meant too many things."""
    with pytest.raises(SettingsError, match=f"PUSHOPS_{name.upper()}"):
        load_settings(**{name: value})


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
def test_no_setting_that_loads_is_under_the_floor_that_sql_repeats(sweep: Any) -> None:
    """With the shortest cadence too: the floor is a second fence, not the first."""
    lowest = {"stale_after": "7d", "expire_after": "7d", "pending_expire_after": "7d", "untried_after": "30d"}
    lowest |= {"undo_window": "1h", "tombstone_retention": "31d", "period_retention": "31d", "receipt_retention": "7d"}
    settings = load_settings(cadence="daily", **lowest)
    found = runs.windows_of(settings, sweep)
    assert all(found[window.name] >= window.floor for window in sweep.windows)
    assert set(sql.floors(sweep)) == {f"{window.name}_floor" for window in sweep.windows if window.settings}


def test_what_acts_has_a_pace_of_its_own_unless_it_asks_for_the_usual_pause() -> None:
    settings = load_settings(sweep_pause_ms=100)
    pauses = {name: runs.pause_of(settings, sweep) for name, sweep in SWEEPS.items()}
    assert pauses["drain-dead-letters"] == timedelta()
    assert pauses["reseal-auth"] == pauses["age-stale"] == timedelta(milliseconds=100)


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
def test_every_clause_of_a_page_stands_in_parentheses_of_its_own(sweep: Any) -> None:
    """F04: an OR in a predicate cannot escape into the range or the floors."""
    for walk in (Walk.INDEX, Walk.BLOCKS):
        clause = sql.page_clause(sweep, walk, has_lo=True, held=sql.Held(["x"]))
        assert f" AND ({sweep.predicate}) AND " in clause
        assert all(f"%({window.name}_floor)s::interval" in clause for window in sweep.windows if window.settings)
