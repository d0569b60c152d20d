"""Running sweeps through a broker: dispatched, followed, joined."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from pushops.cli.exits import Exit
from pushops.settings import Settings
from tests.commands import call, spawn
from tests.sweeping import (
    assert_purged,
    closed,
    make_rows,
    open_runs,
    publishing,
    quick,
    tombstones,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

RUN = ("sweep", "run", "purge-tombstones")
Pg = psycopg.Connection[Any]


@pytest.fixture
def brokered(settings: Settings, valkey_url: str) -> Iterator[Settings]:
    found = quick(settings, valkey_url, sweep_max_lag_give_up=timedelta(seconds=1))
    with publishing(found):
        yield found


def test_a_run_is_dispatched_and_its_id_printed(pg: Pg, brokered: Settings) -> None:
    make_rows(pg, 200)
    done = call(*RUN, "--json", settings=brokered)
    assert (done.code, done.json["state"], done.json["dispatch"]["batches"]) == (Exit.DONE, "running", 10)
    assert tombstones(pg) == 200, "workers do it, not the command"
    again = call(*RUN, settings=brokered)
    assert done.json["run_id"] in again.out
    assert "joined" in again.out
    with workers(brokered, 1):
        wait_until(lambda: closed(pg, done.json["run_id"]), expected="the worker to end the run")
    assert_purged(pg, done.json["run_id"], 200)


def test_waiting_follows_the_workers_to_the_end(pg: Pg, brokered: Settings) -> None:
    make_rows(pg, 400)
    with workers(brokered, 2):
        done = call(*RUN, "--wait", "--json", settings=brokered)
    assert (done.code, done.json["progress"]["rows_done"]) == (Exit.DONE, 400)
    assert_purged(pg, done.json["run_id"], 400)


def test_waiting_for_workers_that_never_come_ends_at_the_timeout(pg: Pg, brokered: Settings) -> None:
    make_rows(pg, 40)
    done = call(*RUN, "--wait", "--timeout", "200ms", settings=brokered)
    assert done.code == Exit.UNFINISHED
    assert "work is left" in done.err


def test_a_held_dispatch_says_why(pg: Pg, brokered: Settings) -> None:
    make_rows(pg, 40)
    call("sweep", "pause", "purge-tombstones", "--why", "audit", settings=brokered)
    held = call(*RUN, settings=brokered)
    assert held.code == Exit.HELD
    assert "audit" in held.out
    waited = call(*RUN, "--wait", settings=brokered)
    assert waited.code == Exit.HELD


def test_an_inline_run_and_workers_share_one_run(pg: Pg, brokered: Settings) -> None:
    make_rows(pg, 2_000)
    with workers(brokered, 2):
        inline = spawn(*RUN, "--inline", "--json", settings=brokered)
        wait_until(lambda: open_runs(pg) or tombstones(pg) < 2_000, expected="the run to be open")
        done = call(*RUN, "--wait", "--json", settings=brokered)
        inline.communicate(timeout=60)
    assert (inline.returncode, done.code) == (Exit.DONE, Exit.DONE)
    assert tombstones(pg) == 0


def test_a_broker_that_does_not_answer_is_said_before_a_run_is_opened(pg: Pg, settings: Settings) -> None:
    make_rows(pg, 40)
    gone = quick(settings).model_copy(update={"broker_url": SecretStr("redis://:correct-horse@127.0.0.1:1/0")})
    with publishing(gone):
        done = call(*RUN, settings=gone)
    assert (done.code, open_runs(pg)) == (Exit.FAILED, 0)
    assert "expected the broker" in done.err
    assert "correct-horse" not in done.text


def test_without_a_broker_the_way_out_is_named(settings: Settings) -> None:
    done = call(*RUN, settings=settings)
    assert done.code == Exit.FAILED
    assert "PUSHOPS_BROKER_URL" in done.err
    assert "--inline" in done.err
