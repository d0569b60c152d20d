"""The demo ends well, and leaves nothing behind however it ends."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories import SMALL, interrupt, new_place, processes_of, start


@pytest.fixture
def place() -> Iterator[Path]:
    with new_place() as folder:
        yield folder


@pytest.mark.long
def test_the_story_ends_well_and_leaves_nothing(place: Path) -> None:
    demo = start(place, *SMALL, "--subscribers", "2000")
    out, complaints = demo.communicate(timeout=240)

    assert demo.returncode == 0, out + complaints
    summary = json.loads(out.splitlines()[-1])
    assert summary["ok"] is True
    assert summary["eligible"] == 40_000
    assert summary["purged"] + summary["resurrected_kept"] == 40_000
    assert summary["resurrected_kept"] >= 100  # those that came back before it began
    assert summary["live_kept"] == 4_000
    assert summary["workers_killed"] == 1
    assert summary["duplicates_ignored"] >= 1
    assert 1_850 <= summary["sent"] <= 1_975  # of 2,000, and the hash says to whom not
    assert summary["revoked"] >= 10
    assert summary["votes"] >= 3
    assert summary["retried"] >= 40
    assert summary["guard_opened"] == summary["pages"] == 4
    assert summary["given_back"] >= 1
    assert summary["lost_to_outage"] == 0
    assert processes_of(place) == []


@pytest.mark.long
def test_an_interrupted_story_says_so_and_leaves_nothing(place: Path) -> None:
    """tests/system does the same with SIGTERM."""
    interrupt(place, signal.SIGINT)
