"""What an operator decided about a sweep, and what its batches taught it."""

from typing import Final, LiteralString

from pushops.db import Tx
from pushops.sweeps.store.rows import ControlRow

# The sweep's row; the windows of the very first run are taken as known, a shorter one later is not.
ENSURE_CONTROL: Final[LiteralString] = """
INSERT INTO {schema}.sweep_control (sweep, acknowledged) VALUES (%(sweep)s::text, %(windows)s::jsonb)
ON CONFLICT (sweep) DO NOTHING"""


ENSURE_SLOTS: Final[LiteralString] = """
INSERT INTO {schema}.sweep_slot (sweep, slot)
SELECT %(sweep)s::text, n FROM generate_series(0, %(slots)s::int - 1) AS n
ON CONFLICT (sweep, slot) DO NOTHING"""


CONTROL: Final[LiteralString] = """
SELECT sweep, paused_at, paused_by, paused_why, acknowledged, batch_rows, dispatched_at, succeeded_at
  FROM {schema}.sweep_control WHERE sweep = %(sweep)s::text"""


def ensure_control(tx: Tx, sweep: str, windows: str, slots: int) -> None:
    tx.run(ENSURE_CONTROL, {"sweep": sweep, "windows": windows})
    tx.run(ENSURE_SLOTS, {"sweep": sweep, "slots": slots})


def control(tx: Tx, sweep: str) -> ControlRow | None:
    return tx.maybe(CONTROL, {"sweep": sweep}, ControlRow)


NOTE_SUCCESS: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET succeeded_at = now() WHERE sweep = %(sweep)s::text"""


def note_success(tx: Tx, sweep: str) -> None:
    tx.run(NOTE_SUCCESS, {"sweep": sweep})


PAUSE_SWEEP: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET paused_at = now(), paused_by = %(actor)s::text, paused_why = %(why)s::text
 WHERE sweep = %(sweep)s::text"""


RESUME_SWEEP: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET paused_at = NULL, paused_by = NULL, paused_why = NULL
 WHERE sweep = %(sweep)s::text AND paused_at IS NOT NULL"""


ACKNOWLEDGE: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET acknowledged = %(windows)s::jsonb WHERE sweep = %(sweep)s::text"""


NOTE_DISPATCH: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET dispatched_at = now() WHERE sweep = %(sweep)s::text"""


# Only batches of the size that is in force say anything about it.
ADAPT: Final[LiteralString] = """
UPDATE {schema}.sweep_control SET batch_rows = %(target)s::int
 WHERE sweep = %(sweep)s::text AND coalesce(batch_rows, %(default)s::int) = %(size)s::int"""


def pause_sweep(tx: Tx, sweep: str, actor: str, why: str) -> None:
    tx.run(PAUSE_SWEEP, {"sweep": sweep, "actor": actor, "why": why})


def resume_sweep(tx: Tx, sweep: str) -> bool:
    return tx.run(RESUME_SWEEP, {"sweep": sweep}) == 1


def acknowledge(tx: Tx, sweep: str, windows: str) -> None:
    tx.run(ACKNOWLEDGE, {"sweep": sweep, "windows": windows})


def note_dispatch(tx: Tx, sweep: str) -> None:
    tx.run(NOTE_DISPATCH, {"sweep": sweep})


def adapt(tx: Tx, sweep: str, size: int, target: int, default: int) -> None:
    tx.run(ADAPT, {"sweep": sweep, "size": size, "target": target, "default": default})
