"""Requests as the sweep selects them."""

from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Batch

DUE: Final = "done_at IS NULL AND held_at IS NULL"

# {batch} is where the engine selects a page's rows.
_CLAIM: Final[LiteralString] = "SELECT request_id FROM {{schema}}.erasure_request WHERE {batch}"


def due(tx: Tx, batch: Batch) -> list[UUID]:
    return tx.scalars(literal(_CLAIM.format(batch=batch.clause)), batch.params)
