"""Words of health: what an answer says of whoever gave it, and what a batch of them made so."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

from pushops.delivery.health import Why, Window
from pushops.delivery.store.holds import Lifted, Opened, Released


class Kind(StrEnum):
    """What an answer says of whoever gave it."""

    ACCEPTED = "accepted"
    TERMINAL = "terminal"  # the subscription is dead, or may be
    DENIED = "denied"  # our key or configuration is refused
    MISMATCH = "mismatch"  # our key is not the one that this subscription was made with
    FAULTY = "faulty"  # it failed, or could not be reached
    THROTTLED = "throttled"
    OTHER = "other"


OUR_FAULT: Final = frozenset({Kind.DENIED, Kind.MISMATCH})


@dataclass(frozen=True, slots=True)
class Observation:
    """One attempt, in the order of completion. ``answered``: it had a status; ``endpoint_hash``: whose, or empty."""

    lane_id: int
    kind: Kind
    answered: bool
    code: str
    endpoint_hash: bytes = b""

    @property
    def subject(self) -> int:
        """Whose, in as few bits as tell some of a lane's apart; 0 if unknown."""
        return int.from_bytes(self.endpoint_hash[:7])


@dataclass(frozen=True, slots=True)
class Observed:
    """What is so now, after these answers.

    ``guard_id``: the open guard; evidence is then recorded, not applied. ``waits``: only probes are sent to this push
    service. ``held_lanes``: those of these answers' lanes that are held. ``others_succeed``: enough of them did within
    the last minutes that a failing message is its own fault. ``page``: somebody is woken for ``became_unhealthy``.
    """

    service: str
    guard_id: UUID | None = None
    opened_guard: UUID | None = None
    opened_why: Why | None = None
    window: Window = field(default_factory=Window)
    streak: int = 0
    usual: float | None = None
    became_unhealthy: Why | None = None
    code: str | None = None
    page: bool = False
    recovered: bool = False
    waits: bool = False
    others_succeed: bool = False
    opened_holds: tuple[Opened, ...] = ()
    released_holds: tuple[Released, ...] = ()
    held_lanes: frozenset[int] = frozenset()
    lifted: tuple[Lifted, ...] = ()

    @property
    def guard_open(self) -> bool:
        return self.guard_id is not None
