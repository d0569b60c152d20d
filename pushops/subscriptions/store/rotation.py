"""What a rotation must know of both endpoints, held still."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from pushops.db import Tx

LOCK_PAIR: Final[LiteralString] = """
SELECT endpoint_hash, user_id, created_at, tags, user_agent, locale, origin, end_reason
  FROM {schema}.push_subscription WHERE endpoint_hash = ANY(%(hashes)s::bytea[]) ORDER BY id FOR UPDATE"""


@dataclass(frozen=True)
class Predecessor:
    endpoint_hash: bytes
    user_id: str | None
    created_at: datetime
    tags: list[str]
    user_agent: str | None
    locale: str | None
    origin: str | None
    end_reason: str | None


def lock_pair(tx: Tx, old: bytes, new: bytes) -> Predecessor | None:
    """Lock both rows, as far as they exist, in id order; the old one."""
    found = {row.endpoint_hash: row for row in tx.rows(LOCK_PAIR, {"hashes": [old, new]}, Predecessor)}
    return found.get(old)
