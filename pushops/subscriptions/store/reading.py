"""Looking at rows without their credentials."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.lifecycle import State

_COLUMNS: Final[LiteralString] = """
  id, push_service, user_id, origin, tags, state, previous_state, state_since, registration_no, created_at,
  registered_at, last_seen_at, last_success_at, last_tried_at, last_failure_at, last_status, votes, first_vote_at,
  last_vote_at, send_block, end_reason, end_run_id, revoked_at, deleted_at, scrubbed_at, legal_hold, vapid_key_id,
  vapid_key_assumed, auth_key_version, expiration_time, user_agent, locale"""

BY_HASH: Final[LiteralString] = (
    "SELECT " + _COLUMNS + " FROM {schema}.push_subscription WHERE endpoint_hash = %(hash)s::bytea"
)
BY_ID: Final[LiteralString] = "SELECT " + _COLUMNS + " FROM {schema}.push_subscription WHERE id = %(id)s::uuid"
LIST: Final[LiteralString] = (
    "SELECT "
    + _COLUMNS
    + """
  FROM {schema}.push_subscription
 WHERE id > %(after)s::uuid
   AND (%(state)s::text IS NULL OR state = %(state)s::text)
   AND (%(service)s::text IS NULL OR push_service = %(service)s::text)
   AND (%(origin)s::text IS NULL OR origin = %(origin)s::text)
 ORDER BY id LIMIT %(limit)s::integer"""
)
# Two indexes hold a user's rows, the live ones and the tombstones; said in one condition, neither would be used.
LIST_USER: Final[LiteralString] = (
    "SELECT "
    + _COLUMNS
    + """
  FROM {schema}.push_subscription
 WHERE (user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL)
   AND id > %(after)s::uuid
   AND (%(state)s::text IS NULL OR state = %(state)s::text)
   AND (%(service)s::text IS NULL OR push_service = %(service)s::text)
   AND (%(origin)s::text IS NULL OR origin = %(origin)s::text)
 ORDER BY id LIMIT %(limit)s::integer"""
)


@dataclass(frozen=True)
class Subscription:
    """A row as operators and applications may see it: all but endpoint and keys."""

    id: UUID
    push_service: str
    user_id: str | None
    origin: str | None
    tags: list[str]
    state: State
    previous_state: State | None
    state_since: datetime
    registration_no: int
    created_at: datetime
    registered_at: datetime
    last_seen_at: datetime
    last_success_at: datetime | None
    last_tried_at: datetime | None
    last_failure_at: datetime | None
    last_status: int | None
    votes: int
    first_vote_at: datetime | None
    last_vote_at: datetime | None
    send_block: str | None
    end_reason: str | None
    end_run_id: UUID | None
    revoked_at: datetime | None
    deleted_at: datetime | None
    scrubbed_at: datetime | None
    legal_hold: bool
    vapid_key_id: str | None
    vapid_key_assumed: bool
    auth_key_version: int | None
    expiration_time: datetime | None
    user_agent: str | None
    locale: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", State(self.state))


@dataclass(frozen=True)
class Filter:
    user: str | None = None
    state: str | None = None
    service: str | None = None
    origin: str | None = None


def by_hash(tx: Tx, endpoint_hash: bytes) -> Subscription | None:
    return tx.maybe(BY_HASH, {"hash": endpoint_hash}, Subscription)


def by_id(tx: Tx, subscription_id: UUID) -> Subscription | None:
    return tx.maybe(BY_ID, {"id": subscription_id}, Subscription)


def page(tx: Tx, which: Filter, after: UUID, limit: int) -> list[Subscription]:
    query = LIST if which.user is None else LIST_USER
    return tx.rows(query, {**vars(which), "after": after, "limit": limit}, Subscription)
