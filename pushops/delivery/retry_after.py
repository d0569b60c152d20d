"""Retry-After in every form that RFC 9110, section 10.2.3, allows, and in those that it does not."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

LONGEST: Final = timedelta(days=3650)  # whatever is longer is as long; callers clamp to much less
SANE_SKEW: Final = timedelta(days=2)  # a Date header further off is a broken clock, not a cached answer

_SECONDS: Final = re.compile(r"([+-]?)0*([0-9]+)(?:\.([0-9]+))?", re.ASCII)
_TIME: Final = r"(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})"
# IMF-fixdate and the obsolete RFC 850 form differ in their dashes and their years; asctime has an order of its own.
_DATES: Final = (
    re.compile(
        rf"(?:[a-z]{{3,9}},\s*)?(?P<day>\d{{1,2}})[ -](?P<month>[a-z]{{3}})[ -](?P<year>\d{{4}}|\d{{2}})\s+{_TIME}"
        r"(?:\s+(?:gmt|utc|z|[+-]0000))?",
        re.ASCII | re.IGNORECASE,
    ),
    re.compile(
        rf"[a-z]{{3}}\s+(?P<month>[a-z]{{3}})\s+(?P<day>\d{{1,2}})\s+{_TIME}\s+(?P<year>\d{{4}})",
        re.ASCII | re.IGNORECASE,
    ),
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Two headers come joined by commas; a date has one of its own, after its day's name.
_BETWEEN: Final = re.compile(r",(?!\s*\d{1,2}[ -][A-Za-z]{3}[ -])")


def parse_retry_after(text: str | None, now: datetime, date: str | None = None) -> timedelta | None:
    """How long to wait, or None if the text does not say. What is past is zero; of several the longest counts.

    ``date`` is the answer's Date header: a date is compared with it, so that no skew of clocks counts, unless it is
    missing or cannot be; then with ``now``, the database's.
    """
    if text is None:
        return None
    found = [_one(part.strip(), now, date) for part in _BETWEEN.split(text)]
    return max((each for each in found if each is not None), default=None)


def _one(text: str, now: datetime, date: str | None) -> timedelta | None:
    match = _SECONDS.fullmatch(text)
    if match:
        return _seconds(match)
    at = parse_http_date(text, now)
    if at is None:
        return None
    return min(max(at - _since(date, now), timedelta(0)), LONGEST)


def _seconds(match: re.Match[str]) -> timedelta:
    """Fractions are rounded up, never down: it is the least to wait."""
    sign, whole, fraction = match.groups()
    if sign == "-":
        return timedelta(0)
    if len(whole) > 10:  # noqa: PLR2004  (three hundred years)
        return LONGEST
    up = 1 if fraction and fraction.strip("0") else 0
    return min(timedelta(seconds=int(whole) + up), LONGEST)


def _since(date: str | None, now: datetime) -> datetime:
    at = None if date is None else parse_http_date(date.strip(), now)
    return at if at is not None and abs(at - now) <= SANE_SKEW else now


def parse_http_date(text: str, now: datetime) -> datetime | None:
    """A date in any of the three forms, in UTC, or None."""
    match = next((found for form in _DATES if (found := form.fullmatch(text))), None)
    if match is None or match["month"].lower() not in _MONTHS:
        return None
    try:
        return datetime(
            _year(match["year"], now),
            _MONTHS.index(match["month"].lower()) + 1,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            min(int(match["second"]), 59),  # a leap second
            tzinfo=UTC,
        )
    except ValueError:
        return None


def _year(text: str, now: datetime) -> int:
    """Two digits mean the century that puts them at most 50 years ahead (RFC 9110, section 5.6.7)."""
    if len(text) == 4:  # noqa: PLR2004  (all of its digits)
        return int(text)
    year = now.year - now.year % 100 + int(text)
    return year - 100 if year > now.year + 50 else year
