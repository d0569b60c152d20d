"""Ending the link between rows and their user; the rows live on."""

from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

LOCK_OWNED_ENDPOINT: Final[LiteralString] = """
SELECT id, endpoint_hash, user_id FROM {schema}.push_subscription
 WHERE endpoint_hash = %(hash)s::bytea AND user_id IS NOT NULL AND deleted_at IS NULL
 ORDER BY id FOR UPDATE"""
LOCK_OWNED_BY: Final[LiteralString] = """
SELECT id, endpoint_hash, user_id FROM {schema}.push_subscription
 WHERE user_id = %(user)s::text AND deleted_at IS NULL
 ORDER BY id FOR UPDATE"""
# The tags go with the user who chose them: an audience is as private as a name.
DETACH: Final[LiteralString] = """
UPDATE {schema}.push_subscription SET user_id = NULL, tags = '{}' WHERE id = ANY(%(ids)s::uuid[])"""


@dataclass(frozen=True)
class Owned:
    id: UUID
    endpoint_hash: bytes
    user_id: str


def detach_endpoint(tx: Tx, endpoint_hash: bytes) -> list[Owned]:
    return _detach(tx, tx.rows(LOCK_OWNED_ENDPOINT, {"hash": endpoint_hash}, Owned))


def detach_user(tx: Tx, user: str) -> list[Owned]:
    return _detach(tx, tx.rows(LOCK_OWNED_BY, {"user": user}, Owned))


def _detach(tx: Tx, owned: list[Owned]) -> list[Owned]:
    tx.run(DETACH, {"ids": [row.id for row in owned]})
    return owned
