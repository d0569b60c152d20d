"""The benchmark runs, at a size that says nothing about speed; tests/system runs all of it."""

from pathlib import Path
from typing import Final

import pytest

from bench import tenfold
from bench.beside import Beside, Pair
from tests.benching import run_bench

ROOT: Final = Path(__file__).parents[2]
ASKED_FOR: Final = {
    "rows_per_s",
    "pipeline_vs_single",
    "pipeline_vs_cte_loop",
    "lived_in_vs_single",
    "last_vs_first_batch",
    "wal_per_row_vs_single",
    "batch_p99_ms",
    "live_p99_vs_idle",
    "dispatch_us_per_row",
    "args_bytes_max",
    "message_bytes_max",
}
SMALL: Final = ("--rows", "5000", "--rounds", "1", "--window", "0", "--synchronous")
CONTENDERS: Final = {"single_delete", "cte_loop", "in_loop", "ids_in_messages", "pipeline"}


@pytest.mark.timeout(300)
def test_the_benchmark_ends_with_every_figure_on_its_last_line_and_leaves_nothing_behind(folder: Path) -> None:
    found = run_bench(folder, "bench.purge", *SMALL)
    assert found.keys() >= ASKED_FOR
    assert {name for name in ASKED_FOR if found[name] is None} == {"live_p99_vs_idle"}  # there is no live window
    for rates in found["rows_per_s"].values():
        assert rates.keys() == CONTENDERS
    assert found["args_bytes_max"] < 256
    assert found["message_bytes_max"] < 4096
    assert found["runs"] == dict.fromkeys(found["rows_per_s"], dict.fromkeys(CONTENDERS, 1))


@pytest.mark.timeout(300)
def test_tenfold_tables_are_measured_with_their_dispatchers(folder: Path) -> None:
    found = run_bench(folder, "bench.tenfold", "--rows", "2000", "--rounds", "1")
    assert found["rows"] == [2_000, 20_000]
    assert all(rate > 0 for rate in found["rows_per_s"])
    for small, large in found["dispatcher"].values():
        assert large["batches"] > small["batches"] > 0


@pytest.mark.parametrize(
    ("rates", "memory", "ok"),
    [
        ([(100, 80), (100, 90), (100, 70)], (50.0, 50.0), True),
        ([(100, 74), (100, 90), (100, 70)], (50.0, 50.0), False),
        ([(100, 100)], (50.0, 60.0), False),
    ],
)
def test_tenfold_holds_where_neither_rate_nor_memory_gives_way(
    rates: list[tuple[float, float]], memory: tuple[float, float], ok: bool
) -> None:
    found = tenfold.figures((1, 10), rates, {"index": [{"mb": each} for each in memory]})
    assert found["ok"] is ok


def test_a_purge_that_ends_before_its_window_gives_no_figure() -> None:
    pairs = [Pair(4.0, 8.0, 2.0, 2.2, seconds, 1.0) for seconds in (20.1, 20.0, 20.5)]
    assert Beside(pairs, 20.0).ratio == 2.0
    assert Beside(pairs, 20.3).ratio is None
