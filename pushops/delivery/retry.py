"""What becomes of a ledger row after an answer: its end, or when it is tried again and whether that cost an attempt.

Pure: the time is the database's, the facts are the row's, the jitter is drawn by the caller.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from pushops.delivery.answer import Answer
from pushops.delivery.classify.reading import header
from pushops.delivery.classify.verdict import Outcome, Retry, Verdict
from pushops.delivery.message import OnAmbiguous
from pushops.delivery.retry_after import parse_retry_after
from pushops.settings import Settings

# Mozilla's own bridge waits no shorter than this for FCM, whatever it says: an answer of 0 must not become a loop.
SHORTEST: Final = timedelta(seconds=10)
REPEATED: Final = 2  # so many answers like this one before it make poison of it
REPEATED_AT_ONCE: Final = 3  # of which one was no interval
NEVER_POISON: Final = (429, 503)


class End(StrEnum):
    """Why a ledger row is done. The last ones are given by statements, to rows that nobody has in hand."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"
    GONE = "gone"
    NOT_FOUND = "not_found"
    KEY_MISMATCH = "key_mismatch"
    BAD_KEYS = "bad_keys"
    POISON = "poison"
    EXHAUSTED = "exhausted"
    THROTTLED = "throttled"
    HELD = "held"
    AMBIGUOUS = "ambiguous"
    PAUSED = "paused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    OWNER_CHANGED = "owner_changed"
    SUBSCRIPTION_GONE = "subscription_gone"
    MESSAGE_GONE = "message_gone"
    DEAD_SERVICE = "dead_service"
    WORKER_LOST = "worker_lost"  # it took three workers with it


class Why(StrEnum):
    """What a row waits for."""

    RETRY = "retry"
    THROTTLED = "throttled"
    HELD = "held"
    PAUSED = "paused"
    AMBIGUOUS = "ambiguous"
    RESIGN = "resign"


@dataclass(frozen=True, slots=True)
class Facts:
    """``attempts`` counts this one. ``last_code``: of the answer before. ``repeats``: how many in a row before this had
    its code and snippet. ``waits``: the lane is held or the push service unhealthy, by this answer or before.
    ``others_succeed``: at least 20 other messages to this host did meanwhile. ``jitter``: between -1 and 1.
    """

    attempts: int
    first_attempt_at: datetime | None
    last_code: str | None
    repeats: int
    ambiguous: int
    expires_at: datetime
    on_ambiguous: str
    waits: bool
    others_succeed: bool
    jitter: float


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: End
    code: str


@dataclass(frozen=True, slots=True)
class Again:
    """``spends``: whether this attempt counts against the budget."""

    at: datetime
    spends: bool
    why: Why


Decision = Ended | Again


@dataclass(frozen=True, slots=True)
class _Plan:
    wait: timedelta
    spends: bool
    why: Why


def decide(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> Decision:
    """The end of the row, or its next attempt, which is always before ``expires_at``."""
    if verdict.retry is Retry.NO:
        return Ended(_end(verdict.outcome), verdict.code)
    if verdict.retry is Retry.AMBIGUOUS and facts.on_ambiguous == OnAmbiguous.DROP:
        return Ended(End.AMBIGUOUS, verdict.code)
    plan = _plan(verdict, answer, facts, settings, now)
    if plan.spends and is_repeated(verdict, answer.status, facts, settings, now):
        return Ended(End.POISON, verdict.code)
    if plan.spends and _is_spent(verdict, facts, settings):
        return Ended(_end(verdict.outcome), verdict.code)
    at = now + plan.wait
    if at >= facts.expires_at:
        return Ended(_end_of_time(verdict, plan.why), verdict.code)
    return Again(at, plan.spends, plan.why)


def is_repeated(verdict: Verdict, status: int | None, facts: Facts, settings: Settings, now: datetime) -> bool:
    """Whether the same answer has come for the third time at real intervals, which no fourth attempt will change.

    An outage answers everyone alike: so never without a status, never for 429 and 503, and where the push service or
    we may be at fault only while others succeed.
    """
    if status is None or status in NEVER_POISON or not _may_be_poison(verdict, others_succeed=facts.others_succeed):
        return False
    needed = REPEATED_AT_ONCE if verdict.retry in (Retry.AT_ONCE, Retry.RESIGN) else REPEATED
    shortest = settings.retry_base * (1 - settings.retry_jitter) * REPEATED
    since_first = shortest if facts.first_attempt_at is None else now - facts.first_attempt_at
    return facts.repeats >= needed and since_first >= shortest


def _may_be_poison(verdict: Verdict, *, others_succeed: bool) -> bool:
    if verdict.outcome is Outcome.UNREACHABLE:
        return True
    return verdict.outcome in (Outcome.UNAVAILABLE, Outcome.DENIED) and others_succeed


def _plan(verdict: Verdict, answer: Answer, facts: Facts, settings: Settings, now: datetime) -> _Plan:
    """How long to wait, and what for."""
    if verdict.outcome is Outcome.THROTTLED:
        wait = wait_of(answer, verdict, settings, now)
        return _Plan(later(wait, facts.jitter, settings), spends=False, why=Why.THROTTLED)
    backoff = back_off(verdict, answer, facts.attempts, facts.jitter, settings, now)
    if facts.waits:
        return _Plan(backoff, spends=False, why=Why.HELD)
    is_new = facts.last_code != verdict.code
    match verdict.retry:
        case Retry.RESIGN if is_new:
            return _Plan(timedelta(0), spends=False, why=Why.RESIGN)
        case Retry.AT_ONCE if is_new and _asked(answer, settings, now) is None:
            return _Plan(timedelta(0), spends=True, why=Why.RETRY)
        case Retry.AMBIGUOUS:
            return _Plan(backoff, spends=True, why=Why.AMBIGUOUS)
        case Retry.NO | Retry.BACKOFF | Retry.AFTER | Retry.AT_ONCE | Retry.RESIGN | Retry.HOLD:
            return _Plan(backoff, spends=True, why=Why.RETRY)
        case _:
            assert_never(verdict.retry)


def wait_of(answer: Answer, verdict: Verdict, settings: Settings, now: datetime) -> timedelta:
    """How long a throttle lasts, to the second: as the push service says, else the row's wait, else the setting."""
    return _asked(answer, settings, now) or verdict.wait or settings.throttle_default


def _asked(answer: Answer, settings: Settings, now: datetime) -> timedelta | None:
    """What Retry-After asks for, within bounds."""
    text = header(answer.headers, "retry-after")
    asked = parse_retry_after(text, now, header(answer.headers, "date"))
    if asked is None:
        return None
    shortest = min(SHORTEST, settings.retry_base, settings.retry_after_max)
    return min(max(asked, shortest), settings.retry_after_max)


def back_off(
    verdict: Verdict, answer: Answer, attempts: int, jitter: float, settings: Settings, now: datetime
) -> timedelta:
    """Twice as long each time, and never shorter than the row or the push service wants."""
    exponent = min(max(attempts - 1, 0), 30)  # beyond any cap
    own = min(settings.retry_base * (1 << exponent), settings.retry_cap) * (1 + settings.retry_jitter * jitter)
    asked = _asked(answer, settings, now)
    least = timedelta(0) if asked is None else later(asked, jitter, settings)
    return max(own, least, verdict.wait or timedelta(0))


def later(wait: timedelta, jitter: float, settings: Settings) -> timedelta:
    """With jitter upward only: before what was asked for nothing is sent."""
    return wait * (1 + settings.retry_jitter * abs(jitter))


def _is_spent(verdict: Verdict, facts: Facts, settings: Settings) -> bool:
    most = settings.retry_attempts if verdict.most is None else min(settings.retry_attempts, verdict.most + 1)
    return facts.attempts >= most


def _end(outcome: Outcome) -> End:
    """The end of a row that is not tried again."""
    match outcome:
        case (
            Outcome.ACCEPTED | Outcome.DROPPED | Outcome.GONE | Outcome.NOT_FOUND | Outcome.BAD_KEYS | Outcome.THROTTLED
        ):
            return End(outcome.value)
        case Outcome.REFUSED:
            return End.POISON
        case Outcome.MISMATCH | Outcome.AMBIGUOUS | Outcome.UNAVAILABLE | Outcome.UNREACHABLE | Outcome.DENIED:
            return End.EXHAUSTED
        case _:
            assert_never(outcome)


def _end_of_time(verdict: Verdict, why: Why) -> End:
    """The end of a row whose next attempt would come too late: named by what it waited for."""
    match why:
        case Why.THROTTLED:
            return End.THROTTLED
        case Why.HELD:
            return End.HELD
        case Why.PAUSED:
            return End.PAUSED
        case Why.RETRY | Why.AMBIGUOUS | Why.RESIGN:
            return _end(verdict.outcome)
        case _:
            assert_never(why)
