"""Subscriptions with what opens them, page by page: for another store, or another database of ours."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.store.reading import Filter

# Tombstones keep nothing that anybody could send to, or should.
OPEN: Final[LiteralString] = """
SELECT id, endpoint, endpoint_hash, p256dh, auth_sealed, auth_key_version, content_encoding, expiration_time,
       CASE WHEN NOT vapid_key_assumed THEN vapid_key_id END AS vapid_key_id, user_id, tags, origin, user_agent, locale,
       created_at, last_seen_at
  FROM {schema}.push_subscription
 WHERE id > %(after)s::uuid AND deleted_at IS NULL
   AND (%(user)s::text IS NULL OR user_id = %(user)s::text)
   AND (%(state)s::text IS NULL OR state = %(state)s::text)
   AND (%(service)s::text IS NULL OR push_service = %(service)s::text)
   AND (%(origin)s::text IS NULL OR origin = %(origin)s::text)
 ORDER BY id LIMIT %(limit)s::integer"""


@dataclass(frozen=True)
class OpenRow:
    id: UUID
    endpoint: str = field(repr=False)
    endpoint_hash: bytes = field(repr=False)
    p256dh: str = field(repr=False)
    auth_sealed: bytes = field(repr=False)
    auth_key_version: int
    content_encoding: str
    expiration_time: datetime | None
    vapid_key_id: str | None
    user_id: str | None
    tags: list[str]
    origin: str | None
    user_agent: str | None
    locale: str | None
    created_at: datetime
    last_seen_at: datetime


def page(tx: Tx, which: Filter, after: UUID, limit: int) -> list[OpenRow]:
    return tx.rows(OPEN, {**vars(which), "after": after, "limit": limit}, OpenRow)
