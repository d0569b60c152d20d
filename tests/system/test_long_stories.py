"""What takes too long for every day: all of the benchmark, and the demo's other signal."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.stories import interrupt, new_place
from tests.sweeping import ROOT

BENCH = ("-m", "bench.purge", "--rows", "20000", "--rounds", "1", "--window", "1")


@pytest.mark.timeout(300)
def test_the_benchmark_measures_every_contender_and_live_traffic() -> None:
    with new_place() as place:
        command = [sys.executable, *BENCH]
        environment = os.environ | {"TMPDIR": str(place)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["live_p99_vs_idle"] is not None
    assert all(f"{name}_async" in rates for rates in found["rows_per_s"].values() for name in ("pipeline", "in_loop"))


def test_a_story_that_is_asked_to_end_says_so_and_leaves_nothing() -> None:
    with new_place() as place:
        interrupt(place, signal.SIGTERM)
