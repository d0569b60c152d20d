"""The demo's own SQL: filling the table, the two ways to purge it, what its readers ask, and looking afterwards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.db.transaction import render

Written = tuple[object, ...]  # in the order of the columns of _COPY

_COPY: Final[LiteralString] = """
COPY {schema}.push_subscription
     (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, user_id, origin,
      state, previous_state, end_reason, created_at, registered_at, last_seen_at, revoked_at, deleted_at, scrubbed_at)
FROM STDIN"""
_ANALYZE: Final[LiteralString] = "ANALYZE {schema}.push_subscription"

# What one would write without pushops, and what works until the table has grown.
ONE_DELETE: Final[LiteralString] = """
DELETE FROM {schema}.push_subscription WHERE deleted_at < now() - interval '90 days'"""

# One index look-up of a campaign: the live subscriptions of a user.
READ: Final[LiteralString] = """
SELECT id, endpoint, p256dh, auth_sealed FROM {schema}.push_subscription
 WHERE user_id = %(user)s::text AND deleted_at IS NULL AND send_block IS NULL AND state IN ('pending', 'active')"""

BLOCKS: Final[LiteralString] = """
SELECT (pg_relation_size('{schema}.push_subscription') / current_setting('block_size')::int)::int"""

# A batch in hand, and the process that has it, as its claim wrote them down.
IN_HAND: Final[LiteralString] = """
SELECT batch_id, split_part(worker, ':', -1)::int AS pid FROM {schema}.sweep_batch
 WHERE run_id = %(run_id)s::uuid AND state = 'claimed' AND attempts = 1 ORDER BY seq"""

# A transaction that has purged something and waits for its worker's next word. Only batches write to the counters.
HELD_OPEN: Final[LiteralString] = """
SELECT a.pid FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid
 WHERE l.relation = '{schema}.subscription_ended_batch'::regclass AND l.mode = 'RowExclusiveLock'
   AND a.datname = current_database() AND a.state = 'idle in transaction'
   AND a.state_change < clock_timestamp() - interval '100 milliseconds'
   AND EXISTS (SELECT FROM {schema}.sweep_batch WHERE batch_id = %(batch_id)s::uuid AND state = 'claimed'
                AND attempts = 1)"""
CONNECTED: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %(pid)s::int)"""

FIRST_DONE: Final[LiteralString] = """
SELECT batch_id FROM {schema}.sweep_batch
 WHERE run_id = %(run_id)s::uuid AND state = 'done' ORDER BY seq LIMIT 1"""

ROWS: Final[LiteralString] = """
SELECT id, state, deleted_at IS NOT NULL AS deleted,
       num_nulls(endpoint, p256dh, auth_sealed, auth_key_version) = 0 AS sendable
  FROM {schema}.push_subscription"""

FOLDED: Final[LiteralString] = """
SELECT coalesce(sum(ended), 0)::bigint FROM {schema}.subscription_ended_daily"""

# ``settled``: batches that are done and have a receipt; ``open``: neither done nor cut in two.
RUNS: Final[LiteralString] = """
SELECT r.run_id, r.state, b.done, b.open, b.settled, c.receipts, c.rows
  FROM {schema}.sweep_run AS r,
       LATERAL (SELECT count(*) FILTER (WHERE state = 'done') AS done,
                       count(*) FILTER (WHERE state NOT IN ('done', 'split')) AS open,
                       count(t.batch_id) FILTER (WHERE state = 'done') AS settled
                  FROM {schema}.sweep_batch AS s LEFT JOIN {schema}.sweep_receipt AS t USING (batch_id)
                 WHERE s.run_id = r.run_id) AS b,
       LATERAL (SELECT count(*) AS receipts, coalesce(sum(rows_done), 0)::bigint AS rows
                  FROM {schema}.sweep_receipt WHERE run_id = r.run_id) AS c
 WHERE r.sweep = 'purge-tombstones' ORDER BY r.opened_at"""

ATTEMPTS: Final[LiteralString] = """
SELECT batch_id, state, attempts FROM {schema}.sweep_batch WHERE batch_id = ANY (%(ids)s::uuid[])"""


@dataclass(frozen=True)
class InHand:
    batch_id: UUID
    pid: int


@dataclass(frozen=True)
class Row:
    id: UUID
    state: str
    deleted: bool
    sendable: bool


@dataclass(frozen=True)
class Run:
    run_id: UUID
    state: str
    done: int
    open: int
    settled: int
    receipts: int
    rows: int


@dataclass(frozen=True)
class Attempts:
    batch_id: UUID
    state: str
    attempts: int


def copy_in(tx: Tx, rows: Iterable[Written]) -> None:
    with tx.conn.cursor() as cursor, cursor.copy(render(_COPY, tx.schema)) as copy:
        for row in rows:
            copy.write_row(row)


def analyze(tx: Tx) -> None:
    tx.run(_ANALYZE, {})


def one_delete(tx: Tx) -> int:
    return tx.run(ONE_DELETE, {})


def blocks(tx: Tx) -> int:
    return int(tx.scalar(BLOCKS, {}))


def in_hand(tx: Tx, run_id: UUID) -> InHand | None:
    return next(iter(tx.rows(IN_HAND, {"run_id": run_id}, InHand)), None)


def held_open(tx: Tx, batch_id: UUID) -> int | None:
    """The server process of a transaction that was left open, if the batch is still in hand."""
    found: int | None = tx.scalar(HELD_OPEN, {"batch_id": batch_id})
    return found


def connected(tx: Tx, pid: int) -> bool:
    return bool(tx.scalar(CONNECTED, {"pid": pid}))


def first_done(tx: Tx, run_id: UUID) -> UUID | None:
    found: UUID | None = tx.scalar(FIRST_DONE, {"run_id": run_id})
    return found


def rows(tx: Tx) -> list[Row]:
    return tx.rows(ROWS, {}, Row)


def folded(tx: Tx) -> int:
    return int(tx.scalar(FOLDED, {}))


def runs(tx: Tx) -> list[Run]:
    return tx.rows(RUNS, {}, Run)


def attempts(tx: Tx, ids: Sequence[UUID]) -> list[Attempts]:
    return tx.rows(ATTEMPTS, {"ids": list(ids)}, Attempts)
