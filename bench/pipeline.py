"""(d) and (e): what goes through a broker and two worker processes, on the clock from dispatch to the last commit."""

import time
from typing import Any, Final
from uuid import UUID, uuid4

from bench.house import House, say, wait_for
from bench.timing import connected
from bench.workers import PROCESSES, Worker
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import Runtime, runtime
from pushops.settings import load_settings
from pushops.sweeps import service
from pushops.sweeps.dispatch import Bell, Order

LIMIT: Final = 600  # seconds until a run that does not end is an error
ORDER: Final = Order("bench", force=True)  # most of the table is meant: said openly, as an operator would
# Of workers and dispatcher alike: whoever cuts the pages decides how large they are.
UNPACED: Final[dict[str, int]] = {"sweep_pause_ms": 0, "sweep_budget_ms": 3_600_000}

_CLOSED: Final = "SELECT state FROM pushops.sweep_run WHERE run_id = %s AND closed_at IS NOT NULL"
_RECEIPTS: Final = "SELECT count(*), coalesce(sum(rows), 0) FROM public.bench_receipt"
# Every batch has its receipt, and receipts and daily counters agree with what is gone.
_BOOKS: Final = """
SELECT (SELECT count(*) FROM pushops.sweep_batch WHERE run_id = %(run)s),
       (SELECT count(*) FROM pushops.sweep_receipt WHERE run_id = %(run)s),
       (SELECT sum(rows_done) FROM pushops.sweep_receipt WHERE run_id = %(run)s),
       (SELECT sum(ended) FROM pushops.subscription_ended_daily)"""


def bell(rt: Runtime) -> Bell:
    from pushops import tasks  # noqa: PLC0415  (reads the broker's URL from the environment)

    return tasks.bell(rt)


def purge(house: House, worker: Worker) -> tuple[float, dict[str, Any]]:
    """(e) pushops: one dispatch, two warm worker processes; ends when the closing of the run is committed."""
    warm(worker)
    mark = worker.mark()
    with runtime(load_settings(**UNPACED)) as rt:
        ring = bell(rt)
        with rt.db.transaction():
            pass
        started = time.monotonic()
        found = service.dispatch(rt, PURGE_TOMBSTONES, ring, ORDER)
        dispatched = time.monotonic() - started
        assert found.run is not None
        run = found.run.run_id
        state = finish(house, run)
        seconds = time.monotonic() - started
    assert state == "done", f"expected the run to end done, got {state}"
    return seconds, _own(house, worker, mark, run, dispatched) | {"walk": found.run.walk}


def finish(house: House, run: UUID) -> str:
    """Wait until the closing of the run is committed; how it ended."""
    with connected(house) as conn:
        row = wait_for(lambda: conn.execute(_CLOSED, [run]).fetchone(), LIMIT, "the run to close", every=0.005)
    return str(row[0])


def finished(house: House, run: UUID, *, within: float) -> bool:
    """Whether the closing of the run is committed within so many seconds."""
    deadline = time.monotonic() + within
    with connected(house) as conn:
        while conn.execute(_CLOSED, [run]).fetchone() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
    return True


def _own(house: House, worker: Worker, mark: int, run: UUID, dispatched: float) -> dict[str, Any]:
    batches, receipts, rows = _books(house, run)
    tried = [each for each in worker.events(mark, "sweep.batch") if each["run"] == str(run)]
    took = [each["seconds"] for each in tried if each.get("outcome") in ("applied", "nothing_matched")]
    failed = [each["error"] for each in tried if each.get("error")]
    later = [each["seconds"] for each in worker.events(mark, "sweep.dispatched") if each["run"] == str(run)]
    assert len(took) == batches == receipts, f"expected a receipt per batch, got {batches=} {receipts=} {len(took)=}"
    if failed:
        say(f"{len(failed)} attempts failed and were made again: {sorted(set(failed))}")
    dispatching = dispatched + sum(later)
    return {"batch_seconds": took, "dispatch_seconds": dispatching, "rows": rows, "failed_attempts": len(failed)}


def _books(house: House, run: UUID) -> tuple[int, int, int]:
    with connected(house) as conn:
        row = conn.execute(_BOOKS, {"run": run}).fetchone()
    assert row is not None
    assert row[2] == row[3], f"expected the daily counters to hold {row[2]}, got {row[3]}"
    return int(row[0]), int(row[1]), int(row[2])


def warm(worker: Worker) -> None:
    """Both children have a connection to this clone: messages about a run that nobody knows make them open one."""
    from pushops import tasks  # noqa: PLC0415  (reads the broker's URL from the environment)

    def look() -> bool | None:
        for _ in range(4 * PROCESSES):
            tasks.sweep_batches.delay(str(uuid4()))
        return True if worker.connections("pushops") >= PROCESSES and not tasks.queue_depth("pushops") else None

    wait_for(look, 30, "both worker processes to connect", every=0.2)
    wait_for(lambda: True if tasks.queue_depth("pushops") == 0 else None, 10, "an empty queue")


def purge_by_ids(house: House, worker: Worker) -> tuple[float, dict[str, Any]]:
    """(d) 500 ids a message."""
    from bench import ids  # noqa: PLC0415  (reads the broker's URL from the environment)

    def look() -> bool | None:
        for _ in range(4 * PROCESSES):
            ids.warm.delay()
        return True if worker.connections("bench_ids") >= PROCESSES else None

    with connected(house) as conn:
        conn.execute(ids.RECEIPTS)
        wait_for(look, 30, "both worker processes to connect", every=0.2)
        conn.execute("CHECKPOINT")
        started = time.monotonic()
        sent = ids.send(conn)
        wait_for(lambda: _all_received(conn, sent), LIMIT, f"{sent} receipts")
        return time.monotonic() - started, {"messages": sent}


def _all_received(conn: Any, sent: int) -> bool | None:  # noqa: ANN401  (a psycopg connection)
    row = conn.execute(_RECEIPTS).fetchone()
    return True if row and row[0] == sent else None
