"""The benchmark of tables of one's own runs, at a size that says nothing about speed."""

from pathlib import Path

import pytest

from bench import own
from tests.benching import run_bench


@pytest.mark.timeout(300)
def test_the_benchmark_of_own_tables_ends_with_its_three_figures_and_leaves_nothing_behind(folder: Path) -> None:
    found = run_bench(folder, "bench.own", "--rows", "12000", "--rounds", "1")
    assert found["own_vs_builtin"] == min(found["by_table"].values()) > 0
    assert found["partition_vs_delete"] > 0
    assert found["import_vs_copy"] > 0


def test_the_figure_is_the_worst_tables_median() -> None:
    rounds = [
        {own.BUILT_IN: 100.0, "webhook-deliveries": webhooks, "short-links": links}
        for webhooks, links in ((90.0, 300.0), (150.0, 80.0), (500.0, 200.0))
    ]
    found = own.figures(rounds)
    assert found["by_table"] == {"webhook-deliveries": 1.5, "short-links": 2.0}
    assert found["own_vs_builtin"] == 1.5
