"""Keys and pages that are left alone until somebody releases them."""

from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.sql import HeldPage
from pushops.sweeps.store.rows import Quarantined

QUARANTINE: Final[LiteralString] = """
INSERT INTO {schema}.sweep_quarantine (sweep, run_id, batch_id, identity, walk, lo, hi, error)
SELECT %(sweep)s::text, run_id, batch_id, %(identity)s::text, %(walk)s::text, lo, hi, %(error)s::text
  FROM {schema}.sweep_batch WHERE batch_id = %(batch_id)s::uuid"""


# Batches that took three workers with them, named and set apart in one statement.
QUARANTINE_KILLERS: Final[LiteralString] = """
WITH killer AS (
  UPDATE {schema}.sweep_batch
     SET state = 'quarantined', claim_token = NULL, claimed_until = NULL, last_error = 'worker_lost',
         finished_at = clock_timestamp()
   WHERE run_id = %(run_id)s::uuid AND state IN ('due', 'claimed') AND attempts - failures >= %(deaths)s::int
     AND (state = 'due' OR claimed_until < clock_timestamp())
  RETURNING batch_id, run_id, lo, hi)
INSERT INTO {schema}.sweep_quarantine (sweep, run_id, batch_id, walk, lo, hi, error)
SELECT %(sweep)s::text, run_id, batch_id, %(walk)s::text, lo, hi, 'worker_lost' FROM killer
RETURNING batch_id"""


def quarantine(tx: Tx, sweep: str, batch_id: UUID, identity: str, walk: str, error: str) -> None:
    values = {"sweep": sweep, "batch_id": batch_id, "identity": identity, "walk": walk, "error": error}
    tx.run(QUARANTINE, values)


def quarantine_killers(tx: Tx, sweep: str, run_id: UUID, walk: str, deaths: int) -> list[UUID]:
    values = {"sweep": sweep, "run_id": run_id, "walk": walk, "deaths": deaths}
    return tx.scalars(QUARANTINE_KILLERS, values)


HELD_IDENTITIES: Final[LiteralString] = """
SELECT identity FROM {schema}.sweep_quarantine
 WHERE sweep = %(sweep)s::text AND released_at IS NULL AND identity IS NOT NULL"""


HELD_PAGES: Final[LiteralString] = """
SELECT lo, hi, walk FROM {schema}.sweep_quarantine
 WHERE sweep = %(sweep)s::text AND released_at IS NULL AND identity IS NULL
 ORDER BY at"""


LIST_QUARANTINE: Final[LiteralString] = """
SELECT quarantine_id, sweep, run_id, batch_id, identity, error, at, released_at FROM {schema}.sweep_quarantine
 WHERE (%(sweep)s::text IS NULL OR sweep = %(sweep)s::text) AND (%(released)s::boolean OR released_at IS NULL)
 ORDER BY at DESC LIMIT %(limit)s::bigint"""


RELEASE: Final[LiteralString] = """
UPDATE {schema}.sweep_quarantine SET released_at = now(), released_by = %(actor)s::text
 WHERE sweep = %(sweep)s::text AND released_at IS NULL
   AND (%(ids)s::uuid[] IS NULL OR quarantine_id = ANY (%(ids)s::uuid[]))"""


def held_identities(tx: Tx, sweep: str) -> list[str]:
    return tx.scalars(HELD_IDENTITIES, {"sweep": sweep})


def held_pages(tx: Tx, sweep: str) -> list[HeldPage]:
    return tx.rows(HELD_PAGES, {"sweep": sweep}, HeldPage)


def list_quarantine(tx: Tx, sweep: str | None, *, released: bool, limit: int) -> list[Quarantined]:
    return tx.rows(LIST_QUARANTINE, {"sweep": sweep, "released": released, "limit": limit}, Quarantined)


def release(tx: Tx, sweep: str, ids: list[UUID] | None, actor: str) -> int:
    return tx.run(RELEASE, {"sweep": sweep, "ids": ids, "actor": actor})
