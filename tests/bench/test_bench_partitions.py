"""The benchmark of partitions runs, at a size that says nothing."""

from pathlib import Path

import pytest

from tests.benching import run_bench


@pytest.mark.timeout(300)
def test_the_benchmark_ends_with_its_figure_and_both_ways_delete_everything(folder: Path) -> None:
    found = run_bench(folder, "bench.partitions", "--rows", "5000", "--rounds", "1")
    assert found.keys() >= {"partition_vs_delete", "retire_s", "sweep_s"}
    assert found["rows"] == 5000
