"""What becomes of a letter after an answer, and when a run had better stop: pure rules."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never

from pushops.deadletters.letter import CloseReason, ReplayOutcome
from pushops.delivery import retry
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Outcome, Verdict
from pushops.settings import Settings

FAILURES: Final = 5  # in a row, over all the workers of a run: then it stops
RESEND: Final = "resend"


@dataclass(frozen=True, slots=True)
class Facts:
    """``replay_count``: replays that failed before. ``held``: the answer fell into a hold or an outage.

    ``doubted``: the guard is open, so that nobody's death is believed. ``blocked``: its foreign key blocks the
    subscription. ``jitter``: between -1 and 1.
    """

    replay_count: int
    on_in_doubt: str
    held: bool
    doubted: bool
    blocked: bool
    jitter: float


@dataclass(frozen=True, slots=True)
class Decision:
    """``reason`` ends the letter, without one it is parked again for ``wait``. ``spends``: it counts as a failure."""

    counted: ReplayOutcome
    reason: CloseReason | None = None
    wait: timedelta | None = None
    spends: bool = False
    poison: bool = False
    in_doubt: bool = False


def decide(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> Decision:
    """The end of the letter, or when it is looked at again."""
    match verdict.outcome:
        case Outcome.ACCEPTED:
            return Decision(ReplayOutcome.REPLAYED, CloseReason.REPLAYED)
        case Outcome.GONE | Outcome.NOT_FOUND | Outcome.BAD_KEYS | Outcome.MISMATCH:
            return _nobody_there(verdict, answer, facts, settings, now)
        case Outcome.THROTTLED:
            wait = retry.wait_of(answer, verdict, settings, now)
            return Decision(ReplayOutcome.THROTTLED, wait=retry.later(wait, facts.jitter, settings))
        case Outcome.AMBIGUOUS if facts.on_in_doubt != RESEND:
            return Decision(ReplayOutcome.IN_DOUBT, CloseReason.IN_DOUBT, in_doubt=True)
        case Outcome.REFUSED | Outcome.DROPPED | Outcome.AMBIGUOUS:
            return _failed(verdict, answer, facts, settings, now)
        case Outcome.UNAVAILABLE | Outcome.UNREACHABLE | Outcome.DENIED:
            return _failed_or_held(verdict, answer, facts, settings, now)
        case _:
            assert_never(verdict.outcome)


def _nobody_there(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> Decision:
    """No subscription that takes it, unless that is not believed: then it is as if nothing had been sent."""
    if verdict.outcome is Outcome.MISMATCH and not facts.blocked:
        return _failed_or_held(verdict, answer, facts, settings, now)
    if facts.doubted:
        return Decision(ReplayOutcome.HELD, wait=settings.unhealthy_probe)
    return Decision(ReplayOutcome.GONE, CloseReason.SUBSCRIPTION_GONE)


def _failed_or_held(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> Decision:
    """In a hold or an outage it waits until a probe may have gone out, and that was no attempt of its own."""
    if facts.held:
        return Decision(ReplayOutcome.HELD, wait=settings.unhealthy_probe)
    return _failed(verdict, answer, facts, settings, now)


def _failed(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> Decision:
    """Behind those that were not tried, for longer each time, and no more after so many."""
    if answer.fault is Fault.PAYLOAD_MISSING:
        return Decision(ReplayOutcome.GONE, CloseReason.PAYLOAD_MISSING)
    doubt = verdict.outcome is Outcome.AMBIGUOUS
    spent = facts.replay_count + 1 >= settings.replay_attempts
    return Decision(
        ReplayOutcome.IN_DOUBT if doubt else ReplayOutcome.FAILED,
        CloseReason.REPLAY_EXHAUSTED if spent else None,
        retry.back_off(verdict, answer, facts.replay_count + 1, facts.jitter, settings, now),
        spends=True,
        poison=verdict.outcome is Outcome.REFUSED,
        in_doubt=doubt,
    )


# What says that going on would fail as well. Deaths and throttles do not.
FAILS: Final = frozenset({Outcome.UNAVAILABLE, Outcome.UNREACHABLE, Outcome.DENIED, Outcome.REFUSED, Outcome.AMBIGUOUS})


@dataclass(frozen=True, slots=True)
class Streaks:
    """Failures in the order of answers: how many came before the first success, at most in a row, and at the end."""

    lead: int = 0
    longest: int = 0
    tail: int = 0
    success: bool = False


def streaks(outcomes: Iterable[Outcome]) -> Streaks:
    lead = longest = tail = 0
    success = False
    for outcome in outcomes:
        if outcome is Outcome.ACCEPTED:
            success, tail = True, 0
        elif outcome in FAILS:
            tail += 1
            lead += not success
            longest = max(longest, tail)
    return Streaks(lead, longest, tail, success)
