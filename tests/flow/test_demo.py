"""The demo on a small scale, as a newcomer runs it: in a process of its own, with traps around it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import servers

SMALL: Final = ("--tombstones", "40000", "--live", "4000", "--seconds", "5")


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder that the servers can enter, and that is empty again at the end."""
    folder = servers.new_folder("demo")
    folder.mkdir(mode=0o755)
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    """With settings around it that name a database and a sandbox that it must not touch."""
    traps = {
        "TMPDIR": str(place),
        "PUSHOPS_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/not-this-one",
        "PUSHOPS_SANDBOX_DIR": str(place / "not-this-sandbox"),
        "PUSHOPS_SWEEP_WALK": "sideways",
        "PGOPTIONS": "-c default_transaction_read_only=on",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pushops.demo", *arguments],
        env=os.environ | traps,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(place: Path) -> list[str]:
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(place) in line]


def test_the_story_ends_well_and_leaves_nothing(place: Path) -> None:
    demo = start(place, *SMALL)
    out, complaints = demo.communicate(timeout=110)

    assert demo.returncode == 0, out + complaints
    summary = json.loads(out.splitlines()[-1])
    assert summary["ok"] is True
    assert summary["eligible"] == 40_000
    assert summary["purged"] + summary["resurrected_kept"] == 40_000
    assert summary["resurrected_kept"] >= 100  # those that came back before it began
    assert summary["live_kept"] == 4_000
    assert summary["workers_killed"] == 1
    assert summary["duplicates_ignored"] >= 1
    assert processes_of(place) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_story_says_so_and_leaves_nothing(place: Path, number: signal.Signals) -> None:
    demo = start(place, *SMALL)
    assert demo.stdout is not None
    while "readers go on" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(number)
    out, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130
    assert json.loads(out.splitlines()[-1]) == {"ok": False, "error": "interrupted"}
    assert processes_of(place) == []
