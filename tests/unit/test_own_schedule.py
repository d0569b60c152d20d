"""A section of somebody's own with a schedule is added to the schedule, whatever it is called."""

import json
import runpy

import pytest

from pushops import celeryconfig
from pushops.settings.own import TAKEN


def test_a_schedule_of_ones_own_takes_no_entry_of_ours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["links", *(name for name in celeryconfig.beat_schedule if name not in TAKEN)]
    section = {"table": "public.links", "expires": "expires_at", "schedule": "03:30"}
    monkeypatch.setenv("PUSHOPS_SWEEPS", json.dumps(dict.fromkeys(names, section)))
    found = runpy.run_path(str(celeryconfig.__file__))["beat_schedule"]
    assert {name: found[name] for name in celeryconfig.beat_schedule} == celeryconfig.beat_schedule
    assert len(found) == len(celeryconfig.beat_schedule) + len(names)
