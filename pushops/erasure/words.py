"""What erasures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

TICKET_AFTER: Final = timedelta(hours=24)  # a run takes minutes: by then something is wrong
PAGE_AFTER: Final = timedelta(hours=72)

# What the receipt says of the spool of other hosts: nobody here can read it.
OTHER_SPOOLS: Final = "letters in spools of other hosts are dropped as they come in"


class Progress(StrEnum):
    """Where a request stands after a look at it."""

    DONE = "done"
    MORE = "more"  # time was over
    WAITS = "waits"  # somebody has a row in hand, or a store is away
    HELD = "held"  # a legal hold


@dataclass(frozen=True)
class Erasure:
    """What asking came to. ``rows`` were subscriptions of theirs; ``joined``: it had been asked before, and is open."""

    request_id: UUID
    rows: int
    ended: int
    held: bool
    joined: bool = False


@dataclass(frozen=True)
class Request:
    """A request as operators see it, without whom it is about. ``receipt``: rows by store, so far or in the end."""

    request_id: UUID
    of: str
    user_hmac: bytes | None
    asked_at: datetime
    asked_by: str
    held_at: datetime | None
    waits: str | None
    told: str | None
    done_at: datetime | None
    endpoints: int
    receipt: Mapping[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        if self.done_at is not None:
            return "done"
        return "held" if self.held_at is not None else "open"
