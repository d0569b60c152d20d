"""(d) Ids in messages: 500 to a message, with a receipt for each. The Celery app, and who sends."""

import os
import uuid
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from celery import Celery

from bench.timing import OVER

IDS: Final = 500

app = Celery("bench_ids", broker=os.environ.get("PUSHOPS_BROKER_URL"))
app.conf.update(
    task_default_queue="bench_ids",
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    task_serializer="json",
    broker_connection_retry_on_startup=True,
)

RECEIPTS: Final = """
CREATE TABLE public.bench_receipt (batch uuid PRIMARY KEY, rows integer NOT NULL, at timestamptz DEFAULT now())"""
RECEIPT: Final = "INSERT INTO public.bench_receipt (batch, rows) VALUES (%s, %s) ON CONFLICT DO NOTHING"
DELETE: Final = f"DELETE FROM pushops.push_subscription WHERE id = ANY (%s::uuid[]) AND {OVER}"
PAGES: Final = f"SELECT id::text FROM pushops.push_subscription WHERE {OVER} ORDER BY deleted_at, id"

_connections: dict[int, psycopg.Connection[Any]] = {}


@app.task(name="bench.delete_ids")  # type: ignore[untyped-decorator]
def delete_ids(batch: str, ids: list[str]) -> None:
    """Delete these rows and leave a receipt, in one transaction."""
    conn = _connection()
    with conn.transaction():
        rows = conn.execute(DELETE, [ids]).rowcount
        conn.execute(RECEIPT, [batch, rows])


@app.task(name="bench.warm")  # type: ignore[untyped-decorator]
def warm() -> None:
    """Connect, so that no connection is made on the clock."""
    _connection().execute("SELECT 1")


def send(conn: psycopg.Connection[Any]) -> int:
    """Publish all ids that are due, and say in how many messages."""
    sent = 0
    with app.producer_pool.acquire(block=True) as producer, conn.transaction(), conn.cursor("ids") as cursor:
        cursor.execute(PAGES)
        while page := cursor.fetchmany(IDS):
            delete_ids.apply_async([str(uuid.uuid4()), _texts(page)], producer=producer)
            sent += 1
    return sent


def _texts(page: Sequence[tuple[Any, ...]]) -> list[str]:
    return [row[0] for row in page]


def _connection() -> psycopg.Connection[Any]:
    """One connection per process, made again when the database under it was replaced."""
    found = _connections.get(os.getpid())
    if found is None or found.closed or not _alive(found):
        found = psycopg.connect(os.environ["PUSHOPS_DATABASE_URL"], autocommit=True, application_name="bench_ids")
        _connections[os.getpid()] = found
    return found


def _alive(conn: psycopg.Connection[Any]) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.Error:
        conn.close()
        return False
    return True
