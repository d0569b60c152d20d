"""Pure decisions: which span a moment is in, which partitions are missing, which are over."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never
from uuid import UUID

from pushops.retention.partitions.words import Kind, Part, Span, Table
from pushops.settings.partitions import Interval

_DAY: Final = timedelta(days=1)


def span_of(at: datetime, interval: Interval) -> Span:
    """The interval around a moment, in UTC."""
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match interval:
        case Interval.DAY:
            return Span(day, day + _DAY)
        case Interval.WEEK:
            monday = day - day.weekday() * _DAY
            return Span(monday, monday + 7 * _DAY)
        case Interval.MONTH:
            first = day.replace(day=1)
            return Span(first, (first + 31 * _DAY).replace(day=1))
        case _:
            assert_never(interval)


def wanted(now: datetime, interval: Interval, ahead: int) -> list[Span]:
    """The interval of now and as many after it."""
    spans = [span_of(now, interval)]
    for _ in range(ahead):
        spans.append(span_of(spans[-1].end, interval))
    return spans


def missing(parts: Sequence[Part], spans: Sequence[Span]) -> list[Span]:
    """What of the spans no partition covers: whole ones, and the pieces beside partitions that were cut otherwise."""
    return [piece for span in spans for piece in _uncovered(span, parts)]


def _uncovered(span: Span, parts: Sequence[Part]) -> list[Span]:
    pieces = [span]
    for part in (part for part in parts if not part.default):
        pieces = [rest for piece in pieces for rest in _less(piece, part)]
    return pieces


def _less(piece: Span, part: Part) -> list[Span]:
    low, high = part.low or piece.begin, part.high or piece.end
    if high <= piece.begin or low >= piece.end:
        return [piece]
    around = (Span(piece.begin, min(low, piece.end)), Span(max(high, piece.begin), piece.end))
    return [span for span in around if span.begin < span.end]


def over(parts: Sequence[Part], cutoff: datetime) -> list[Part]:
    """The partitions in which nothing can be younger than the cut-off, the oldest first."""
    past = [part for part in parts if not part.default and part.high is not None and part.high <= cutoff]
    return sorted(past, key=lambda part: (part.high or cutoff, part.name))


def name_of(table: Table, span: Span) -> str:
    return f"{table.table}_{span.begin.astimezone(UTC):%Y%m%d}"


def as_bound(at: datetime, kind: Kind) -> str:
    """A moment as a value of the column. A day, or a time without a zone, is one of UTC."""
    at = at.astimezone(UTC)
    match kind:
        case Kind.TIMESTAMPTZ:
            return at.isoformat(sep=" ")
        case Kind.TIMESTAMP:
            return at.replace(tzinfo=None).isoformat(sep=" ")
        case Kind.DATE:
            return at.date().isoformat()
        case Kind.UUID:
            return str(UUID(int=round(at.timestamp() * 1000) << 80))
        case _:
            assert_never(kind)


def from_bound(text: str | None, kind: Kind) -> datetime | None:
    """The moment that a bound names; None where it is open (MINVALUE, infinity) or lies beyond the calendar."""
    if text is None or "infinity" in text:
        return None
    try:
        if kind is Kind.UUID:
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=UUID(text).int >> 80)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
