"""The benchmark of replaying runs, at a size that says nothing about speed."""

from pathlib import Path
from typing import Final

import pytest

from bench.replaying import figures
from bench.replaying.figures import Round
from bench.replaying.paced import Paced, Pair
from tests.benching import run_bench

ASKED_FOR: Final = {
    "replay_vs_send",
    "replay_rows_per_s",
    "send_rows_per_s",
    "triage_ms",
    "triage_ms_unvacuumed",
    "pace_error",
    "live_p99_vs_idle",
}
SMALL: Final = ("--letters", "1000", "--rounds", "1", "--triaged", "2000", "--window", "2", "--pairs", "1")


@pytest.mark.timeout(300)
def test_letters_are_drained_and_the_last_line_has_every_figure(folder: Path) -> None:
    found = run_bench(folder, "bench.replay", *SMALL)
    assert found.keys() >= ASKED_FOR
    assert {name for name in ASKED_FOR if found[name] is None} == set()
    assert found["replay_rows_per_s"] > 0
    assert found["send_rows_per_s"] > 0
    assert len(found["paced"]["paces"]) == 1


def test_ratios_are_taken_within_a_round_and_the_pace_is_that_of_the_worst_window() -> None:
    rounds = [Round(replay=50, send=100), Round(replay=80, send=100), Round(replay=90, send=300)]
    pairs = [Pair(10, 12, 99), Pair(10, 30, 88), Pair(10, 11, 104)]
    found = figures.figures(rounds, (450.4, 900.0), Paced(pairs, 20.0))
    assert (found["replay_vs_send"], found["replay_rows_per_s"], found["send_rows_per_s"]) == (0.5, 80, 100)
    assert (found["triage_ms"], found["triage_ms_unvacuumed"]) == (450, 900)
    assert found["pace_error"] == 0.12
    assert found["live_p99_vs_idle"] == 1.2


def test_what_was_not_measured_has_no_figure() -> None:
    found = figures.figures([Round(1, 1)], (1.0, 1.0), None)
    assert found["pace_error"] is None
    assert found["live_p99_vs_idle"] is None
