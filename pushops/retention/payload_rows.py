"""What messages know of their payloads' objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Batch

# {batch} is where the engine selects a page's rows. Nothing is marked: whoever deletes an object a second time finds
# it gone.
_FIND: Final[LiteralString] = "SELECT message_id, payload_ref FROM {{schema}}.push_message WHERE {batch}"
# Only what was named when the object went.
FORGET: Final[LiteralString] = """
UPDATE {schema}.push_message AS m SET payload_ref = NULL, payload_key_version = NULL
  FROM unnest(%(message_ids)s::uuid[], %(refs)s::text[]) AS gone (message_id, payload_ref)
 WHERE m.message_id = gone.message_id AND m.payload_ref = gone.payload_ref"""
# A message's id is made before its object, and is as old; its row comes after it, when its maker commits.
UNNAMED: Final[LiteralString] = """
SELECT o.message_id, o.payload_ref
  FROM unnest(%(message_ids)s::uuid[], %(refs)s::text[]) AS o (message_id, payload_ref)
 WHERE o.message_id < {schema}.id_floor(now() - %(age)s::interval)
   AND NOT EXISTS (SELECT FROM {schema}.push_message AS m
                    WHERE m.message_id = o.message_id AND m.payload_ref = o.payload_ref)
 ORDER BY o.payload_ref"""


@dataclass(frozen=True)
class Named:
    """An object and the message that it is the payload of."""

    message_id: UUID
    payload_ref: str


def find(tx: Tx, batch: Batch) -> list[Named]:
    return tx.rows(literal(_FIND.format(batch=batch.clause)), batch.params, Named)


def forget(tx: Tx, gone: Sequence[Named]) -> int:
    return tx.run(FORGET, _columns(gone))


def unnamed(tx: Tx, objects: Sequence[Named], age: timedelta) -> list[Named]:
    """Those that no message names, and that are older than ``age``."""
    return tx.rows(UNNAMED, _columns(objects) | {"age": age}, Named)


def _columns(rows: Sequence[Named]) -> dict[str, object]:
    return {"message_ids": [row.message_id for row in rows], "refs": [row.payload_ref for row in rows]}
