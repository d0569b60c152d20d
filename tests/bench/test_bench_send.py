"""The benchmark of sending runs, at a size that says nothing about speed."""

import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bench.sending import figures
from bench.sending.contender import ASYNC, ENCRYPTION, NODE, RUNS, WEBPUSH, WHOLE
from bench.sending.job import Done
from tests.benching import run_bench

ROOT: Final = Path(__file__).parents[2]
ASKED_FOR: Final = {"per_s", "whole_vs_webpush", "whole_vs_best_peer", "whole_vs_limit", "rss_mb"}


def run(folder: Path, **environment: str) -> dict[str, Any]:
    return run_bench(folder, "bench.send", "--sends", "200", "--rounds", "1", "--memory", "0", **environment)


@pytest.mark.timeout(300)
def test_every_contender_sends_and_the_last_line_has_every_figure(folder: Path) -> None:
    found = run(folder)
    assert found.keys() >= ASKED_FOR
    assert found["per_s"].keys() | found["skipped"].keys() == RUNS.keys()
    assert found["skipped"].keys() <= {NODE}
    assert all(rate > 0 for rate in found["per_s"].values())
    assert found["rss_mb"].keys() == {"200"}


@pytest.mark.timeout(300)
def test_without_nginx_and_npm_it_is_measured_against_the_sandbox(folder: Path) -> None:
    found = run(folder, PATH=os.path.dirname(sys.executable), BENCH_SERVER="sandbox")  # noqa: PTH120
    assert found["server"] == "sandbox"
    assert found["skipped"] == {NODE: "npm is not installed"}
    assert found["per_s"].keys() == RUNS.keys() - {NODE}


def done(rate: float) -> Done:
    return Done(sent=100, seconds=100 / rate, cpu=1.0)


def test_ratios_are_taken_within_a_round_and_against_its_fastest_peer() -> None:
    slow = {WEBPUSH: done(10), ASYNC: done(50), WHOLE: done(100), ENCRYPTION: done(200)}
    fast = {WEBPUSH: done(30), ASYNC: done(20), WHOLE: done(300), ENCRYPTION: done(400)}
    found = figures.figures([slow, slow, fast], {"10000": 100.0, "200000": 105.0})
    assert (found["whole_vs_webpush"], found["whole_vs_best_peer"], found["whole_vs_limit"]) == (10, 2, 0.5)
    assert found["best_peer"] == ASYNC
    assert found["rss_growth"] == 1.05
    assert figures.figures([fast], {"10000": 100.0})["whole_vs_best_peer"] == 10
