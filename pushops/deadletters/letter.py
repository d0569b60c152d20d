"""What a dead letter is: a recipient of a message that nobody could deliver to, and what became of it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

# What push services say of the subscription or of our pace. It never makes a letter: the table refuses it too.
RESOLVED: Final = frozenset({404, 410, 429})
FRESH_SECONDS: Final = 60  # a letter with less time than this left is stale


class ErrorClass(StrEnum):
    POISON = "poison"  # will never be taken, whoever sends it
    EXHAUSTED = "retry_exhausted"  # might be taken, but was tried often enough


class ReplayState(StrEnum):
    PARKED = "parked"
    CLAIMED = "claimed"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class CloseReason(StrEnum):
    """Why a letter is done."""

    REPLAYED = "replayed"
    RESENT = "resent"  # an operator had it sent once more
    TTL_EXPIRED = "ttl_expired"
    NOT_REPLAYABLE = "not_replayable"
    MESSAGE_CANCELLED = "message_cancelled"
    SUBSCRIPTION_GONE = "subscription_gone"
    PAYLOAD_MISSING = "payload_missing"
    ALREADY_REPLAYED = "already_replayed"
    IN_DOUBT = "in_doubt"
    REPLAY_EXHAUSTED = "replay_exhausted"
    DISCARDED = "discarded"  # an operator's word


class ReplayOutcome(StrEnum):
    """What a run counts of its rows."""

    REPLAYED = "replayed"
    STALE = "stale"
    GONE = "gone"
    DUPLICATE = "duplicate"
    IN_DOUBT = "in_doubt"
    FAILED = "failed"
    THROTTLED = "throttled"  # not a failure: the push service asked for time
    HELD = "held"  # left alone: its push service or our key there is in trouble, or paused


# What a run counts where a gate ends a letter.
COUNTED: Final = {
    CloseReason.TTL_EXPIRED: ReplayOutcome.STALE,
    CloseReason.NOT_REPLAYABLE: ReplayOutcome.STALE,
    CloseReason.MESSAGE_CANCELLED: ReplayOutcome.STALE,
    CloseReason.SUBSCRIPTION_GONE: ReplayOutcome.GONE,
    CloseReason.PAYLOAD_MISSING: ReplayOutcome.GONE,
    CloseReason.ALREADY_REPLAYED: ReplayOutcome.DUPLICATE,
    CloseReason.IN_DOUBT: ReplayOutcome.IN_DOUBT,
}


HELD: Final = "held"  # what the gates say of a letter that they leave as it is


def counted_as(verdict: str) -> ReplayOutcome:
    """What a run counts where the gates said this: why a letter ends, or that it is held."""
    return ReplayOutcome.HELD if verdict == HELD else COUNTED[CloseReason(verdict)]


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter to be parked: all that its row says. ``history``: the live attempts, oldest first, as JSON objects with
    ``at``, ``status``, ``code``, ``outcome`` and ``snippet``.

    ``terminal_status`` is None where there was no HTTP answer. ``in_doubt``: the last attempt may have been taken.
    """

    message_id: UUID
    subscription_id: UUID
    endpoint_hash: bytes
    endpoint_host: str
    push_service: str
    owner: str | None
    owner_no: int
    campaign_id: str | None
    payload_ref: str | None
    attempt_count: int
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    terminal_status: int | None
    error_class: ErrorClass
    error_code: str
    error_snippet: str
    original_ttl: int
    expires_at: datetime
    replayable: bool
    on_in_doubt: str
    in_doubt: bool
    history: list[dict[str, Any]] = field(default_factory=list)
