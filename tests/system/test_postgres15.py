"""The oldest PostgreSQL that is supported: no uuidv7(), no EXPLAIN (GENERIC_PLAN), another planner."""

import itertools
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from pushops.db import Database
from pushops.db.migrate import pending
from pushops.db.transaction import render
from pushops.retention.policies import (
    AGE_EXPIRED,
    AGE_STALE,
    PURGE_PERIODS,
    PURGE_RECEIPTS,
    PURGE_RUNS,
    PURGE_TOMBSTONES,
    SCRUB_TOMBSTONES,
    SWEEPS,
)
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import work
from tests import sweeping
from tests.browser import subscribe
from tests.db.test_every_statement import numbered, statements
from tests.made import make_settings

WALKS: Final = ("index", "blocks")
DAY: Final = timedelta(days=1)
ROWS: Final = 130  # no multiple of a page
OTHERS: Final = 40


@pytest.fixture(params=WALKS)
def walk(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(database_url: str, walk: str) -> Settings:
    return sweeping.quick(make_settings(database_url), sweep_walk=walk)


# Schema ----------------------------------------------------------------------------------------------------------


def test_the_server_is_debians(pg: psycopg.Connection[Any]) -> None:
    assert pg.info.server_version // 10_000 == 15


def test_all_migrations_are_applied(database_url: str) -> None:
    assert not pending(make_settings(database_url))


@pytest.fixture(scope="module")
def planner(shared_database: Database) -> Iterator[psycopg.Connection[Any]]:
    with shared_database.borrowed() as conn:
        conn.execute("SET plan_cache_mode = force_generic_plan")
        yield conn
        conn.execute("RESET plan_cache_mode")


@pytest.mark.parametrize("statement", [pytest.param(text, id=name) for name, text in statements()])
def test_the_statement_plans(statement: str, planner: psycopg.Connection[Any]) -> None:
    query = numbered(render(statement, "pushops").decode())
    planner.execute(f"PREPARE planned AS {query}".encode())
    try:
        planner.execute(f"EXPLAIN EXECUTE planned{nulls(planner)}".encode())
    finally:
        planner.execute("DEALLOCATE planned")


def nulls(conn: psycopg.Connection[Any]) -> str:
    """A null for each parameter: the plan is made without looking at them."""
    row = conn.execute(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'planned'"
    ).fetchone()
    assert row is not None
    return f"({', '.join(['NULL'] * row[0])})" if row[0] else ""


# Identifiers -----------------------------------------------------------------------------------------------------


def new_ids(pg: psycopg.Connection[Any], count: int) -> list[tuple[datetime, uuid.UUID, datetime]]:
    """One statement each: what lies between two of them is far more than a microsecond."""
    query = "SELECT clock_timestamp(), pushops.new_id(), clock_timestamp()"
    return [row for _ in range(count) if (row := pg.execute(query).fetchone())]


def microseconds_in(made: uuid.UUID) -> float:
    """What the id says of its time: 48 bits of milliseconds and 12 bits of a fraction."""
    return (made.int >> 80) * 1000 + ((made.int >> 64) & 0xFFF) * 1000 / 4096


def test_an_id_is_a_uuid_of_version_7(pg: psycopg.Connection[Any]) -> None:
    for _, made, _ in new_ids(pg, 500):
        assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_an_id_holds_the_time_to_the_microsecond(pg: psycopg.Connection[Any]) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for before, made, after in new_ids(pg, 2000):
        low, high = ((time - epoch) / timedelta(microseconds=1) for time in (before, after))
        assert low - 1 <= microseconds_in(made) <= high


def test_ids_sort_as_they_were_made(pg: psycopg.Connection[Any]) -> None:
    made = [made for _, made, _ in new_ids(pg, 2000)]
    assert made == sorted(made)


def test_ids_differ_by_62_random_bits(pg: psycopg.Connection[Any]) -> None:
    tails = [made.int & ((1 << 62) - 1) for _, made, _ in new_ids(pg, 500)]
    always, never = ~0, 0
    for tail in tails:
        always, never = always & tail, never | tail
    assert len(set(tails)) == len(tails)
    assert (always & never, never) == (0, (1 << 62) - 1), "a bit that never changed"


# Upsert ----------------------------------------------------------------------------------------------------------


def test_the_upsert_inserts_refreshes_and_brings_back(runtime: Runtime, pg: psycopg.Connection[Any]) -> None:
    first = subscribe()
    saved = [
        service.save_subscription(runtime, subscribe(first["endpoint"]), user_id="u", origin="https://example.org")
        for _ in range(12)
    ]
    assert [each.inserted for each in saved] == [True] + [False] * 11
    assert len({each.id for each in saved}) == 1
    assert service.unsubscribe(runtime, endpoint=first["endpoint"]) == 1
    back = service.save_subscription(runtime, first, user_id="u", origin="https://example.org")
    assert (back.id, back.state, back.reconnection) == (saved[0].id, "pending", True)
    assert sweeping.count(pg, "SELECT registration_no FROM push_subscription") == 13


# Sweeps ----------------------------------------------------------------------------------------------------------


def sweep_out(rt: Runtime, sweep: Sweep) -> uuid.UUID:
    """Dispatch and work in this thread, until the run has ended."""
    run_id = sweeping.run_of(sweeping.start(rt, sweep, force=True))
    for turn in itertools.count():
        found = sweeping.start(rt, sweep, opening=False)
        if found.run is None:
            return run_id
        assert turn < 100, f"expected the run to end, got {found}"
        work(rt, SWEEPS, run_id)
    raise AssertionError


def assert_swept(pg: psycopg.Connection[Any], run_id: uuid.UUID, rows: int, walk: str) -> None:
    assert sweeping.state_of(pg, run_id) == ("done", None)
    assert pg.execute("SELECT walk FROM sweep_run WHERE run_id = %s", [run_id]).fetchone() == (walk,)
    assert sweeping.count(pg, "SELECT count(*) FROM sweep_batch WHERE run_id = %s", run_id) > 1
    sweeping.assert_every_batch_has_one_receipt(pg, run_id, rows=rows)


def states(pg: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(pg.execute("SELECT state, count(*) FROM push_subscription GROUP BY 1").fetchall())


def test_purging_takes_old_tombstones_and_counts_them(runtime: Runtime, pg: psycopg.Connection[Any], walk: str) -> None:
    sweeping.make_rows(pg, ROWS)
    sweeping.make_rows(pg, OTHERS, ended_ago=10 * DAY)
    sweeping.make_rows(pg, OTHERS, state="active")
    run_id = sweep_out(runtime, PURGE_TOMBSTONES)
    assert states(pg) == {"revoked": OTHERS, "active": OTHERS}
    assert sweeping.count(pg, "SELECT sum(ended) FROM subscription_ended_daily") == ROWS
    assert_swept(pg, run_id, ROWS, walk)


def test_scrubbing_takes_credentials_only(runtime: Runtime, pg: psycopg.Connection[Any], walk: str) -> None:
    sweeping.make_rows(pg, ROWS, ended_ago=10 * DAY, scrubbed=False)
    sweeping.make_rows(pg, OTHERS, ended_ago=DAY, scrubbed=False)
    before = sweeping.hashes(pg)
    run_id = sweep_out(runtime, SCRUB_TOMBSTONES)
    assert sweeping.hashes(pg) == before
    left = "SELECT count(*) FROM push_subscription WHERE num_nonnulls(endpoint, p256dh, auth_sealed) > 0"
    assert sweeping.count(pg, left) == OTHERS
    assert_swept(pg, run_id, ROWS, walk)


def test_purging_periods_leaves_open_and_young_ones(runtime: Runtime, pg: psycopg.Connection[Any], walk: str) -> None:
    make_periods(pg, ROWS, "now() - interval '100 days'")
    make_periods(pg, OTHERS, "now() - interval '10 days'")
    make_periods(pg, OTHERS, "NULL")
    run_id = sweep_out(runtime, PURGE_PERIODS)
    assert sweeping.count(pg, "SELECT count(*) FROM subscription_period") == 2 * OTHERS
    assert_swept(pg, run_id, ROWS, walk)


def make_periods(pg: psycopg.Connection[Any], count: int, ended: str) -> None:
    pg.execute(
        "INSERT INTO subscription_period (endpoint_hash, push_service, began_at, ended_at, end_reason)"
        " SELECT sha256(uuid_send(gen_random_uuid())), 'other', now() - interval '200 days', ended,"
        "        CASE WHEN ended IS NOT NULL THEN 'gone' END"
        f"  FROM (SELECT ({ended})::timestamptz AS ended FROM generate_series(1, %s)) AS rows",
        [count],
    )


@pytest.mark.parametrize("walk", ["index"], indirect=True)
def test_ageing_makes_quiet_rows_stale(runtime: Runtime, pg: psycopg.Connection[Any], walk: str) -> None:
    sweeping.make_rows(pg, OTHERS, state="active")
    pg.execute("UPDATE push_subscription SET last_seen_at = now() - interval '20 days'")
    sweeping.make_rows(pg, ROWS, state="active")
    run_id = sweep_out(runtime, AGE_STALE)
    assert states(pg) == {"stale": ROWS, "active": OTHERS}
    assert_swept(pg, run_id, ROWS, walk)


@pytest.mark.parametrize("walk", ["index"], indirect=True)
def test_ageing_ends_stale_and_pending_rows(runtime: Runtime, pg: psycopg.Connection[Any], walk: str) -> None:
    sweeping.make_rows(pg, OTHERS, state="pending")
    pg.execute("UPDATE push_subscription SET last_seen_at = now() - interval '20 days'")
    sweeping.make_rows(pg, ROWS, state="pending")
    sweeping.make_rows(pg, ROWS, state="stale")
    pg.execute("UPDATE push_subscription SET last_tried_at = now() - interval '100 days' WHERE state = 'stale'")
    run_id = sweep_out(runtime, AGE_EXPIRED)
    assert states(pg) == {"expired": 2 * ROWS, "pending": OTHERS}
    assert_swept(pg, run_id, 2 * ROWS, walk)


@pytest.mark.parametrize("walk", ["index"], indirect=True)
@pytest.mark.usefixtures("walk")
def test_receipts_then_runs_are_purged(runtime: Runtime, pg: psycopg.Connection[Any]) -> None:
    sweeping.make_rows(pg, ROWS)
    old = sweep_out(runtime, PURGE_TOMBSTONES)
    batches = sweeping.count(pg, "SELECT count(*) FROM sweep_batch")
    pg.execute("UPDATE sweep_batch SET finished_at = finished_at - interval '60 days'")
    pg.execute("UPDATE sweep_run SET closed_at = closed_at - interval '60 days'")
    assert_receipts(pg, sweep_out(runtime, PURGE_RECEIPTS), batches)
    assert sweeping.count(pg, "SELECT count(*) FROM sweep_receipt WHERE run_id = %s", old) == 0
    assert_receipts(pg, sweep_out(runtime, PURGE_RUNS), 1)
    assert sweeping.count(pg, "SELECT count(*) FROM sweep_run WHERE run_id = %s", old) == 0


def assert_receipts(pg: psycopg.Connection[Any], run_id: uuid.UUID, rows: int) -> None:
    assert sweeping.state_of(pg, run_id) == ("done", None)
    sweeping.assert_every_batch_has_one_receipt(pg, run_id, rows=rows)
