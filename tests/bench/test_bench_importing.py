"""The benchmark of imports runs, at a size that says nothing about speed."""

from pathlib import Path

import pytest

from bench import importing
from bench.incoming import Written
from tests.benching import run_bench


@pytest.mark.timeout(300)
def test_the_benchmark_of_imports_ends_with_its_figure_on_the_last_line_and_leaves_nothing_behind(folder: Path) -> None:
    found = run_bench(folder, "bench.importing", "--rows", "12000", "--rounds", "1")
    assert found["import_vs_copy"] > 0
    assert found["again_vs_copy"] > 0
    assert 0.9 < found["endpoints"] / found["rows"] < 0.95
    assert found["memory_mb"] > 0


def test_the_figure_is_the_median_of_seconds_by_seconds() -> None:
    rounds = [
        {"import_s": seconds, "again_s": 1.0, "copy_s": 2.0, "memory_mb": 9.0, "memory_growth": 1.0}
        for seconds in (4.0, 6.0, 20.0)
    ]
    assert importing.figures(Written(100, 93, 5, 2), rounds)["import_vs_copy"] == 3.0
