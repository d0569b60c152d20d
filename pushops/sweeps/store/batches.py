"""Batches and their receipts: written, claimed, settled, counted."""

from datetime import timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.store.rows import BatchRow, NewBatch, Progress, Ready

# The pages of a step; the id is derived from run, cut-off and bounds, so that writing them again changes nothing.
ADD_BATCHES: Final[LiteralString] = """
INSERT INTO {schema}.sweep_batch (batch_id, run_id, seq, visit, lo, hi, expected, failures)
SELECT b.batch_id, %(run_id)s::uuid, %(seq)s::int + b.n::int, %(visit)s::smallint,
       (SELECT array_agg(v) FROM jsonb_array_elements_text(nullif(b.lo, 'null'::jsonb)) AS v),
       (SELECT array_agg(v) FROM jsonb_array_elements_text(b.hi) AS v), b.expected, %(failures)s::int
  FROM ROWS FROM (jsonb_to_recordset(%(batches)s::jsonb)
       AS (batch_id uuid, lo jsonb, hi jsonb, expected int)) WITH ORDINALITY AS b (batch_id, lo, hi, expected, n)
ON CONFLICT (batch_id) DO NOTHING"""


def add_batches(tx: Tx, run_id: UUID, seq: int, batches: str, *, visit: int = 1, failures: int = 0) -> int:
    values = {"run_id": run_id, "seq": seq, "batches": batches, "visit": visit, "failures": failures}
    return tx.run(ADD_BATCHES, values)


# The attempt is counted and committed before the work: a batch that kills its worker is known by it. Renews the
# holder's slot in the same breath; whoever lost the slot claims nothing. Three claims that were neither settled
# nor failed mean a killer: it is left for the quarantine.
CLAIM: Final[LiteralString] = """
WITH held AS (
  UPDATE {schema}.sweep_slot SET free_at = clock_timestamp() + %(lease)s::interval
   WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder = %(holder)s::uuid AND free_at > clock_timestamp()
  RETURNING slot),
ready AS MATERIALIZED (
  SELECT batch_id FROM {schema}.sweep_batch
   WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')
     AND (state = 'due' OR claimed_until < clock_timestamp()) AND due_at <= clock_timestamp()
     AND attempts - failures < %(deaths)s::int
     AND (%(ids)s::uuid[] IS NULL OR batch_id = ANY (%(ids)s::uuid[]))
     AND EXISTS (SELECT FROM held)
     AND EXISTS (SELECT FROM {schema}.sweep_run WHERE run_id = %(run_id)s::uuid AND state = 'running')
   ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.sweep_batch AS b
   SET state = 'claimed', attempts = attempts + 1, claim_token = %(token)s::uuid, worker = %(worker)s::text,
       claimed_until = clock_timestamp() + %(lease)s::interval
  FROM ready WHERE b.batch_id = ready.batch_id
RETURNING b.batch_id, b.seq, b.visit, b.lo, b.hi, b.expected, b.attempts, b.failures"""


def claim(tx: Tx, values: dict[str, Any]) -> BatchRow | None:
    return tx.maybe(CLAIM, values, BatchRow)


# Effect and receipt in one transaction: no row back means that another owns the batch, and the effect goes too.
SETTLE: Final[LiteralString] = """
WITH done AS (
  UPDATE {schema}.sweep_batch
     SET state = 'done', claim_token = NULL, claimed_until = NULL, finished_at = clock_timestamp()
   WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid
  RETURNING batch_id, run_id, rows_before)
INSERT INTO {schema}.sweep_receipt (batch_id, run_id, rows_done, rows_locked, seconds, worker, detail)
SELECT batch_id, run_id, rows_before + %(rows_done)s::int, %(rows_locked)s::int,
       extract(epoch FROM clock_timestamp() - %(began)s::timestamptz), %(worker)s::text, %(detail)s::jsonb FROM done
RETURNING seconds"""


# Not a death: the worker lived to say why. Comes back after a pause that grows.
FAIL: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = 'due', claim_token = NULL, claimed_until = NULL, failures = failures + 1,
       last_error = %(error)s::text, due_at = clock_timestamp() + %(wait)s::interval
 WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid"""


# Neither a failure nor a death: an act did some of its rows and comes back for the others.
PUT_BACK: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = 'due', claim_token = NULL, claimed_until = NULL, attempts = attempts - 1,
       rows_before = rows_before + %(rows)s::int, due_at = clock_timestamp() + %(wait)s::interval
 WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid"""


SET_APART: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = %(state)s::text, claim_token = NULL, claimed_until = NULL, failures = failures + 1,
       last_error = %(error)s::text, finished_at = clock_timestamp()
 WHERE batch_id = %(batch_id)s::uuid AND claim_token = %(token)s::uuid"""


def settle(tx: Tx, values: dict[str, Any]) -> float | None:
    found: float | None = tx.scalar(SETTLE, values)
    return found


def fail(tx: Tx, batch_id: UUID, token: UUID, error: str, wait: timedelta) -> bool:
    return tx.run(FAIL, {"batch_id": batch_id, "token": token, "error": error, "wait": wait}) == 1


def put_back(tx: Tx, batch_id: UUID, token: UUID, rows: int, wait: timedelta) -> bool:
    return tx.run(PUT_BACK, {"batch_id": batch_id, "token": token, "rows": rows, "wait": wait}) == 1


def set_apart(tx: Tx, batch_id: UUID, token: UUID, state: str, error: str) -> bool:
    return tx.run(SET_APART, {"batch_id": batch_id, "token": token, "state": state, "error": error}) == 1


# What a worker that found nothing must know: is there more now, more later, or somebody still at it?
READY: Final[LiteralString] = """
SELECT count(*) FILTER (WHERE state = 'due' AND due_at <= clock_timestamp() OR claimed_until < clock_timestamp())::int
         AS due,
       count(*) FILTER (WHERE state = 'due' AND due_at > clock_timestamp())::int AS later,
       count(*) FILTER (WHERE claimed_until >= clock_timestamp())::int AS claimed,
       min(due_at) FILTER (WHERE state = 'due' AND due_at > clock_timestamp()) AS next_due_at
  FROM {schema}.sweep_batch WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')"""


APPLIED: Final[LiteralString] = """
SELECT batch_id FROM {schema}.sweep_receipt WHERE batch_id = ANY (%(ids)s::uuid[])"""


# Counters come from the receipts: what is not committed with its effect is not counted. A receipt says all that its
# batch did; what batches without one did before they were put back is counted from them.
PROGRESS: Final[LiteralString] = """
SELECT coalesce(r.rows_done, 0) + u.rows AS rows_done, coalesce(r.rows_locked, 0) AS rows_locked,
       coalesce(r.done, 0) AS done, b.due, b.claimed, q.quarantined, coalesce(r.seconds, 0) AS seconds
  FROM (SELECT sum(rows_done)::bigint AS rows_done, sum(rows_locked)::bigint AS rows_locked, count(*) AS done,
               extract(epoch FROM max(applied_at) - min(applied_at))::float8 AS seconds
          FROM {schema}.sweep_receipt WHERE run_id = %(run_id)s::uuid) AS r,
       (SELECT count(*) FILTER (WHERE state = 'due') AS due, count(*) FILTER (WHERE state = 'claimed') AS claimed
          FROM {schema}.sweep_batch WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed')) AS b,
       (SELECT coalesce(sum(rows_before) FILTER (WHERE state <> 'done'), 0)::bigint AS rows
          FROM {schema}.sweep_batch WHERE run_id = %(run_id)s::uuid) AS u,
       (SELECT count(*) AS quarantined FROM {schema}.sweep_quarantine WHERE run_id = %(run_id)s::uuid) AS q"""


def ready(tx: Tx, run_id: UUID) -> Ready:
    return tx.one(READY, {"run_id": run_id}, Ready)


def applied(tx: Tx, ids: list[UUID]) -> set[UUID]:
    return set(tx.scalars(APPLIED, {"ids": ids}))


def progress(tx: Tx, run_id: UUID) -> Progress:
    return tx.one(PROGRESS, {"run_id": run_id}, Progress)


# Pages that had rows locked by somebody else, and were not looked at again yet.
LOCKED_PAGES: Final[LiteralString] = """
SELECT b.batch_id, b.lo, b.hi, r.rows_locked AS expected
  FROM {schema}.sweep_batch AS b JOIN {schema}.sweep_receipt AS r USING (batch_id)
 WHERE b.run_id = %(run_id)s::uuid AND b.visit = 1 AND r.rows_locked > 0 ORDER BY b.seq"""


# In hand with its lease run out is nobody's; in hand otherwise is left to its worker, unless that is meant too.
CANCEL_BATCHES: Final[LiteralString] = """
UPDATE {schema}.sweep_batch
   SET state = 'cancelled', claim_token = NULL, claimed_until = NULL, finished_at = clock_timestamp()
 WHERE run_id = %(run_id)s::uuid AND (state = 'due' OR state = 'claimed'
   AND (%(in_hand)s::boolean OR claimed_until < clock_timestamp()))"""


def locked_pages(tx: Tx, run_id: UUID) -> list[NewBatch]:
    return tx.rows(LOCKED_PAGES, {"run_id": run_id}, NewBatch)


def cancel_batches(tx: Tx, run_id: UUID, *, in_hand: bool = False) -> int:
    return tx.run(CANCEL_BATCHES, {"run_id": run_id, "in_hand": in_hand})
