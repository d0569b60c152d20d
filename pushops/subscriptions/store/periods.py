"""The consent trail, brought into line with the rows that it follows.

Both statements run after the row was changed, in its transaction and as statements of their own: the row's lock
keeps everybody else away, and only a new snapshot shows what the last holder of that lock wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from pushops.db import Tx

# What ended with its row closes with the row's reason; what changed hands, with the verb's. The hashes stand in it
# twice: planned without statistics, all that is open would be read for each row.
CLOSE: Final[LiteralString] = """
UPDATE {schema}.subscription_period AS p
   SET ended_at = greatest(now(), p.began_at),
       end_reason = coalesce(s.end_reason, %(reason)s::text),
       campaign_id = %(campaign)s::text
  FROM {schema}.push_subscription AS s
 WHERE s.endpoint_hash = ANY(%(hashes)s::bytea[])
   AND p.endpoint_hash = ANY(%(hashes)s::bytea[])
   AND p.endpoint_hash = s.endpoint_hash
   AND p.ended_at IS NULL
   AND (s.deleted_at IS NOT NULL OR p.user_id IS DISTINCT FROM s.user_id)
RETURNING p.endpoint_hash, p.user_id, p.began_at, p.reconnection"""

# A reconnection: this user's last subscription ended lately, or this endpoint's did. An endpoint that only changed
# hands did not end, except that whoever is left anonymous by it is nobody new either. A rotated one went on elsewhere:
# its heir begins when it began, as what it was, but only for the same owner, since nobody inherits another's opt-in.
# Never before another's hold of the same endpoint ended: an inherited date may be older, and so is the now() of a
# transaction that began first and came to the row second.
# An end that may be -infinity keeps the planner off the index of ends: it is the first choice while few have ended,
# and after a mass death it would be read whole for each row.
OPEN: Final[LiteralString] = """
INSERT INTO {schema}.subscription_period (endpoint_hash, user_id, push_service, origin, began_at, reconnection)
SELECT s.endpoint_hash, s.user_id, s.push_service, s.origin,
       greatest(
         CASE WHEN s.user_id IS NOT DISTINCT FROM %(heir_of)s::text
              THEN coalesce(%(began_at)s::timestamptz, now()) ELSE now() END,
         (SELECT max(coalesce(p.ended_at, '-infinity')) FROM {schema}.subscription_period AS p
           WHERE p.endpoint_hash = s.endpoint_hash)),
       coalesce(
         CASE WHEN s.user_id IS NOT DISTINCT FROM %(heir_of)s::text THEN %(reconnection)s::boolean END,
         EXISTS (
           SELECT 1 FROM {schema}.subscription_period AS p
            WHERE p.endpoint_hash = s.endpoint_hash
              AND coalesce(p.ended_at, '-infinity') >= now() - %(window)s::interval
              AND (s.user_id IS NULL OR p.end_reason NOT IN ('owner_changed', 'detached'))
         ) OR EXISTS (
           SELECT 1 FROM {schema}.subscription_period AS p
            WHERE p.user_id = s.user_id AND coalesce(p.ended_at, '-infinity') >= now() - %(window)s::interval
              AND p.end_reason <> 'rotated'))
  FROM {schema}.push_subscription AS s
 WHERE s.endpoint_hash = ANY(%(hashes)s::bytea[])
   AND s.deleted_at IS NULL
   AND NOT EXISTS (
         SELECT 1 FROM {schema}.subscription_period AS p WHERE p.endpoint_hash = s.endpoint_hash AND p.ended_at IS NULL)
RETURNING endpoint_hash, reconnection"""


@dataclass(frozen=True)
class Closed:
    endpoint_hash: bytes
    user_id: str | None
    began_at: datetime
    reconnection: bool


@dataclass(frozen=True)
class Inheritance:
    """What a rotated endpoint hands on to the same owner; ``began_at`` None where its period had closed before."""

    heir_of: str | None
    began_at: datetime | None
    reconnection: bool


@dataclass(frozen=True)
class Opened:
    endpoint_hash: bytes
    reconnection: bool


def close(tx: Tx, hashes: Sequence[bytes], reason: str, campaign: str | None = None) -> list[Closed]:
    """End the open periods of rows that ended or have another owner now."""
    return tx.rows(CLOSE, {"hashes": list(hashes), "reason": reason, "campaign": campaign}, Closed)


def open_missing(
    tx: Tx, hashes: Sequence[bytes], window: timedelta, inheritance: Inheritance | None = None
) -> dict[bytes, bool]:
    """Begin a period for each row that has none open; whether it is a reconnection, by endpoint hash."""
    params = {
        "hashes": list(hashes),
        "window": window,
        "heir_of": inheritance and inheritance.heir_of,
        "began_at": inheritance and inheritance.began_at,
        "reconnection": inheritance and inheritance.reconnection,
    }
    return {row.endpoint_hash: row.reconnection for row in tx.rows(OPEN, params, Opened)}
