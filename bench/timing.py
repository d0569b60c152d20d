"""One contender's run: how long, how much WAL, and whether exactly the right rows are left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg

from bench.house import House
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.sweeps import sql

RETENTION: Final = "90 days"

# The sweep's own predicate with its cut-off: all contenders delete the same rows.
OVER: Final = sql.literal(
    PURGE_TOMBSTONES.predicate.replace("%(cutoff)s::timestamptz", f"now() - '{RETENTION}'::interval").replace(
        "{schema}.", ""
    )
)

_COUNT: Final[LiteralString] = f"""
SELECT count(*) AS rows, count(*) FILTER (WHERE {OVER}) AS over FROM pushops.push_subscription"""
_WAL: Final[LiteralString] = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"


@dataclass(frozen=True)
class Timed:
    """Rows deleted per second, WAL bytes per row, and what only one contender can tell of itself."""

    rows: int
    seconds: float
    wal_bytes: float
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def wal_per_row(self) -> float:
        return self.wal_bytes / self.rows


def timed(house: House, run: Callable[[], tuple[float, dict[str, Any]]]) -> Timed:
    """Let a contender work on the clone; ``run`` gives its own seconds. AssertionError unless it did it all."""
    before, over = _counted(house)
    with house.admin() as conn:
        conn.execute("CHECKPOINT")
    wal = _wal(house)
    seconds, own = run()
    wal = _wal(house) - wal
    after, left = _counted(house)
    assert left == 0, f"expected no row past its retention, got {left}"
    assert before - after == over, f"expected {over} rows fewer, got {before - after}"
    return Timed(over, seconds, wal, own)


def connected(house: House) -> psycopg.Connection[Any]:
    return psycopg.connect(house.url, autocommit=True)


def clock(work: Callable[[], object]) -> float:
    """Seconds that it took."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _counted(house: House) -> tuple[int, int]:
    with connected(house) as conn:
        row = conn.execute(_COUNT).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _wal(house: House) -> float:
    with connected(house) as conn:
        row = conn.execute(_WAL).fetchone()
    assert row is not None
    return float(row[0])
