"""What past runs and the quarantine say about the next run; for operators who look before they sweep."""

from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

# The last five runs that ended well and did anything, by their own receipts: rows over the time from the first to
# the last. A run of one batch took its batch's own seconds.
PACE: Final[LiteralString] = """
SELECT (sum(done.rows) / nullif(sum(done.seconds), 0))::float8
  FROM (SELECT run_id FROM {schema}.sweep_run
         WHERE sweep = %(sweep)s::text AND state = 'done' ORDER BY opened_at DESC LIMIT 5) AS recent
  JOIN LATERAL (SELECT sum(r.rows_done) AS rows,
                       greatest(extract(epoch FROM max(r.applied_at) - min(r.applied_at)), max(r.seconds)) AS seconds
                  FROM {schema}.sweep_receipt AS r WHERE r.run_id = recent.run_id) AS done ON done.rows > 0"""

# Keys that stand alone, and whole pages.
HELD_COUNT: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.sweep_quarantine WHERE sweep = %(sweep)s::text AND released_at IS NULL"""

# Two are enough to know that a prefix is not unique.
RUNS_LIKE: Final[LiteralString] = """
SELECT run_id FROM {schema}.sweep_run WHERE starts_with(run_id::text, %(prefix)s::text) LIMIT 2"""

QUARANTINE_LIKE: Final[LiteralString] = """
SELECT quarantine_id FROM {schema}.sweep_quarantine
 WHERE sweep = %(sweep)s::text AND starts_with(quarantine_id::text, %(prefix)s::text) LIMIT 2"""

READ_ONLY: Final[LiteralString] = "SELECT set_config('transaction_read_only', 'on', true)"


@dataclass(frozen=True)
class FirstKey:
    """The first column of the walk's key, as text, and the row's identity."""

    key: str
    identity: str


def pace(tx: Tx, sweep: str) -> float | None:
    """Rows per second, None where nothing ran yet."""
    found: float | None = tx.scalar(PACE, {"sweep": sweep})
    return found


def held_count(tx: Tx, sweep: str) -> int:
    return int(tx.scalar(HELD_COUNT, {"sweep": sweep}))


def runs_like(tx: Tx, prefix: str) -> list[UUID]:
    return tx.scalars(RUNS_LIKE, {"prefix": prefix})


def quarantine_like(tx: Tx, sweep: str, prefix: str) -> list[UUID]:
    return tx.scalars(QUARANTINE_LIKE, {"sweep": sweep, "prefix": prefix})


def read_only(tx: Tx) -> None:
    """From here on this transaction can change nothing, whatever is run in it."""
    tx.run(READ_ONLY, {})
