"""Letters as operators look at them: a page, one, how many, and every attempt. No endpoint, no payload, no token."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters import filters
from pushops.deadletters.filters import Filter

_COLUMNS: Final[LiteralString] = """
  dlq_id, message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no, campaign_id,
  payload_ref IS NOT NULL AS has_payload, attempt_count, first_attempt_at, last_attempt_at, terminal_status,
  error_class, error_code, error_snippet, original_ttl, expires_at, replayable, on_in_doubt, in_doubt, replay_state,
  close_reason, closed_by, close_note, closed_at, claimed_until, replay_key, replay_count, next_replay_at, run_id,
  parked_at
  FROM {schema}.push_dlq"""
_PAGE: Final[LiteralString] = (
    " AND dlq_id > %(after)s::uuid AND " + filters.CLAUSE + " ORDER BY dlq_id LIMIT %(limit)s::integer"
)

BY_ID: Final[LiteralString] = "SELECT " + _COLUMNS + " WHERE dlq_id = %(dlq_id)s::uuid"
LIKE: Final[LiteralString] = """
SELECT dlq_id FROM {schema}.push_dlq
 WHERE dlq_id BETWEEN %(lowest)s::uuid AND %(highest)s::uuid ORDER BY dlq_id LIMIT 2"""
# What is parked has an index of its own, however many letters are closed.
PARKED: Final[LiteralString] = "SELECT " + _COLUMNS + " WHERE replay_state = 'parked'" + _PAGE
IN_STATE: Final[LiteralString] = (
    "SELECT " + _COLUMNS + " WHERE (%(state)s::text IS NULL OR replay_state = %(state)s::text)" + _PAGE
)

ATTEMPTS: Final[LiteralString] = """
SELECT attempt, kind, run_id, at, settled_at, outcome, status, code, snippet, forced
  FROM {schema}.push_dlq_attempt WHERE replay_key = %(replay_key)s::uuid ORDER BY attempt"""

# What is parked and what is in a drain's hands, each by its own index.
COUNT: Final[LiteralString] = (
    "SELECT count(*) FILTER (WHERE replay_state = 'parked') AS parked,"
    " count(*) FILTER (WHERE replay_state = 'claimed') AS claimed"
    " FROM {schema}.push_dlq WHERE replay_state IN ('parked', 'claimed') AND " + filters.CLAUSE
)
COUNT_IN_STATE: Final[LiteralString] = (
    "SELECT count(*) FROM {schema}.push_dlq"
    " WHERE (%(state)s::text IS NULL OR replay_state = %(state)s::text) AND " + filters.CLAUSE
)


@dataclass(frozen=True)
class Facts:
    """A letter without its claim's token, its payload's name and whose endpoint it was."""

    dlq_id: UUID
    message_id: UUID
    subscription_id: UUID
    endpoint_host: str
    push_service: str
    owner: str | None
    owner_no: int
    campaign_id: str | None
    has_payload: bool
    attempt_count: int
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    terminal_status: int | None
    error_class: str
    error_code: str
    error_snippet: str
    original_ttl: int
    expires_at: datetime
    replayable: bool
    on_in_doubt: str
    in_doubt: bool
    replay_state: str
    close_reason: str | None
    closed_by: str | None
    close_note: str | None
    closed_at: datetime | None
    claimed_until: datetime | None
    replay_key: UUID
    replay_count: int
    next_replay_at: datetime
    run_id: UUID | None
    parked_at: datetime


@dataclass(frozen=True)
class LetterRow(Facts):
    endpoint_hash: bytes


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, live or replay. Without ``settled_at`` nobody knows what came of it; ``forced`` is why once more."""

    attempt: int
    kind: str
    run_id: UUID | None
    at: datetime
    settled_at: datetime | None
    outcome: str | None
    status: int | None
    code: str | None
    snippet: str | None
    forced: str | None


@dataclass(frozen=True, slots=True)
class Counted:
    parked: int
    claimed: int


def page(tx: Tx, meant: Filter, *, state: str | None, after: UUID, limit: int) -> list[LetterRow]:
    """In the order of parking; ``state`` None means all."""
    params: dict[str, Any] = {**meant.params(), "after": after, "limit": limit}
    if state == "parked":
        return tx.rows(PARKED, params, LetterRow)
    return tx.rows(IN_STATE, params | {"state": state}, LetterRow)


def by_id(tx: Tx, dlq_id: UUID) -> LetterRow | None:
    return tx.maybe(BY_ID, {"dlq_id": dlq_id}, LetterRow)


def like(tx: Tx, lowest: UUID, highest: UUID) -> list[UUID]:
    return tx.scalars(LIKE, {"lowest": lowest, "highest": highest})


def attempts(tx: Tx, replay_key: UUID) -> list[Attempt]:
    return tx.rows(ATTEMPTS, {"replay_key": replay_key}, Attempt)


def count(tx: Tx, meant: Filter) -> Counted:
    return tx.one(COUNT, meant.params(), Counted)


def count_in_state(tx: Tx, meant: Filter, state: str | None) -> int:
    return int(tx.scalar(COUNT_IN_STATE, {**meant.params(), "state": state}))
