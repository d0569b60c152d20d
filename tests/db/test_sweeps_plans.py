"""How PostgreSQL runs what the engine renders, on tables of some size: never a scan of the whole, whatever it knows."""

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import scalar_row

from pushops.db import Tx
from pushops.db.transaction import render
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime
from pushops.sandbox import PostgresServer
from pushops.sweeps import sql
from pushops.sweeps.batch import Shift
from pushops.sweeps.sql import Held
from pushops.sweeps.store import BatchRow, PageEnd, RunRow
from pushops.sweeps.sweep import Sweep, Walk
from tests.letters import CLOSED, park_letters
from tests.made import make_settings
from tests.sweepdb import Conn, add_ended, add_live, add_tombstones, open_run, opened

BUILT_IN: Final = [sweep for sweep in SWEEPS.values() if sweep.effect]  # fault tests add one that acts
Plans = dict[tuple[str, str, str, bool], str]
OLD = "now() - interval '400 days' + n * interval '1 second'"
PERIODS = """
INSERT INTO subscription_period (endpoint_hash, push_service, began_at, ended_at, end_reason)
SELECT sha256(n::text::bytea), 'test', now() - interval '1 year', ended, CASE WHEN ended IS NOT NULL THEN 'gone' END
  FROM (SELECT n, CASE WHEN n %% 2 = 0 THEN now() - n * interval '15 minutes' END AS ended
          FROM generate_series(1, 20000) AS n) AS rows"""
RUNS = """
INSERT INTO sweep_run (sweep, state, started_by, cutoffs, windows, walk, closed_at)
SELECT 'old', 'done', 'test', '{}', '{}', 'index', now() - n * interval '1 hour' FROM generate_series(1, 3000) AS n"""
BATCHES = """
INSERT INTO sweep_batch (batch_id, run_id, seq, hi, state, finished_at)
SELECT gen_random_uuid(), run_id, n, '{}', 'done', closed_at FROM sweep_run, generate_series(1, 14) AS n
 WHERE extract(hour FROM closed_at)::int %% 2 = 0"""
RECEIPTS = """
INSERT INTO sweep_receipt (batch_id, run_id, rows_done, rows_locked, seconds, worker)
SELECT batch_id, run_id, 1, 0, 0, 'test' FROM sweep_batch"""

# Four months of messages, this week's with a row in the ledger; evidence, counts and audit of as long.
MESSAGES = """
INSERT INTO push_message (message_id, ttl, state, first_dispatched_at, expires_at, closed_at)
SELECT id_floor(at), 60, 'closed', at, at, at
  FROM (SELECT now() - n * interval '15 minutes' AS at FROM generate_series(1, 12000) AS n) AS rows"""
LEDGER = """
INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority, next_attempt_at,
       expires_at)
SELECT message_id, '\\x00', message_id, 1, 1, 1, closed_at, closed_at FROM push_message
 WHERE closed_at >= date_bin('7 days', now(), timestamptz '2000-01-03 00:00:00+00')"""
EVIDENCE = """
INSERT INTO push_evidence
       (at, push_service, subscription_id, endpoint_hash, registration_no, finding, started_at, state)
SELECT closed_at, 'fcm', message_id, '\\x00', 1, 'gone', closed_at, 'applied' FROM push_message"""
ANSWERS = "INSERT INTO push_answer (push_service, minute) SELECT 'fcm', closed_at FROM push_message"
AUDIT = "INSERT INTO audit (audit_id, at, verb, actor) SELECT message_id, closed_at, 'test', 'test' FROM push_message"
ATTEMPTS = """
INSERT INTO push_dlq_attempt (replay_key, attempt, kind, settled_at, outcome)
SELECT replay_key, n, 'live', now(), 'unavailable' FROM push_dlq, generate_series(1, 3) AS n"""
TABLES = (
    "push_subscription", "subscription_period", "sweep_run", "sweep_batch", "sweep_receipt", "push_message",
    "push_evidence", "push_answer", "audit", "push_dlq", "push_dlq_attempt",
)  # fmt: skip


def fill(pg: Conn) -> None:
    for table in TABLES:
        pg.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    add_live(pg, 20_000, state="'active'")
    add_live(pg, 5_000, state="'active'", last_seen_at=OLD)
    add_live(pg, 5_000, last_seen_at=OLD, registered_at=OLD, state_since=OLD)
    add_tombstones(pg, 12_000, deleted_at="now() - interval '120 days' + n * interval '6 minutes'")
    add_ended(pg, 8_000, deleted_at="now() - interval '8 days' + n * interval '1 minute'")
    for statement in (PERIODS, RUNS, BATCHES, RECEIPTS, MESSAGES, LEDGER, EVIDENCE, ANSWERS, AUDIT):
        pg.execute(statement, {})
    quarter = "n * interval '15 minutes'"
    park_letters(pg, 6_000, expires_at=f"now() + {quarter}")
    park_letters(pg, 6_000, expires_at=f"now() - {quarter}")
    park_letters(pg, 12_000, parked_at=f"now() - {quarter}", **CLOSED)
    pg.execute(ATTEMPTS, {})


@pytest.fixture(scope="module")
def plans(postgres_server: PostgresServer, template: str) -> Iterator[Plans]:
    """The plan of every statement of every sweep, by walk, without and with statistics."""
    url = postgres_server.create_database("plans", template)
    with psycopg.connect(url, autocommit=True, options="-c search_path=pushops") as pg:
        fill(pg)
        with opened(make_settings(url)) as rt:
            found = all_plans(rt, analyzed=False)
            pg.execute("ANALYZE")
            found |= all_plans(rt, analyzed=True)
    yield found
    postgres_server.query("DROP DATABASE plans WITH (FORCE)")


def all_plans(rt: Runtime, *, analyzed: bool) -> Plans:
    found: Plans = {}
    for sweep in BUILT_IN:
        run = open_run(rt, sweep)
        for walk in walks(sweep):
            with rt.db.transaction() as tx:
                named = statements(rt, tx, sweep, run, walk)
            for name, (query, params) in named.items():
                planner = sql.PLAN_PAGES if name == "page_ends" else sql.plan_for(walk)
                with rt.db.transaction(planner=planner) as tx:
                    found[sweep.name, walk, name, analyzed] = explain(tx, query, params)
    return found


def walks(sweep: Sweep) -> list[Walk]:
    return [Walk.INDEX, Walk.BLOCKS] if sweep.blocks else [Walk.INDEX]


def statements(rt: Runtime, tx: Tx, sweep: Sweep, run: RunRow, walk: Walk) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a batch in the middle of the walk and the dispatcher behind it would run."""
    values = run.cutoff_times | sql.floors(sweep) | {"rows": 2000, "page": 500}
    ends = tx.rows(sql.page_ends(sweep, has_cursor=False), values, PageEnd)
    lo, hi = (["(100,0)"], ["(150,0)"]) if walk is Walk.BLOCKS else (ends[0].hi, ends[1].hi)
    walked = RunRow(**(vars(run) | {"walk": walk.value}))
    batch = Shift(rt, sweep, walked, Held(), uuid4()).bind(BatchRow(uuid4(), 1, 1, lo, hi, None, 1, 0))
    params = dict(batch.params)
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "free": (sql.effect(sweep, sql.free_rows(batch.clause)), params),
        "lock": (sql.effect(sweep, sql.rows_that_lock(sweep, batch.clause)), params),
        "left": (sql.count_left(sweep, batch.clause), params),
        "middle": (sql.middle(sweep, walk, batch.clause), params),
    }
    if walk is Walk.INDEX:
        found["page_ends"] = (sql.page_ends(sweep, has_cursor=True), values | sql.bounds("cursor", lo))
    return found


def explain(tx: Tx, query: str, params: dict[str, Any]) -> str:
    cursor = tx.conn.cursor(row_factory=scalar_row)
    lines = cursor.execute(b"EXPLAIN " + render(query, tx.schema), params, prepare=False).fetchall()
    return "\n".join(lines)


CASES = [(sweep, walk, analyzed) for sweep in BUILT_IN for walk in walks(sweep) for analyzed in (False, True)]


@pytest.mark.parametrize(
    ("sweep", "walk", "analyzed"), CASES, ids=[f"{s.name}-{w}-{'fresh' if a else 'no'}-statistics" for s, w, a in CASES]
)
def test_no_statement_of_a_sweep_scans_its_table(sweep: Sweep, walk: Walk, analyzed: bool, plans: Plans) -> None:
    table = sweep.table.removeprefix("{schema}.")
    for name in ("free", "lock", "left", "middle", *(["page_ends"] if walk is Walk.INDEX else [])):
        plan = plans[sweep.name, walk, name, analyzed]
        assert f"Seq Scan on {table}" not in plan, f"{name}:\n{plan}"
        if walk is Walk.BLOCKS:
            assert f"Tid Range Scan on {table}" in plan, f"{name}:\n{plan}"
        elif name == "page_ends":
            assert f"using {sweep.index} on {table}" in plan, plan
            assert "Sort" not in plan[plan.index("WindowAgg") :], f"all that is left is read for a few pages:\n{plan}"
        else:
            assert sweep.index in plan, f"{name}:\n{plan}"
        if name == "lock":
            assert f"Tid Scan on {table}" in plan, f"{name}:\n{plan}"
