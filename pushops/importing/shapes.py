"""A row of another store, whatever it calls things, as a candidate: still unchecked but for what is ours to read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pushops.importing.words import Rules
from pushops.subscriptions.registering import Candidate
from pushops.subscriptions.rejection import describe, rejection, text_of

EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)  # before the web; what is older was meant as something else
SKEW: Final = timedelta(minutes=5)  # another host's clock may be ahead of the database's
_MILLISECONDS: Final = 100_000_000_000  # a number from here on is no count of seconds: the year 5138

# Where django-push-notifications keeps the end of an endpoint only (before 3.0), by its column ``browser``.
_POST_URLS: Final[Mapping[str, str]] = {
    "CHROME": "https://fcm.googleapis.com/fcm/send",
    "OPERA": "https://fcm.googleapis.com/fcm/send",
    "EDGE": "https://wns2-par02p.notify.windows.com/w",
    "FIREFOX": "https://updates.push.services.mozilla.com/wpush/v2",
}
_NO: Final = frozenset(("false", "f", "no", "n", "0"))
_YES: Final = frozenset(("true", "t", "yes", "y", "1"))


@dataclass(frozen=True, slots=True)
class Found:
    """``recency`` decides between rows of one endpoint: the latest time that the row names, None where it has none."""

    candidate: Candidate
    recency: datetime | None


def read_row(row: Mapping[str, Any], rules: Rules) -> Found:
    """A row under our names (``names.FIELDS``); raises RejectionError."""
    _refuse_ended(row)
    created, seen = _time("created_at", row.get("created_at"), rules), _time("seen_at", row.get("seen_at"), rules)
    candidate = Candidate(
        _subscription(row),
        user_id=_id(row.get("user")),
        origin=row.get("origin"),
        application_server_key=row.get("application_server_key") or rules.application_server_key,
        tags=_tags(row.get("tags")),
        user_agent=row.get("user_agent"),
        locale=row.get("locale"),
        created_at=created,
    )
    return Found(candidate, max(created, seen) if created and seen else created or seen)


def _refuse_ended(row: Mapping[str, Any]) -> None:
    """The other store may say itself that it no longer sends there."""
    if not (_says("active", row, default=True) and not _says("invalid", row, default=False)):
        raise rejection("active", "inactive", "a subscription in use", "one that the other store had ended")


def _says(field: str, row: Mapping[str, Any], *, default: bool) -> bool:
    """Yes or no in the words of any store. What is neither is refused: it may be how that store says the opposite."""
    value = row.get(field)
    if value is None:
        return default
    said = str(value).strip().lower()
    if said not in _YES | _NO:
        raise rejection(field, "bad_flag", "yes or no (true, t, 1; false, f, 0)", describe(value))
    return said in _YES


def _subscription(row: Mapping[str, Any]) -> object:
    """The browser's object: as it stands inside, or put together from flat members."""
    inside = row.get("subscription")
    if inside is not None:
        return _object("subscription", inside)
    keys = row.get("keys")
    if keys is None and (row.get("p256dh") is not None or row.get("auth") is not None):
        keys = {"p256dh": row.get("p256dh"), "auth": row.get("auth")}
    return {
        "endpoint": _endpoint(row),
        "keys": _object("keys", keys),
        "contentEncoding": row.get("content_encoding"),
        "expirationTime": _expiration(row.get("expiration_time")),
    }


def _object(field: str, value: object) -> object:
    """JSON text, as columns hold it, is read; anything else is the door's to judge."""
    text = text_of(value)
    if text is None:
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise rejection(field, "not_json", "a JSON object", describe(text)) from None


def _endpoint(row: Mapping[str, Any]) -> object:
    endpoint, browser = row.get("endpoint"), row.get("browser")
    base = _POST_URLS.get(str(browser).upper()) if browser is not None else None
    if base is None or text_of(endpoint) is None or not endpoint or "://" in str(endpoint):
        return endpoint
    return f"{base}/{endpoint}"


def _expiration(value: object) -> object:
    """Milliseconds, as browsers say it; columns hold digits, or a time."""
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    text = text_of(value)
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < len("12345678901234567") else value


def _id(value: object) -> object:
    """Other stores count their users; ours is a text."""
    return str(value) if type(value) is int or isinstance(value, UUID) else value


def _tags(value: object) -> list[object] | None:
    """A list; an object becomes ``key:value``; text is either in JSON, or names between commas."""
    text = text_of(value)
    if text is not None:
        stripped = text.strip()
        value = _object("tags", stripped) if stripped[:1] in ("[", "{") else [one.strip() for one in text.split(",")]
    if value is None or isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [f"{key}:{one}" for key, one in value.items()]
    raise rejection("tags", "bad_tags", "a list of strings", describe(value))


def _time(field: str, value: object, rules: Rules) -> datetime | None:
    if value is None:
        return None
    when = value if isinstance(value, datetime) else _read_time(value)
    if when is not None and when.tzinfo is None and rules.utc:
        when = when.replace(tzinfo=UTC)
    if when is None or when.tzinfo is None:
        raise rejection(field, "bad_time", "an ISO 8601 time with a zone, or a Unix time", describe(value))
    if not EARLIEST <= when <= rules.until + SKEW:
        raise rejection(field, "bad_time", f"a time between {EARLIEST.year} and now", f"one in {when.year}")
    return min(when, rules.until)


def _read_time(value: object) -> datetime | None:
    text = text_of(value)
    try:
        if text is not None and not text.isdigit():
            return datetime.fromisoformat(text.removesuffix(" UTC") + ("+00:00" if text.endswith(" UTC") else ""))
        number = float(text) if text is not None else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        return datetime.fromtimestamp(number / 1000 if number >= _MILLISECONDS else number, UTC)
    except (ValueError, OverflowError, OSError):
        return None
