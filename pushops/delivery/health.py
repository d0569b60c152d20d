"""When a push service is believed to be in trouble, and when we are: pure rules on counts and times."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import sqrt
from typing import Final

from pushops.settings import Settings

Z99: Final = 2.3263  # the normal distribution's one-sided 99 %
USUAL_FACTOR: Final = 10
GUARD_WINDOW: Final = timedelta(hours=1)
OTHERS: Final = 20  # successes of others that make a 5xx a row's own fault


class Why(StrEnum):
    """Why a push service is not believed, or not sent to."""

    SHARE = "share"  # too many of its answers say dead
    STREAK = "streak"  # so many in a row do
    GUARD = "guard"  # the guard opened on it
    FAULTS = "faults"  # it fails, or cannot be reached


@dataclass(frozen=True, slots=True)
class Window:
    """What a push service answered: over the guard's hour, and over the minutes that health looks at."""

    answers: int = 0
    terminal: int = 0
    attempts: int = 0
    faults: int = 0
    accepted: int = 0


def lower_bound(hits: int, total: int) -> float:
    """Wilson's one-sided 99 % lower bound of a share.

    Wilson's and not the textbook interval, whose width shrinks to nothing where few or all are hits; and not the exact
    one, which needs a library to say much the same at a hundred answers. Of 100 answers 11 exceed 5 %, of 10,000 it
    takes 551: the fewer there are, the larger the share.
    """
    if total == 0:
        return 0.0
    share, z2 = hits / total, Z99 * Z99
    middle = share + z2 / (2 * total)
    width = Z99 * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, (middle - width) / (1 + z2 / total))


def threshold(usual: float | None, settings: Settings) -> float:
    """The share of dead that is not believed: ten times the usual one, within bounds; the lower one where none is."""
    return min(max(USUAL_FACTOR * (usual or 0.0), settings.guard_floor), settings.guard_ceiling)


def guard_opens(window: Window, streak: int, usual: float | None, settings: Settings) -> Why | None:
    """Whether the answers of the hour say more deaths than can be. ``streak``: the last in a row that did.

    A streak counts only as far as the hour goes: a service that is sent to once a day and has lost its few browsers
    is no outage.
    """
    if min(streak, window.terminal) >= settings.guard_streak:
        return Why.STREAK
    enough = window.answers >= settings.guard_min
    if enough and lower_bound(window.terminal, window.answers) > threshold(usual, settings):
        return Why.SHARE
    return None


def fails(window: Window, settings: Settings) -> bool:
    """Whether so many attempts failed by the push service's or the network's fault that waiting is better."""
    return window.attempts >= settings.unhealthy_min and window.faults >= settings.unhealthy_ratio * window.attempts


def holds(faults: Sequence[datetime], faults_of: Sequence[int], now: datetime, settings: Settings) -> bool:
    """Whether so many answers since the last success blame us, near enough together, that a lane is held.

    ``faults_of`` says whose they were, 0 for nobody knows: one subscription that is tried again and again proves
    nothing of the others.
    """
    lately = [whose for at, whose in zip(faults, faults_of, strict=True) if at > now - settings.hold_window]
    return len(lately) >= settings.hold_faults and (0 in lately or len(set(lately)) > 1)


def others_succeed(window: Window) -> bool:
    return window.accepted >= OTHERS
