"""Rows under legal hold, and the requests that wait for them."""

from dataclasses import dataclass
from typing import Final, LiteralString

from pushops.db import Tx

SET: Final[LiteralString] = """
UPDATE {schema}.push_subscription SET legal_hold = %(held)s::boolean
 WHERE id IN (SELECT id FROM {schema}.push_subscription
               WHERE (endpoint_hash = %(hash)s::bytea
                      OR user_id = %(user)s::text AND deleted_at IS NULL
                      OR user_id = %(user)s::text AND deleted_at IS NOT NULL)
                 AND legal_hold <> %(held)s::boolean
               ORDER BY id FOR UPDATE)
RETURNING endpoint_hash, user_id"""

_HELD_ROW: Final[LiteralString] = """
EXISTS (SELECT FROM {schema}.erasure_endpoint AS e JOIN {schema}.push_subscription AS s USING (endpoint_hash)
         WHERE e.request_id = r.request_id AND e.own AND s.legal_hold)"""
HOLD_REQUESTS: Final[LiteralString] = (
    """
UPDATE {schema}.erasure_request AS r SET held_at = now()
 WHERE r.done_at IS NULL AND r.held_at IS NULL AND """
    + _HELD_ROW
)
RELEASE_REQUESTS: Final[LiteralString] = (
    """
UPDATE {schema}.erasure_request AS r SET held_at = NULL
 WHERE r.done_at IS NULL AND r.held_at IS NOT NULL AND NOT """
    + _HELD_ROW
)


@dataclass(frozen=True)
class Changed:
    endpoint_hash: bytes
    user_id: str | None


def set_held(tx: Tx, whose: str | bytes, *, held: bool) -> list[Changed]:
    """A user's rows, or that of an endpoint by its hash; those that were not so already."""
    user, digest = (None, whose) if isinstance(whose, bytes) else (whose, None)
    return tx.rows(SET, {"user": user, "hash": digest, "held": held}, Changed)


def hold_requests(tx: Tx) -> int:
    return tx.run(HOLD_REQUESTS, {})


def release_requests(tx: Tx) -> int:
    return tx.run(RELEASE_REQUESTS, {})
