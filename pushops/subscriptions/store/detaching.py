"""Ending the link between rows and their user; what became of the rows otherwise stays."""

from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, Event

# Tombstones too: undo, a repost or a rotation would bring them back as that user's. Who unsubscribed is brought back
# by none of these, and stays named as the one who did.
LOCK_OWNED_ENDPOINT: Final[LiteralString] = """
SELECT id, endpoint_hash, user_id FROM {schema}.push_subscription
 WHERE endpoint_hash = %(hash)s::bytea AND user_id IS NOT NULL
   AND (deleted_at IS NULL OR end_reason <> %(left)s::text)
 ORDER BY id FOR UPDATE"""
# Said in one condition, neither of the two indexes that hold a user's rows would be used.
LOCK_OWNED_BY: Final[LiteralString] = """
SELECT id, endpoint_hash, user_id FROM {schema}.push_subscription
 WHERE (user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL)
   AND (deleted_at IS NULL OR end_reason <> %(left)s::text)
 ORDER BY id FOR UPDATE"""
# The tags go with the user who chose them: an audience is as private as a name.
DETACH: Final[LiteralString] = """
UPDATE {schema}.push_subscription SET user_id = NULL, tags = '{}' WHERE id = ANY(%(ids)s::uuid[])"""

_LEFT: Final = END_REASON[Event.UNSUBSCRIBED]


@dataclass(frozen=True)
class Owned:
    id: UUID
    endpoint_hash: bytes
    user_id: str


def detach_endpoint(tx: Tx, endpoint_hash: bytes) -> list[Owned]:
    return _detach(tx, tx.rows(LOCK_OWNED_ENDPOINT, {"hash": endpoint_hash, "left": _LEFT}, Owned))


def detach_user(tx: Tx, user: str) -> list[Owned]:
    return _detach(tx, tx.rows(LOCK_OWNED_BY, {"user": user, "left": _LEFT}, Owned))


def _detach(tx: Tx, owned: list[Owned]) -> list[Owned]:
    tx.run(DETACH, {"ids": [row.id for row in owned]})
    return owned
