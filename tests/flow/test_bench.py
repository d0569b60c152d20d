"""The benchmark runs, at a size that says nothing about speed; tests/system runs all of it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import servers

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


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder that the servers' user can enter, which pytest's own are not."""
    made = servers.new_folder("pushops-bench-test")
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.timeout(300)
def test_the_benchmark_ends_with_every_figure_on_its_last_line_and_leaves_nothing_behind(folder: Path) -> None:
    command = [sys.executable, "-m", "bench.purge", *SMALL]
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() >= ASKED_FOR
    assert {name for name in ASKED_FOR if found[name] is None} == {"live_p99_vs_idle"}  # there is no live window
    for rates in found["rows_per_s"].values():
        assert rates.keys() == CONTENDERS
    assert found["args_bytes_max"] < 256
    assert found["message_bytes_max"] < 4096
    assert list(folder.iterdir()) == []
