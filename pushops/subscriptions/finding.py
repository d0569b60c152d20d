"""Words of evidence: what an answer says about a subscription, and what that did."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class Finding(StrEnum):
    """What an answer says about the subscription; a classifier decides, evidence is applied."""

    ACCEPTED = "accepted"
    GONE = "gone"
    VOTE = "vote"
    MISMATCH = "mismatch"  # signed with another key than it was made with: the row's fault, or ours
    BAD_KEYS = "bad_keys"  # its own keys cannot encrypt
    DEVICE_LIMIT = "device_limit"  # the device said how much it takes
    NONE = "none"


class EvidenceState(StrEnum):
    """What became of an answer that was kept."""

    APPLIED = "applied"
    NOTHING = "nothing"  # believed, and changed nothing
    PENDING = "pending"  # waits for an operator
    DISCARDED = "discarded"


class EvidenceOutcome(StrEnum):
    ACTIVATED = "activated"  # a success: active, votes cleared
    REVOKED = "revoked"
    VOTED = "voted"
    VOTED_OUT = "voted_out"  # the vote that revoked
    TOO_SOON = "too_soon"  # a vote that does not count
    DOUBTED = "doubted"  # nothing is believed of a push service that fails
    PENDING = "pending"  # recorded until an operator judges what the guard doubts
    BLOCKED = "blocked"  # not sent to any more, until its browser subscribes anew
    COUNTED = "counted"  # a mismatch that counts towards a hold only
    LEARNT = "learnt"  # how much the device takes
    SUPERSEDED = "superseded"  # registered again, or a success, since the request began
    ALREADY_ENDED = "already_ended"
    UNKNOWN = "unknown"  # no such row: purged
    NOTHING = "nothing"  # only that it was tried


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer. ``registration_no`` and ``started_at`` (database time) are those of the claim that sent it.

    ``lane_id`` names host and key, without which a mismatch blocks nothing; ``max_payload`` is what a device said that
    it takes, in bytes; ``at`` is when the answer came, None for now.
    """

    subscription_id: UUID
    registration_no: int
    finding: Finding
    started_at: datetime
    status: int | None = None
    campaign_id: str | None = None
    message_id: UUID | None = None
    lane_id: int | None = None
    code: str | None = None
    max_payload: int | None = None
    at: datetime | None = None
