"""What a rotation must know of both endpoints, held still."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from pushops.db import Tx
from pushops.subscriptions.lifecycle import END_REASON, Event

LOCK_PAIR: Final[LiteralString] = """
SELECT endpoint_hash, user_id, created_at, tags, user_agent, locale, origin, end_reason
  FROM {schema}.push_subscription WHERE endpoint_hash = ANY(%(hashes)s::bytea[]) ORDER BY id FOR UPDATE"""


@dataclass(frozen=True)
class Known:
    endpoint_hash: bytes
    user_id: str | None
    created_at: datetime
    tags: list[str]
    user_agent: str | None
    locale: str | None
    origin: str | None
    end_reason: str | None


@dataclass(frozen=True)
class Pair:
    old: Known | None
    new: Known | None


def lock_pair(tx: Tx, old: bytes, new: bytes) -> Pair:
    """Lock both rows, as far as they exist, in id order."""
    pair = _lock(tx, old, new)
    # Whoever rotated the old one may have made the new one while we waited, which only a later snapshot shows.
    if pair.new is None and pair.old is not None and pair.old.end_reason == END_REASON[Event.ROTATED_AWAY]:
        return _lock(tx, old, new)
    return pair


def _lock(tx: Tx, old: bytes, new: bytes) -> Pair:
    found = {row.endpoint_hash: row for row in tx.rows(LOCK_PAIR, {"hashes": [old, new]}, Known)}
    return Pair(found.get(old), found.get(new))
