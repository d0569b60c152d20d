"""Ledger rows without a send: for tests of what becomes of them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from pushops.delivery.store import lanes, ledger
from pushops.delivery.store.ledger import Claimed
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX

Conn = psycopg.Connection[Any]
HOST = "fcm.googleapis.com"


def lane(pg: Conn, host: str = HOST, key: str = "test", service: str = "fcm") -> int:
    made = pg.execute(
        "INSERT INTO pushops.push_lane (push_service, host, vapid_key_id) VALUES (%s, %s, %s)"
        " ON CONFLICT (host, vapid_key_id) DO UPDATE SET host = EXCLUDED.host RETURNING lane_id",
        [service, host, key],
    ).fetchone()
    assert made is not None
    return int(made[0])


def message(pg: Conn, **columns: str) -> UUID:
    """A message that has begun to fan out; columns are SQL expressions."""
    values = {"ttl": "86400", "first_dispatched_at": "now()", "expires_at": "now() + interval '1 day'"} | columns
    made = pg.execute(
        f"INSERT INTO pushops.push_message ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        " RETURNING message_id"
    ).fetchone()
    assert made is not None
    return UUID(str(made[0]))


def age_freely(pg: Conn) -> None:
    """Let a test put an expiry into the past: the table says that it is fixed for ever."""
    pg.execute("ALTER TABLE pushops.push_message DISABLE TRIGGER push_message_expiry")


def queue(pg: Conn, message_id: UUID, ids: Sequence[UUID], lane_id: int, **columns: str) -> None:
    """Ledger rows of a message for subscriptions, due now; columns are SQL expressions."""
    values = {"priority": "1", "next_attempt_at": "now()", "expires_at": "now() + interval '1 day'"} | columns
    pg.execute(
        f"INSERT INTO pushops.push_dispatch (message_id, endpoint_hash, subscription_id, user_id, owner_no, lane_id,"
        f" {', '.join(values)}) SELECT %s, endpoint_hash, id, user_id, owner_no, %s, {', '.join(values.values())}"
        " FROM pushops.push_subscription WHERE id = ANY (%s)",
        [message_id, lane_id, list(ids)],
    )


def rows_of(pg: Conn, message_id: UUID) -> list[dict[str, Any]]:
    with pg.cursor(row_factory=dict_row) as cursor:
        query = "SELECT * FROM pushops.push_dispatch WHERE message_id = %s ORDER BY subscription_id"
        return cursor.execute(query, [message_id]).fetchall()


def claim(rt: Runtime, lane_ids: Sequence[int], *, limit: int = 100, token: UUID | None = None) -> list[Claimed]:
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        return ledger.claim(
            tx, lane_ids, token=token or uuid4(), lease=timedelta(minutes=1), limit=limit, horizon=tx.now
        )


def due_lanes(rt: Runtime) -> list[lanes.Lane]:
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        return lanes.due(tx)
