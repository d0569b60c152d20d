"""What a message is: its words, whom it is for, and the limits of push services that it must keep to."""

import base64
import hashlib
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

# RFC 8291, section 4: of 4,096 bytes the header takes 86, the tag 16 and a delimiter 1.
PAYLOAD_MAX: Final = 3993
PAYLOAD_BRIDGED: Final = 2744  # Mozilla hands messages to old Android devices through a bridge that takes no more
TTL_MAX: Final = timedelta(days=28)  # what push services take, and 2,419,200 seconds
AHEAD_MAX: Final = timedelta(days=30)  # the ledger's partitions are found by when a message was made
IDS_MAX: Final = 10_000  # they stand in the message's own row
_TOPIC_BYTES: Final = 24  # 32 characters, all that RFC 8030, section 5.4, allows


class Urgency(StrEnum):
    """RFC 8030, section 5.3."""

    VERY_LOW = "very-low"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


# The ledger's order: the smaller is sent first.
PRIORITY: Final = {Urgency.HIGH: 0, Urgency.NORMAL: 1, Urgency.LOW: 2, Urgency.VERY_LOW: 3}


class OnAmbiguous(StrEnum):
    """What to do where a push service may or may not have taken a message."""

    RETRY = "retry"  # with the same Topic and message id
    DROP = "drop"


class OnInDoubt(StrEnum):
    """What a replay does where a live attempt may have been taken."""

    DISCARD = "discard"
    RESEND = "resend"


class MessageState(StrEnum):
    WAITING = "waiting"
    FANNING_OUT = "fanning_out"
    SENDING = "sending"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class RecipientState(StrEnum):
    """Where a recipient's row of the ledger is."""

    DUE = "due"
    CLAIMED = "claimed"
    PAUSED = "paused"  # its campaign is: nobody looks at it until it goes on
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom a message is for: every condition that is named holds, ``tags`` meaning any of them.

    Nothing named is nobody, unless ``everyone`` says that all live subscriptions are meant.
    """

    user: str | None = None
    tags: tuple[str, ...] | None = None
    ids: tuple[UUID, ...] | None = None
    service: str | None = None
    origin: str | None = None
    locale: str | None = None
    key: str | None = None
    everyone: bool = False

    @property
    def named(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self) if field.name != "everyone")

    @property
    def small(self) -> bool:
        """Found by an index, so that it can be fanned out at once."""
        return self.user is not None or self.ids is not None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that passed its pre-flight; ``topic`` is hashed, ``ttl`` in seconds."""

    audience: Audience
    ttl: int
    urgency: Urgency
    topic: str | None
    campaign: str | None
    not_before: datetime | None
    replayable: bool
    on_ambiguous: OnAmbiguous
    on_in_doubt: OnInDoubt
    idempotency_key: str | None


def hash_topic(topic: str) -> str:
    """32 characters of base64url, whatever the application calls its topics."""
    digest = hashlib.sha256(topic.encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest[:_TOPIC_BYTES]).decode()
