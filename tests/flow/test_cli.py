"""Running sweeps from the command line, against a real database."""

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pushops.cli.exits import Exit
from pushops.settings import Settings
from tests.commands import Called, call, spawn
from tests.sweeping import (
    assert_every_batch_has_one_receipt,
    assert_purged,
    count,
    hashes,
    make_rows,
    open_runs,
    quick,
    tombstones,
    wait_until,
)

PURGE = ("sweep", "run", "purge-tombstones", "--inline")
Pg = psycopg.Connection[Any]


@pytest.fixture
def quickly(settings: Settings) -> Settings:
    """No broker, small pages, no pause, no brake."""
    changes = {"sweep_max_lag_give_up": timedelta(seconds=1), "vapid_subject": "mailto:ops@push.acme.io"}
    return quick(settings, **changes)


def contents(pg: Pg) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of ours, and where it lies: any write at all would show."""
    tables = pg.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pushops' ORDER BY 1").fetchall()
    query = "SELECT ctid::text, xmax::text, t::text FROM {} AS t ORDER BY t.ctid"
    return {name: pg.execute(query.format(name).encode()).fetchall() for (name,) in tables}


def run_id(called: Called) -> Any:
    return called.json["run_id"]


# Looking


def test_a_preview_counts_exactly_and_changes_nothing(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 130)
    make_rows(pg, 40, ended_ago=timedelta(days=80))
    make_rows(pg, 30, state="active")
    before = contents(pg)
    found = call("sweep", "preview", "purge-tombstones", "--json", settings=quickly).json
    dry = call("sweep", "run", "purge-tombstones", "--dry-run", "--json", settings=quickly).json
    assert contents(pg) == before
    assert (found["eligible"], found["table_rows"], found["batches"], found["walk"]) == (130, 200, 7, "index")
    assert (found["quarantined"], found["open_run"], len(found["sample"])) == (0, None, 5)
    assert dry["eligible"] == 130
    oldest = pg.execute("SELECT min(deleted_at)::text FROM push_subscription").fetchone()
    assert oldest == (found["oldest"],)


def test_a_preview_shows_the_valve_that_a_run_would_meet(pg: Pg, quickly: Settings, tmp_path: Path) -> None:
    make_rows(pg, 1000)
    stop = tmp_path / "stop"
    stop.touch()
    braked = quickly.model_copy(update={"sweep_max_share": 0.2, "stop_file": stop})
    readings = call("sweep", "preview", "purge-tombstones", "--json", settings=braked).json["readings"]
    states = {reading["valve"]: reading["state"] for reading in readings}
    assert (states["share"], states["stop_file"], states["lag"]) == ("hold", "hold", "open")
    text = call("sweep", "preview", "purge-tombstones", settings=braked).out
    assert "would take 1000 of 1000 rows" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_preview_judges_time_by_the_last_runs(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 100)
    assert call("sweep", "preview", "purge-tombstones", "--json", settings=quickly).json["pace_from"] == "settings"
    assert call(*PURGE, settings=quickly).code == Exit.DONE
    assert call("sweep", "preview", "purge-tombstones", "--json", settings=quickly).json["pace_from"] == "last runs"


# Running in this process


def test_an_inline_run_takes_exactly_what_is_due(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 205)
    make_rows(pg, 20, ended_ago=timedelta(days=80))
    make_rows(pg, 10, state="active")
    kept = hashes(pg) - {
        row[0]
        for row in pg.execute("SELECT endpoint_hash FROM push_subscription WHERE deleted_at < now() - interval '90 d'")
    }
    done = call(*PURGE, "--json", settings=quickly)
    assert (done.code, done.json["state"], done.json["progress"]["rows_done"]) == (Exit.DONE, "done", 205)
    assert hashes(pg) == kept
    assert_every_batch_has_one_receipt(pg, rows=205)


def test_an_inline_run_with_nothing_to_do_is_done(pg: Pg, quickly: Settings) -> None:
    done = call(*PURGE, settings=quickly)
    assert done.code == Exit.DONE
    assert "0 rows" in done.out
    assert open_runs(pg) == 0


def test_a_limit_ends_the_run_after_so_many_rows(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 100)
    assert call(*PURGE, "--limit", "33", settings=quickly).code == Exit.DONE
    assert tombstones(pg) == 67


def test_the_share_brake_holds_at_once_and_force_lifts_it(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 1000)
    braked = quickly.model_copy(update={"sweep_max_share": 0.2, "sweep_batch_rows": 200})
    held = call(*PURGE, "--json", settings=braked)
    assert (held.code, held.json["held_by"], tombstones(pg)) == (Exit.HELD, "share", 1000)
    done = call(*PURGE, "--force", "--json", settings=braked)
    assert done.code == Exit.DONE
    assert_purged(pg, run_id(done), 1000)


def test_a_paused_sweep_is_held_with_its_reason_and_goes_on_after_resuming(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 60)
    assert call("sweep", "pause", "purge-tombstones", "--why", "migration night", settings=quickly).code == 0
    held = call(*PURGE, settings=quickly)
    assert held.code == Exit.HELD
    assert "migration night" in held.out
    assert tombstones(pg) == 60
    assert call("sweep", "resume", "purge-tombstones", settings=quickly).code == 0
    assert call(*PURGE, settings=quickly).code == Exit.DONE
    assert tombstones(pg) == 0


def test_a_stop_file_holds_until_it_is_gone(pg: Pg, quickly: Settings, tmp_path: Path) -> None:
    make_rows(pg, 60)
    stop = tmp_path / "stop"
    stop.touch()
    stoppable = quickly.model_copy(update={"stop_file": stop})
    held = call(*PURGE, "--json", settings=stoppable)
    assert (held.code, held.json["held_by"], tombstones(pg)) == (Exit.HELD, "stop_file", 60)
    stop.unlink()
    assert call(*PURGE, settings=stoppable).code == Exit.DONE


def test_a_shortened_window_is_held_until_it_is_acknowledged(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 60, ended_ago=timedelta(days=50))
    assert call(*PURGE, settings=quickly).code == Exit.DONE
    shorter = quickly.model_copy(update={"tombstone_retention": timedelta(days=40)})
    held = call(*PURGE, settings=shorter)
    assert held.code == Exit.HELD
    assert "shortened from 90d to 40d" in " ".join(held.out.split())
    assert call("sweep", "acknowledge", "purge-tombstones", settings=shorter).code == 0
    assert call(*PURGE, settings=shorter).code == Exit.DONE
    assert tombstones(pg) == 0


def test_a_spent_budget_leaves_a_run_that_the_next_call_ends(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 200)
    slow = quickly.model_copy(update={"sweep_budget_ms": 1_000, "sweep_pause_ms": 400})
    cut = call(*PURGE, "--json", settings=slow)
    assert (cut.code, cut.json["held_by"]) == (Exit.UNFINISHED, "budget")
    assert 0 < tombstones(pg) < 200
    done = call(*PURGE, "--json", settings=quickly)
    assert (done.code, run_id(done)) == (Exit.DONE, run_id(cut))
    assert_purged(pg, run_id(done), 200)


def test_pages_beyond_the_high_water_mark_are_written_as_the_run_goes_on(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 600)
    shallow = quickly.model_copy(update={"sweep_max_queue": 5, "sweep_low_water": 2})
    done = call(*PURGE, "--json", settings=shallow)
    assert done.code == Exit.DONE
    assert_purged(pg, run_id(done), 600)


@pytest.mark.long
def test_a_valve_that_opens_in_time_lets_the_waiting_run_go_on(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 60)
    call("sweep", "pause", "purge-tombstones", settings=quickly)
    process = spawn(
        *PURGE, "--json", settings=quickly.model_copy(update={"sweep_max_lag_give_up": timedelta(minutes=1)})
    )
    wait_until(
        lambda: count(pg, "SELECT count(*) FROM sweep_run WHERE held_by = 'pause'"), expected="the run to be held"
    )
    call("sweep", "resume", "purge-tombstones", settings=quickly)
    out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.DONE, err
    assert_purged(pg, json.loads(out)["run_id"], 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_the_batch_in_hand_and_leaves_the_run_resumable(
    pg: Pg, quickly: Settings, number: signal.Signals
) -> None:
    make_rows(pg, 2_000)
    slow = quickly.model_copy(update={"sweep_pause_ms": 50})
    process = spawn(*PURGE, "--json", settings=slow)
    wait_until(lambda: count(pg, "SELECT count(*) FROM sweep_receipt") > 2, expected="a few batches")
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.UNFINISHED, err
    assert 0 < tombstones(pg) < 2_000
    assert count(pg, "SELECT count(*) FROM sweep_batch WHERE state = 'claimed'") == 0
    assert count(pg, "SELECT count(*) FROM sweep_slot WHERE holder IS NOT NULL") == 0
    done = call(*PURGE, "--json", settings=quickly)
    assert (done.code, run_id(done)) == (Exit.DONE, json.loads(out)["run_id"])
    assert_purged(pg, run_id(done), 2_000)


@pytest.mark.long
def test_two_inline_runs_at_once_share_one_run(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 1_000)
    both = [spawn(*PURGE, "--json", settings=quickly) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert tombstones(pg) == 0
    assert_every_batch_has_one_receipt(pg, rows=1_000)


def test_a_key_that_cannot_go_is_set_apart_listed_and_released(pg: Pg, quickly: Settings) -> None:
    make_rows(pg, 45)
    pg.execute("CREATE TABLE public.orders (id uuid REFERENCES push_subscription)")
    pg.execute("INSERT INTO public.orders SELECT id FROM push_subscription ORDER BY id LIMIT 1")
    done = call(*PURGE, "--json", settings=quickly)
    assert (done.code, done.json["why"], tombstones(pg)) == (Exit.DONE, "1 quarantined", 1)
    (entry,) = call("sweep", "quarantine", "list", "--json", settings=quickly).json
    assert entry["sweep"] == "purge-tombstones"
    assert "orders_id_fkey" in entry["error"]
    pg.execute("DROP TABLE public.orders")
    assert call(*PURGE, settings=quickly).code == Exit.DONE
    assert tombstones(pg) == 1, "what is set apart is left alone until it is released"
    released = call(
        "sweep", "quarantine", "release", "purge-tombstones", entry["quarantine_id"], "--json", settings=quickly
    )
    assert released.json["released"] == 1
    assert call(*PURGE, settings=quickly).code == Exit.DONE
    assert tombstones(pg) == 0


# Runs


@pytest.fixture
def held_run(pg: Pg, quickly: Settings) -> Any:
    """A run that a pause keeps open."""
    make_rows(pg, 60)
    call("sweep", "pause", "purge-tombstones", settings=quickly)
    found = call(*PURGE, "--json", settings=quickly)
    call("sweep", "resume", "purge-tombstones", settings=quickly)
    return run_id(found)


def test_a_paused_run_waits_and_a_resumed_one_goes_on(pg: Pg, quickly: Settings, held_run: str) -> None:
    assert call("run", "pause", held_run, "--why", "lunch", "--json", settings=quickly).json["state"] == "paused"
    held = call(*PURGE, settings=quickly)
    assert held.code == Exit.HELD
    assert "lunch" in held.out
    assert tombstones(pg) == 60
    assert call("run", "resume", held_run, "--json", settings=quickly).json["state"] == "running"
    assert call(*PURGE, settings=quickly).code == Exit.DONE


def test_a_cancelled_run_leaves_its_rows_and_says_so(pg: Pg, quickly: Settings, held_run: str) -> None:
    assert call("run", "cancel", held_run, "--json", settings=quickly).json["state"] == "cancelled"
    watched = call("run", "watch", held_run, "--json", settings=quickly)
    assert (watched.code, watched.json["exit_code"], tombstones(pg)) == (Exit.STOPPED, Exit.STOPPED, 60)


def test_a_run_is_found_by_the_beginning_of_its_id(quickly: Settings, held_run: str) -> None:
    assert call("run", "show", held_run[:13], "--json", settings=quickly).json["run_id"] == held_run
    assert held_run[:13] in call("run", "list", settings=quickly).out
    call("run", "cancel", held_run, settings=quickly)
    call(*PURGE, settings=quickly)
    several = call("run", "show", held_run[:4], settings=quickly)
    assert several.code == Exit.FAILED
    assert "give more of it" in several.err
    assert call("run", "show", "ffffffff", settings=quickly).code == Exit.FAILED
    assert "expected the id of a run" in call("run", "show", "latest", settings=quickly).err


def test_watching_ends_at_its_timeout(quickly: Settings, held_run: str) -> None:
    assert call("run", "watch", held_run, "--timeout", "100ms", settings=quickly).code == Exit.HELD


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "list"),
        ("sweep", "preview", "age-stale"),
        ("sweep", "pause", "age-stale"),
        ("sweep", "resume", "age-stale"),
        ("sweep", "acknowledge", "age-stale"),
        ("sweep", "quarantine", "list"),
        ("sweep", "quarantine", "release", "age-stale", "--all"),
        ("sweep", "run", "age-stale", "--inline"),
        ("run", "list"),
        ("subscription", "list"),
        ("subscription", "undo", "--reason", "gone"),
        ("message", "list"),
        ("message", "cancel", "--campaign", "none"),
        ("provider", "list"),
        ("provider", "pause", "fcm"),
        ("provider", "resume", "fcm"),
        ("guard", "list"),
        ("hold", "list"),
        ("stats", "churn"),
        ("explain", "--table"),
        ("explain", "--status", "410"),
        ("migrate",),
        ("migrate", "--status"),
        ("check",),
        ("config",),
    ],
)
def test_json_is_all_that_stands_on_stdout(quickly: Settings, words: tuple[str, ...]) -> None:
    done = call(*words, "--json", settings=quickly)
    assert done.code == 0, done.text
    assert isinstance(done.json, dict | list)
