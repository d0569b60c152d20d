"""Whether rows make a table: each says one thing that the settling can do, and every answer has exactly one winner."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from pushops.delivery.answer import Fault
from pushops.delivery.classify.row import ANY, HIGHEST, Row
from pushops.delivery.classify.verdict import Dead, Lifecycle, Outcome, Retry

_WAITING: Final = (Retry.BACKOFF, Retry.AFTER, Retry.AT_ONCE)
_Allowed = tuple[tuple[Lifecycle, ...], tuple[Retry, ...], tuple[Dead, ...]]

# What goes together. 404, 410, 429 and our own faults never become letters, and no fault of a push service or of ours
# does anything to a subscription.
ALLOWED: Final[Mapping[Outcome, _Allowed]] = {
    Outcome.ACCEPTED: ((Lifecycle.SUCCESS,), (Retry.NO,), (Dead.NO,)),
    Outcome.DROPPED: ((Lifecycle.NONE,), (Retry.NO,), (Dead.NO,)),
    Outcome.GONE: ((Lifecycle.REVOKE,), (Retry.NO,), (Dead.NO,)),
    Outcome.NOT_FOUND: ((Lifecycle.VOTE,), (Retry.NO, Retry.BACKOFF), (Dead.NO,)),
    Outcome.MISMATCH: ((Lifecycle.MISMATCH,), (Retry.HOLD,), (Dead.NO,)),
    Outcome.THROTTLED: ((Lifecycle.NONE,), (Retry.AFTER,), (Dead.NO,)),
    Outcome.AMBIGUOUS: ((Lifecycle.NONE,), (Retry.AMBIGUOUS,), (Dead.EXHAUSTED,)),
    Outcome.UNAVAILABLE: ((Lifecycle.NONE,), _WAITING, (Dead.EXHAUSTED,)),
    Outcome.UNREACHABLE: ((Lifecycle.NONE,), _WAITING, (Dead.EXHAUSTED,)),
    Outcome.REFUSED: ((Lifecycle.NONE, Lifecycle.DEVICE_LIMIT), (Retry.NO,), (Dead.POISON,)),
    Outcome.DENIED: ((Lifecycle.NONE,), (Retry.HOLD, Retry.RESIGN), (Dead.HOLD_ROW,)),
    Outcome.BAD_KEYS: ((Lifecycle.BAD_KEYS,), (Retry.NO,), (Dead.NO,)),
}


def faults(rows: Sequence[Row]) -> list[str]:
    """Everything that keeps these rows from being a table, in words."""
    return [*_doubled(rows), *_inconsistent(rows), *_ambiguous(rows), *_uncovered(rows)]


def _doubled(rows: Sequence[Row]) -> Iterator[str]:
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            yield f"row {row.id}: expected an id of its own"
        seen.add(row.id)


def _inconsistent(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        verdict = row.verdict
        said = (verdict.lifecycle, verdict.retry, verdict.dead)
        for key, word, allowed in zip(("lifecycle", "retry", "dead"), said, ALLOWED[verdict.outcome], strict=True):
            if word not in allowed:
                yield f"row {row.id}: expected {key} of {verdict.outcome} to be {' or '.join(allowed)}, got {word}"
        if verdict.retry not in _WAITING and (verdict.wait or verdict.most):
            yield f"row {row.id}: expected wait and most only with retry {', '.join(_WAITING)}"


def _ambiguous(rows: Sequence[Row]) -> Iterator[str]:
    for one, other in combinations(rows, 2):
        if one.id != other.id and one.rank == other.rank and _meet(one, other):
            yield f"rows {one.id} and {other.id}: expected one of them to be more specific, the same answer fits both"


def _meet(one: Row, other: Row) -> bool:
    """Whether an answer exists that fits both, and that no longer text decides.

    Rows of one rank look at the same keys, but for errno and reason, of which an answer may have both.
    """
    return (
        bool(one.services & other.services)
        and bool(one.subjects & other.subjects)
        and _hosts_meet(one.host, other.host)
        and _values_meet(one.errno, other.errno)
        and _values_meet(one.reason, other.reason)
        and _values_meet(one.text, other.text)
        and _values_meet(one.header, other.header)
    )


def _hosts_meet(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    bare_one, bare_other = one.removeprefix("*."), other.removeprefix("*.")
    return bare_one == bare_other or bare_one.endswith(f".{bare_other}") or bare_other.endswith(f".{bare_one}")


def _values_meet(one: Iterable[object], other: Iterable[object]) -> bool:
    values, others = set(one), set(other)
    return not values or not others or bool(values & others)


def _uncovered(rows: Iterable[Row]) -> Iterator[str]:
    """Every status and every fault of any service has a row that asks for nothing more."""
    covered: set[int | Fault] = set()
    for row in rows:
        if ANY in row.services and row.is_bare:
            covered |= row.subjects
    statuses = [status for status in range(HIGHEST + 1) if status not in covered]
    if statuses:
        yield f"expected a row of service any for every status, none takes {_shown(statuses)}"
    for fault in Fault:
        if fault not in covered:
            yield f"expected a row of service any for every fault, none takes {fault}"


def _shown(statuses: Sequence[int]) -> str:
    return ", ".join(map(str, statuses[:5])) + (f" and {len(statuses) - 5} more" if len(statuses) > 5 else "")  # noqa: PLR2004
