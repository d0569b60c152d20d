"""Importing rows that a test made, and the whole of what an import may change."""

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.rows import dict_row

from pushops.importing.service import import_subscriptions
from pushops.importing.sources import read_file
from pushops.importing.words import Imported, Refusal
from pushops.runtime import Runtime
from tests.rows import Pg

Row = Mapping[str, Any]


def bring(runtime: Runtime, rows: Iterable[Row], **options: Any) -> tuple[Imported, list[Refusal]]:
    """Import rows as JSON lines, in this process."""
    refusals: list[Refusal] = []
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    source = read_file(io.BytesIO(data), "jsonl", {})
    words = {"actor": "tests", "refuse": refusals.append, "processes": 1} | options
    return import_subscriptions(runtime, source, **words), refusals


def everything(pg: Pg) -> dict[str, list[dict[str, Any]]]:
    """All rows that belong to subscriptions, and who touched them."""
    found = {}
    for table, order in (("push_subscription", "id"), ("subscription_period", "period_id"), ("audit", "audit_id")):
        with pg.cursor(row_factory=dict_row) as cursor:
            found[table] = cursor.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()  # type: ignore[arg-type]
    found["audit"] = [row for row in found["audit"] if row["endpoint_hash"] is not None]
    return found


def staged(pg: Pg) -> int:
    """Tables and leases that imports left."""
    row = pg.execute(
        "SELECT (SELECT count(*) FROM pg_inherits WHERE inhparent = 'import_staging'::regclass)"
        " + (SELECT count(*) FROM pg_class WHERE relname LIKE 'import\\_staging\\_%' AND relkind = 'r')"
        " + (SELECT count(*) FROM subscription_import)"
    ).fetchone()
    return int(row[0]) if row else 0
