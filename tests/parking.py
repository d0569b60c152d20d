"""Rows that are claimed, answered and settled without a push service, for tests of what they leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg.rows import dict_row

from pushops.delivery import settling
from pushops.delivery.answer import Answer
from pushops.delivery.classify import Table, load_table
from pushops.delivery.preparing import Outgoing
from pushops.delivery.settling import Settled
from pushops.delivery.store import ledger as store
from pushops.runtime import Runtime
from tests import ledger as made
from tests.ledger import Conn
from tests.sweepdb import add_live


@dataclass(frozen=True)
class Row:
    """A recipient in the ledger."""

    message_id: UUID
    subscription_id: UUID
    service: str
    lane: int


def recipient(pg: Conn, service: str = "fcm", host: str = made.HOST, message: Any = None, **columns: str) -> Row:
    """One that is due; ``message``: SQL expressions of its message's columns, ``columns``: of its own."""
    message_id = made.message(pg, **(message or {}))
    lane = made.lane(pg, host=host, service=service)
    (one,) = add_live(
        pg,
        1,
        push_service=f"'{service}'",
        vapid_key_id="'test'",
        endpoint=f"'https://{host}/push/' || gen_random_uuid()",
    )
    made.queue(pg, message_id, [one], lane, **columns)
    return Row(message_id, one, service, lane)


def answer(rt: Runtime, rows: Sequence[Row], answers: Sequence[Answer], table: Table | None = None) -> Settled:
    """Claim rows of one push service and settle what came back, as a sender does."""
    token = uuid4()
    claimed = {row.message_id: row for row in made.claim(rt, sorted({row.lane for row in rows}), token=token)}
    wanted = {row.message_id for row in rows}
    with rt.db.transaction() as tx:
        now: datetime = tx.now
        store.release(tx, token, [row for row in claimed.values() if row.message_id not in wanted])
    attempts = [
        settling.judge(table or load_table(), Outgoing(claimed[row.message_id], b"hello", now, 0.0), what)
        for row, what in zip(rows, answers, strict=True)
    ]
    return settling.settle(rt, rows[0].service, token, attempts)


def due(pg: Conn) -> None:
    """What waits is due now."""
    pg.execute("UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE state = 'due'")


def letters(pg: Conn) -> list[dict[str, Any]]:
    """Every letter, the oldest first."""
    with pg.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("SELECT * FROM pushops.push_dlq ORDER BY dlq_id").fetchall()


def letter_of(pg: Conn, row: Row) -> dict[str, Any] | None:
    found = [one for one in letters(pg) if one["message_id"] == row.message_id]
    assert len(found) <= 1
    return found[0] if found else None


def attempts_of(pg: Conn, row: Row) -> list[dict[str, Any]]:
    """A letter's attempts by number."""
    query = "SELECT * FROM pushops.push_dlq_attempt WHERE replay_key = pushops.replay_key(%s, %s) ORDER BY attempt"
    with pg.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, [row.message_id, row.subscription_id]).fetchall()


def unparked(pg: Conn) -> int:
    found = pg.execute("SELECT count(*) FROM pushops.push_unparked").fetchone()
    assert found is not None
    return int(found[0])


def outcome(pg: Conn, row: Row) -> str | None:
    (found,) = made.rows_of(pg, row.message_id)
    end: str | None = found["outcome"]
    return end
