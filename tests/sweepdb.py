"""What tests of the sweep engine share on the database's side: rows, runs brought to their end, what they left."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from time import monotonic
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.sweeps import runs, store
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.store import RunRow
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import work
from tests.sweeping import wait_until

Conn = psycopg.Connection[Any]
PATIENCE: Final = 30.0  # seconds; nothing waits this long unless it is broken
LONG_SHIFT: Final = timedelta(seconds=20)
P256DH: Final = "p" * 87
_numbers = itertools.count(1)

# Rows of every kind are made from live ones by overriding columns; values are SQL, ``n`` counts from 1.
_LIVE: Final = {
    "endpoint_hash": "sha256(convert_to(%(batch)s::text || ':' || n, 'UTF8'))",
    "endpoint": "'https://push.example/' || n",
    "push_service": "'test'",
    "p256dh": f"'{P256DH}'",
    "auth_sealed": r"'\x01'::bytea",
    "auth_key_version": "1",
}
_ENDED: Final = _LIVE | {
    "state": "'revoked'",
    "end_reason": "'gone'",
    "revoked_at": "now() - interval '100 days'",
    "deleted_at": "now() - interval '100 days' + n * interval '1 millisecond'",
}
_SCRUBBED: Final = _ENDED | {
    "endpoint": "NULL",
    "p256dh": "NULL",
    "auth_sealed": "NULL",
    "auth_key_version": "NULL",
    "scrubbed_at": "now() - interval '97 days'",
}


def add_live(pg: Conn, count: int, **columns: str) -> list[UUID]:
    """Insert rows that nothing is due for; ``columns`` are SQL expressions in which ``n`` counts from 1."""
    return _add(pg, count, _LIVE | columns)


def add_tombstones(pg: Conn, count: int, **columns: str) -> list[UUID]:
    """Insert rows that ended 100 days ago and were scrubbed since: due for the purge."""
    return _add(pg, count, _SCRUBBED | columns)


def add_ended(pg: Conn, count: int, **columns: str) -> list[UUID]:
    """Insert rows that ended 100 days ago and still have their credentials: due for the scrub and for the purge."""
    return _add(pg, count, _ENDED | columns)


def _add(pg: Conn, count: int, columns: Mapping[str, str]) -> list[UUID]:
    query = (
        f"INSERT INTO push_subscription ({', '.join(columns)})"
        f" SELECT {', '.join(columns.values())} FROM generate_series(1, %(count)s::int) AS n RETURNING id"
    )
    found = pg.execute(query.encode(), {"batch": next(_numbers), "count": count}).fetchall()
    return [row[0] for row in found]


def copy_rows(pg: Conn, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows given as values, all with the same columns."""
    names = list(rows[0])
    head = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with pg.cursor().copy(head) as copy:
        for row in rows:
            copy.write_row([row[name] for name in names])


def new_hash() -> bytes:
    return sha256(f"row {next(_numbers)}".encode()).digest()


@contextmanager
def opened(settings: Settings, recorded: list[Any] | None = None, **changes: Any) -> Iterator[Runtime]:
    """A runtime without pauses and without the share brake; ``changes`` are not validated, so that tests may overdo."""
    fast = {"sweep_pause_ms": 0, "sweep_max_share": 1.0, "sweep_walk": "index", "pool_size": 8} | changes
    sinks = () if recorded is None else (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    rt = open_runtime(settings.model_copy(update=fast), sinks=sinks)
    try:
        yield rt
    finally:
        rt.close()


def open_run(rt: Runtime, sweep: Sweep, order: Order | None = None) -> RunRow:
    """Open the sweep's run and write no page of it."""
    run, _ = runs.open_or_join(rt, sweep, order or Order(started_by="test"))
    return run


def drive(
    rt: Runtime,
    sweep: Sweep,
    order: Order | None = None,
    *,
    catalog: Mapping[str, Sweep] = SWEEPS,
    until: Callable[[RunRow], bool] | None = None,
) -> RunRow:
    """Dispatch and work in this thread until the run is closed (or ``until`` says so), ageing back-offs away."""
    deadline = monotonic() + PATIENCE
    run_id: UUID | None = None
    while monotonic() < deadline:
        found = dispatch(rt, sweep, None, order or Order(started_by="test"))
        run_id = run_id or (found.run.run_id if found.run else None)
        assert run_id is not None
        if found.run is not None and found.run.run_id == run_id and found.run.closed_at is None:
            work(rt, catalog, run_id, shift=LONG_SHIFT)
        run = run_of(rt, run_id)
        if run.closed_at is not None or (until is not None and until(run)):
            return run
        skip_back_offs(rt)
    raise TimeoutError(f"expected the run of {sweep.name} to end, got {run_of(rt, run_id) if run_id else None}")


def run_of(rt: Runtime, run_id: UUID) -> RunRow:
    with rt.db.transaction() as tx:
        run = store.run(tx, run_id)
    assert run is not None
    return run


def skip_back_offs(rt: Runtime) -> None:
    """Age the batches, not the clock."""
    with rt.db.transaction() as tx:
        tx.run("UPDATE {schema}.sweep_batch SET due_at = now() - interval '1 s' WHERE state = 'due'", {})


def receipts(pg: Conn, run_id: UUID) -> tuple[int, int]:
    """Rows done and rows locked of a run; fails unless exactly its done batches have exactly one receipt each."""
    done, with_receipt, receipts_, rows, locked = one(
        pg,
        """SELECT count(*) FILTER (WHERE b.state = 'done'),
                  count(*) FILTER (WHERE b.state = 'done' AND r.batch_id IS NOT NULL),
                  count(r.batch_id), coalesce(sum(r.rows_done), 0)::int, coalesce(sum(r.rows_locked), 0)::int
             FROM sweep_batch AS b FULL JOIN sweep_receipt AS r USING (batch_id)
            WHERE coalesce(b.run_id, r.run_id) = %(run)s::uuid""",
        run=run_id,
    )
    assert done == with_receipt == receipts_, "expected one receipt for each done batch, and no other"
    return rows, locked


def batch_states(pg: Conn, run_id: UUID) -> dict[str, int]:
    query = b"SELECT state, count(*)::int FROM sweep_batch WHERE run_id = %s GROUP BY state"
    return dict(pg.execute(query, [run_id]).fetchall())


def ids(pg: Conn, table: str = "push_subscription", key: str = "id") -> set[UUID]:
    query = sql.SQL("SELECT {} FROM {}").format(sql.Identifier(key), sql.Identifier(table))
    return {row[0] for row in pg.execute(query)}


def one(pg: Conn, query: str, **params: Any) -> tuple[Any, ...]:
    row = pg.execute(query.encode(), params).fetchone()
    assert row is not None
    return tuple(row)


def scalar(pg: Conn, query: str, **params: Any) -> Any:
    return one(pg, query, **params)[0]


def wait_blocked(pg: Conn, pid: int) -> None:
    """Wait until the backend waits for a lock of somebody else."""
    query = "SELECT cardinality(pg_blocking_pids(%(pid)s::int)) > 0"
    wait_until(lambda: scalar(pg, query, pid=pid), expected=f"backend {pid} to be blocked")


# A batch that stops where a test wants it: the first transaction that fires the trigger waits until the gate is open.
_GATE: Final = """
CREATE TABLE IF NOT EXISTS gate (open boolean NOT NULL);
INSERT INTO gate VALUES (false);
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_try_advisory_xact_lock(4711) THEN
    WHILE NOT (SELECT open FROM pushops.gate) LOOP PERFORM pg_sleep(0.005); END LOOP;
  END IF;
  RETURN NULL;
END $$;
"""


def close_gate(pg: Conn, event: str = "AFTER DELETE", table: str = "push_subscription") -> None:
    """Let the first transaction with such a statement wait in its middle until ``open_gate``; others pass by it."""
    pg.execute(_GATE)
    pg.execute(f"CREATE TRIGGER gate {event} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION wait_at_gate()".encode())


def open_gate(pg: Conn) -> None:
    pg.execute("UPDATE gate SET open = true")


def wait_at_gate(pg: Conn) -> None:
    """Wait until a transaction stands at the gate."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    wait_until(lambda: scalar(pg, query), expected="a transaction at the gate")


# The upsert of a registration, reduced to what a sweep can collide with.
_REGISTER: Final = """
INSERT INTO push_subscription AS s (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version)
SELECT h, 'https://push.example/again', 'test', repeat('q', 87), '\\x02', 1
  FROM unnest(%(hashes)s::bytea[]) AS h ORDER BY h
ON CONFLICT (endpoint_hash) DO UPDATE
   SET endpoint = EXCLUDED.endpoint, p256dh = EXCLUDED.p256dh, auth_sealed = EXCLUDED.auth_sealed, auth_key_version = 1,
       state = 'pending', registration_no = s.registration_no + 1, registered_at = now(), last_seen_at = now(),
       revoked_at = NULL, deleted_at = NULL, scrubbed_at = NULL, end_reason = NULL, end_run_id = NULL"""


def register(conn: Conn, *hashes: bytes) -> None:
    """Register endpoints anew in the connection's transaction."""
    conn.execute(_REGISTER, {"hashes": list(hashes)})


def hash_of(pg: Conn, row_id: UUID) -> bytes:
    found: bytes = scalar(pg, "SELECT endpoint_hash FROM push_subscription WHERE id = %(id)s", id=row_id)
    return found


@contextmanager
def in_background(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run a call beside the block; what it returned or raised is in the future, which is awaited at the end."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        yield future
        future.result(PATIENCE)


def make_role(pg: Conn, name: str) -> None:
    """A role that may do what a worker does and sees no other role's activity."""
    pg.execute(f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$".encode())
    pg.execute(f"GRANT USAGE ON SCHEMA pushops TO {name}".encode())
    pg.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pushops TO {name}".encode())


def settings_for(settings: Settings, role: str) -> Settings:
    """The same settings, as another role."""
    assert settings.database_url is not None
    url = make_conninfo(settings.database_url.get_secret_value(), user=role)
    return settings.model_copy(update={"database_url": SecretStr(url)})
