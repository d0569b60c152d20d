"""Endpoints that may not come back on their own, and the requests that made them so."""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

ADD: Final[LiteralString] = """
INSERT INTO {schema}.suppression AS s (endpoint_hash, request_id)
SELECT endpoint_hash, %(request)s::uuid FROM unnest(%(hashes)s::bytea[]) AS r (endpoint_hash) ORDER BY endpoint_hash
    ON CONFLICT (endpoint_hash) DO UPDATE
   SET request_id = EXCLUDED.request_id,
       lifted_at = CASE WHEN s.request_id = EXCLUDED.request_id THEN s.lifted_at END"""

FIND: Final[LiteralString] = """
SELECT endpoint_hash FROM {schema}.suppression WHERE endpoint_hash = ANY(%(hashes)s::bytea[])"""

# Where a new endpoint stands in an old one's place it is suppressed by the same request.
HAND_ON: Final[LiteralString] = """
INSERT INTO {schema}.suppression (endpoint_hash, request_id)
SELECT %(heir)s::bytea, request_id FROM {schema}.suppression WHERE endpoint_hash = %(old)s::bytea
    ON CONFLICT (endpoint_hash) DO NOTHING"""

# While a request is open its endpoints stay suppressed: what comes late must still be turned away.
MARK: Final[LiteralString] = """
UPDATE {schema}.suppression AS s SET lifted_at = now()
 WHERE s.endpoint_hash = %(hash)s::bytea
   AND EXISTS (SELECT FROM {schema}.erasure_endpoint AS e WHERE e.endpoint_hash = s.endpoint_hash AND e.own)"""
LIFT: Final[LiteralString] = """
DELETE FROM {schema}.suppression AS s
 WHERE s.endpoint_hash = %(hash)s::bytea
   AND NOT EXISTS (SELECT FROM {schema}.erasure_endpoint AS e WHERE e.endpoint_hash = s.endpoint_hash AND e.own)"""

# Whose request ended after so-and-so was written (what comes while it is open it finds itself, but for what was written
# before it); by the keyed HMAC, which is all that is kept of a user.
FORGOTTEN: Final[LiteralString] = """
SELECT u.user_hmac FROM unnest(%(hmacs)s::bytea[], %(times)s::timestamptz[]) AS u (user_hmac, at)
 WHERE EXISTS (SELECT FROM {schema}.erasure_request AS r
                WHERE r.user_hmac = u.user_hmac AND coalesce(r.done_at, r.asked_at) >= coalesce(u.at, '-infinity'))"""


def add(tx: Tx, hashes: Sequence[bytes], request_id: UUID) -> None:
    tx.run(ADD, {"hashes": list(hashes), "request": request_id})


def find(tx: Tx, hashes: Sequence[bytes]) -> set[bytes]:
    """Those of the endpoints that are suppressed."""
    return set(tx.scalars(FIND, {"hashes": list(hashes)}))


def hand_on(tx: Tx, old: bytes, heir: bytes) -> None:
    """Suppress an endpoint because the one that it replaces is."""
    tx.run(HAND_ON, {"old": old, "heir": heir})


def lift(tx: Tx, endpoint_hash: bytes) -> bool:
    """Let an endpoint come back, at once or when its request is done; whether it was suppressed."""
    marked = tx.run(MARK, {"hash": endpoint_hash})
    return tx.run(LIFT, {"hash": endpoint_hash}) + marked > 0


def forgotten(tx: Tx, writings: Sequence[tuple[bytes, object]]) -> set[bytes]:
    """Of (user's HMAC, when something was written of them) those users who were forgotten since."""
    hmacs, times = [found[0] for found in writings], [found[1] for found in writings]
    return set(tx.scalars(FORGOTTEN, {"hmacs": hmacs, "times": times})) if writings else set()
