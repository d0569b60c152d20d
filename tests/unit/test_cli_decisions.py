"""What the command line decides on values: exit codes, patience, findings, forecasts, lines of an import."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pushops.cli.doctor import broker, database, key_use, replication, secrets, sweeping
from pushops.cli.doctor.findings import Finding, Level
from pushops.cli.doctor.store import ForeignKey, KeyUse, Slot
from pushops.cli.exits import Exit, exit_of
from pushops.cli.output import duration
from pushops.cli.progress import rate_and_eta, total_of
from pushops.cli.sweep import BESIDE
from pushops.delivery import fanning, retiring, shift
from pushops.retention.partitions import service
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.rolling.store import PayloadUse
from pushops.sweeps.inline import NEVER_BY_WAITING, Patience
from pushops.sweeps.preview import count_batches, imagined, usual_pace
from pushops.sweeps.probes import Lag
from pushops.sweeps.runs import Size
from pushops.sweeps.store import Progress, RunRow, TableFacts
from pushops.sweeps.sweep import Walk
from tests.made import make_settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SIZE = Size(100, 1000, TableFacts(50, 1000.0))
CLOSED = ("done", "stopped", "cancelled")


def run(state: str = "running", **changes: Any) -> RunRow:
    made = imagined(PURGE_TOMBSTONES, NOW, {"cutoff": timedelta(days=90)}, Walk.INDEX, SIZE, force=False)
    return replace(made, state=state, closed_at=NOW if state in CLOSED else None, **changes)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (run("done"), Exit.DONE),
        (run("stopped", why="lag: behind"), Exit.STOPPED),
        (run("cancelled"), Exit.STOPPED),
        (run("cancelling"), Exit.STOPPED),
        (run("pausing"), Exit.HELD),
        (run("paused"), Exit.HELD),
        (run(held_by="pause"), Exit.HELD),
        (run(held_by="lag"), Exit.HELD),
        (run(held_by="share"), Exit.HELD),
        (run(held_by="budget"), Exit.UNFINISHED),
        (run(), Exit.UNFINISHED),
        (run("done", held_by="budget"), Exit.DONE),
    ],
)
def test_every_end_of_a_run_has_its_exit_code(found: RunRow, code: Exit) -> None:
    assert exit_of(found) is code


@pytest.mark.parametrize("valve", sorted(NEVER_BY_WAITING))
def test_nobody_waits_for_what_waiting_does_not_open(valve: str) -> None:
    limits = dict.fromkeys(NEVER_BY_WAITING, timedelta())
    assert not Patience(limits, timedelta(hours=1)).bears(run(held_by=valve))


def test_patience_begins_anew_for_another_reason_and_ends_with_none() -> None:
    patience = Patience({"lag": timedelta()}, timedelta(hours=1))
    assert patience.bears(run(held_by="pause"))
    assert not patience.bears(run(held_by="lag"))
    assert patience.bears(run())


def test_a_paused_run_is_held_by_its_operator() -> None:
    assert not Patience({"operator": timedelta()}, timedelta(hours=1)).bears(run("paused"))


@pytest.mark.parametrize(
    ("walk", "meant", "batches"),
    [(Walk.INDEX, 100, 10), (Walk.INDEX, 0, 0), (Walk.BLOCKS, 100, 10), (Walk.INDEX, None, None)],
)
def test_batches_are_counted_along_the_walk(walk: Walk, meant: int | None, batches: int | None) -> None:
    assert count_batches(walk, 10, meant, SIZE) == batches


def test_the_usual_pace_counts_target_pause_and_slots() -> None:
    settings = make_settings("postgresql://db/push", sweep_target_batch_ms=50, sweep_pause_ms=150, sweep_max_parallel=4)
    assert usual_pace(settings, PURGE_TOMBSTONES, 1000) == 20_000


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.6, "1m"), (3661, "1h 1m"), (90_000, "1d 1h"), (86_400 * 90, "90d")]
)
def test_durations_show_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


def test_progress_knows_rate_and_rest() -> None:
    assert rate_and_eta(500, 2000, 10.0, "rows") == "500/2,000 rows, 50/s, 30s left"
    assert rate_and_eta(500, None, 10.0, "rows") == "500 rows, 50/s"


def test_a_total_never_lies_below_what_is_done() -> None:
    done = Progress(120, 0, 1, 0, 0, 0, 1.0)
    assert total_of(run(), done) == 120
    assert total_of(replace(run(), eligible_rows=None), done) is None


# The doctor


def levels(findings: Iterator[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


@pytest.mark.parametrize("text", ["mailto:ops@push.example.net.au", "mailto:ops@acme.io", "https://acme.io/contact"])
def test_a_subject_that_reaches_somebody_is_fine(text: str) -> None:
    assert secrets.fault_of_subject(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "ops@acme.io",
        "acme.io",
        "mailto:",
        "mailto:ops",
        "mailto: ops@acme.io",
        "mailto:<ops@acme.io>",
        "mailto:ops@localhost",
        "mailto:ops@example.com",
        "mailto:ops@mail.example.com",
        "mailto:ops@printer.local",
        "https://localhost:8000",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://intranet/",
        "https://",
        "http://acme.io",
    ],
)
def test_a_subject_that_reaches_nobody_has_a_fault(text: str) -> None:
    assert secrets.fault_of_subject(text)


def key(action: str, *, indexed: bool) -> ForeignKey:
    return ForeignKey("public.orders", "orders_fkey", "pushops.push_subscription", action, indexed)


@pytest.mark.parametrize(
    ("action", "indexed", "level"),
    [
        ("CASCADE", True, Level.OK),
        ("SET NULL", True, Level.OK),
        ("CASCADE", False, Level.WARNING),
        ("RESTRICT", True, Level.WARNING),
        ("NO ACTION", True, Level.WARNING),
    ],
)
def test_foreign_keys_are_judged_by_index_and_action(action: str, indexed: bool, level: Level) -> None:
    (found,) = database.judge_foreign_keys([key(action, indexed=indexed)])
    assert found.level is level
    assert "orders_fkey" in found.found


@pytest.mark.parametrize(
    ("seconds", "level"),
    [(0, Level.OK), (4, Level.OK), (-6, Level.WARNING), (60, Level.WARNING), (-400, Level.PROBLEM)],
)
def test_clocks_are_judged_by_what_the_round_trip_cannot_explain(seconds: float, level: Level) -> None:
    trip = timedelta(milliseconds=200)
    apart = timedelta(seconds=seconds)
    assert database.skew(apart + trip / 2, apart - trip / 2).level is level


def test_slots_that_nobody_reads_are_named() -> None:
    slots = [Slot("never", False, None), Slot("gone", False, 5_000), Slot("used", True, 10)]
    assert levels(replication.judge_slots(slots)) == [Level.WARNING, Level.WARNING, Level.OK]


@pytest.mark.parametrize(
    ("lag", "expected", "level"),
    [
        (Lag(0, 0, 0, 0, ""), None, Level.OK),
        (Lag(1, 0, 0, 10, "a"), 1, Level.OK),
        (Lag(1, 0, 0, 5_000, "a"), None, Level.WARNING),
        (Lag(1, 0, 1, 0, ""), None, Level.PROBLEM),
        (Lag(1, 0, 0, 0, "a"), 2, Level.PROBLEM),
    ],
)
def test_replicas_are_judged_as_the_valve_does(lag: Lag, expected: int | None, level: Level) -> None:
    assert replication.replicas(lag, 1_000, expected).level is level


def test_hidden_replicas_make_missing_rights_a_problem() -> None:
    assert replication.rights(Lag(0, 0, 0, 0, ""), sees_all=False).level is Level.WARNING
    assert replication.rights(Lag(1, 0, 1, 0, ""), sees_all=False).level is Level.PROBLEM


@pytest.mark.parametrize(
    ("policy", "level"), [("noeviction", Level.OK), ("allkeys-lru", Level.PROBLEM), (None, Level.WARNING)]
)
def test_a_broker_that_evicts_is_a_problem(policy: str | None, level: Level) -> None:
    assert broker.eviction(policy).level is level


@pytest.mark.parametrize(
    ("timeout", "limit", "level"), [(600, 150, Level.OK), (150, 150, Level.PROBLEM), (600, None, Level.PROBLEM)]
)
def test_a_task_must_end_before_it_is_delivered_again(timeout: float, limit: float | None, level: Level) -> None:
    assert broker.visibility(timeout, limit).level is level


@pytest.mark.parametrize(
    ("ago", "level"), [(None, Level.WARNING), (timedelta(hours=2), Level.WARNING), (timedelta(minutes=5), Level.OK)]
)
def test_a_silent_beat_is_noticed(ago: timedelta | None, level: Level) -> None:
    assert sweeping.judge_look(ago).level is level


def test_rows_that_name_unknown_keys_are_counted() -> None:
    chain: Any = SimpleNamespace(ring=SimpleNamespace(versions=(1,), current=1), vapid={"main": None})
    use = [KeyUse("main", 1, 10, 8), KeyUse("lost", 1, 5, 3), KeyUse("dead", 1, 4, 0), KeyUse(None, 2, 2, 2)]
    sealed, vapid = key_use.judge_use(use, chain)
    assert (sealed.level, sealed.found) == (Level.PROBLEM, "2 row(s) sealed with version 2")
    assert (vapid.level, vapid.found) == (Level.WARNING, "3 live row(s) name VAPID key 'lost'")


def test_rows_under_an_old_seal_key_are_a_share_and_advice_to_roll() -> None:
    ring: Any = SimpleNamespace(versions=(1, 2), current=2)
    chain: Any = SimpleNamespace(ring=ring, vapid={"main": None})
    (old,) = key_use.judge_use([KeyUse("main", 1, 30, 30), KeyUse("main", 2, 70, 60)], chain)
    assert (old.level, old.found) == (Level.WARNING, "30 of 100 row(s) (30%) sealed with version 1")
    assert old.advice == "pushops keys seal roll"
    (fine,) = key_use.judge_use([KeyUse("main", 2, 70, 60)], chain)
    assert fine.level is Level.OK


def test_a_table_too_large_to_count_is_judged_by_the_versions_that_it_has() -> None:
    ring: Any = SimpleNamespace(versions=(1, 2), current=2)
    levels = [(finding.level, finding.found) for finding in key_use.judge_versions([1, 2, 3], ring)]
    assert levels == [
        (Level.WARNING, "rows sealed with version 1"),
        (Level.PROBLEM, "rows sealed with version 3"),
        (Level.WARNING, "counting took longer than 3 s"),
    ]


def test_payloads_under_a_lost_seal_key_are_a_problem() -> None:
    ring: Any = SimpleNamespace(versions=(2,), current=2)
    (lost,) = key_use.judge_payloads([PayloadUse(1, 3, None), PayloadUse(2, 5, None)], ring)
    assert (lost.level, lost.found) == (Level.PROBLEM, "the payloads of 3 message(s) sealed with version 1")


def test_what_is_paused_beside_sweeps_asks_for_its_pause_by_that_name() -> None:
    assert set(BESIDE) == {fanning.NAME, shift.NAME, retiring.NAME, service.NAME}
