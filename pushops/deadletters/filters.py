"""The one language in which letters are named: for lists, triage, export, preview, replay and discard."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from pushops.deadletters.letter import ErrorClass
from pushops.errors import RefusedError

LONGEST: Final = 60  # characters of a value: the filter of a task, with its run's id, stays below 256 bytes
LONGEST_REASON: Final = 500
_UNSTORABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_NAMES: Final = {"class": "error_class"}  # a word that Python keeps for itself

# Every condition that is named must hold. text is looked for in code and snippet, whatever its case.
CLAUSE: Final = """
     (%(f_class)s::text IS NULL OR error_class = %(f_class)s::text)
 AND (%(f_code)s::text IS NULL OR error_code = %(f_code)s::text)
 AND (%(f_host)s::text IS NULL OR endpoint_host = %(f_host)s::text)
 AND (%(f_campaign)s::text IS NULL OR campaign_id = %(f_campaign)s::text)
 AND (%(f_since)s::timestamptz IS NULL OR parked_at >= %(f_since)s::timestamptz)
 AND (%(f_until)s::timestamptz IS NULL OR parked_at < %(f_until)s::timestamptz)
 AND (%(f_text)s::text IS NULL OR strpos(lower(error_code || ' ' || error_snippet), lower(%(f_text)s::text)) > 0)"""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant: all that every named condition holds for. ``since`` and ``until`` bound the parking."""

    error_class: ErrorClass | None = None
    code: str | None = None
    host: str | None = None
    campaign: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None

    def params(self) -> dict[str, Any]:
        """Values for ``CLAUSE``."""
        return {
            "f_class": self.error_class,
            "f_code": self.code,
            "f_host": self.host,
            "f_campaign": self.campaign,
            "f_since": self.since,
            "f_until": self.until,
            "f_text": self.text,
        }

    def words(self) -> dict[str, str]:
        """What is named, as ``parse`` takes it."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _word(value) for name, value in named.items() if value is not None}

    def key(self) -> str:
        """The same text for the same filter: one run is open for each."""
        return json.dumps(self.words(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse(words: Mapping[str, object]) -> Filter:
    """A filter from a command's options, a task's arguments or a run's row; raises RefusedError for what it is not."""
    known = {each.name for each in fields(Filter)}
    named = {_NAMES.get(name, name): value for name, value in words.items() if value is not None}
    if unknown := sorted(named.keys() - known):
        got = ", ".join(map(repr, unknown))[:100]
        raise RefusedError(f"expected a filter of {', '.join(sorted(known))}, got {got}")
    values: dict[str, Any] = {name: _read(name, value) for name, value in named.items()}
    return Filter(**values)


def read_reason(text: str) -> str:
    """Why an operator does it, which is kept; raises RefusedError."""
    why = text.strip()
    if not why or len(why) > LONGEST_REASON or not why.isprintable():
        raise RefusedError(f"expected a reason of 1 to {LONGEST_REASON} printable characters, got {len(why)}")
    return why


def from_key(key: str) -> Filter:
    """The filter that a run was opened with."""
    return parse(json.loads(key)) if key else Filter()


def _read(name: str, value: object) -> object:
    match name:
        case "since" | "until":
            return _time(name, value)
        case "error_class":
            return _class(value)
        case _:
            return _text(name, value)


def _class(value: object) -> ErrorClass:
    try:
        return ErrorClass(str(value))
    except ValueError:
        raise RefusedError(f"expected class to be {' or '.join(ErrorClass)}, got {str(value)[:30]!r}") from None


def _time(name: str, value: object) -> datetime:
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise RefusedError(f"expected {name} to be a time such as 2026-03-01T12:00Z, got {str(value)[:30]!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _text(name: str, value: object) -> str:
    """No endpoints: filters stand in messages, logs and rows."""
    if not isinstance(value, str) or not value or len(value) > LONGEST or _UNSTORABLE.search(value):
        raise RefusedError(f"expected {name} to be 1 to {LONGEST} printable characters, got {type(value).__name__}")
    if "://" in value:
        raise RefusedError(f"expected {name} without an address, got one, which is not shown")
    return value


def _word(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
