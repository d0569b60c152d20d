"""Slots: at most so many shifts of a sweep at once."""

from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

# A slot that nobody holds, or whose holder's lease ran out. SKIP LOCKED: two takers never wait for each other.
TAKE_SLOT: Final[LiteralString] = """
WITH free AS MATERIALIZED (
  SELECT sweep, slot FROM {schema}.sweep_slot
   WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND free_at <= clock_timestamp()
   ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.sweep_slot AS s SET holder = %(holder)s::uuid, free_at = clock_timestamp() + %(lease)s::interval
  FROM free WHERE s.sweep = free.sweep AND s.slot = free.slot
RETURNING s.slot"""


# Seconds until a slot that is only resting (between two batches) is free; no row where all are at work.
REST: Final[LiteralString] = """
SELECT extract(epoch FROM greatest(min(free_at), clock_timestamp()) - clock_timestamp())::float8
  FROM {schema}.sweep_slot
 WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder IS NULL
HAVING count(*) > 0"""


FREE_SLOT: Final[LiteralString] = """
UPDATE {schema}.sweep_slot SET holder = NULL, free_at = clock_timestamp() + %(pause)s::interval
 WHERE sweep = %(sweep)s::text AND holder = %(holder)s::uuid"""


WORKING_SLOTS: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.sweep_slot
 WHERE sweep = %(sweep)s::text AND slot < %(slots)s::int AND holder IS NOT NULL AND free_at > clock_timestamp()"""


def take_slot(tx: Tx, sweep: str, slots: int, holder: UUID, lease: timedelta) -> int | None:
    values = {"sweep": sweep, "slots": slots, "holder": holder, "lease": lease}
    found: int | None = tx.scalar(TAKE_SLOT, values)
    return found


def rest(tx: Tx, sweep: str, slots: int) -> float | None:
    found: float | None = tx.scalar(REST, {"sweep": sweep, "slots": slots})
    return found


def free_slot(tx: Tx, sweep: str, holder: UUID, pause: timedelta) -> None:
    tx.run(FREE_SLOT, {"sweep": sweep, "holder": holder, "pause": pause})


def working_slots(tx: Tx, sweep: str, slots: int) -> int:
    return int(tx.scalar(WORKING_SLOTS, {"sweep": sweep, "slots": slots}))
