"""What an application says about a subscription beside the browser's own: checked so that no SQL fails on it.

What comes from headers is cleaned, since nobody can mend it; what the application chose is refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pushops.subscriptions.rejection import Reason, describe, rejection, text_of

_USER_AGENT: Final = 400
_LOCALE: Final = 64
_NAME: Final = 512  # bytes: a user id stands in three indexes, and an index row ends at 2,704
_TAG: Final = 128
_TAGS: Final = 100
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")  # PostgreSQL's text has no NUL, UTF-8 no lone surrogate


@dataclass(frozen=True, slots=True)
class Attributes:
    """``tags`` None means: leave them."""

    user_id: str | None = None
    origin: str | None = None
    tags: tuple[str, ...] | None = None
    user_agent: str | None = None
    locale: str | None = None


def read_attributes(
    user_id: object = None,
    origin: object = None,
    tags: Iterable[object] | None = None,
    user_agent: object = None,
    locale: object = None,
) -> Attributes:
    """All of them, raising RejectionError for the first that cannot be kept."""
    return Attributes(
        read_name("user_id", user_id),
        read_name("origin", origin),
        _read_tags(tags),
        _clean("user_agent", user_agent, _USER_AGENT),
        _clean("locale", locale, _LOCALE),
    )


def read_name(field: str, value: object, longest: int = _NAME) -> str | None:
    """A name of the application's, verbatim; raises RejectionError."""
    if value is None:
        return None
    text = text_of(value)
    if text is None:
        raise rejection(field, Reason.NOT_A_STRING, "a string", describe(value))
    if not text or _UNSTORABLE.search(text) or len(text.encode()) > longest:
        expected = f"1 to {longest} bytes of UTF-8 without NUL"
        raise rejection(field, "bad_name", expected, describe(text))
    return text


def _read_tags(value: Iterable[object] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    if issubclass(type(value), str):
        raise rejection("tags", "bad_tags", "a list of strings", describe(value))
    names = {read_name("tags", tag, _TAG) for tag in value}
    if None in names or len(names) > _TAGS:
        raise rejection("tags", "bad_tags", f"at most {_TAGS} strings", f"{len(names)}")
    return tuple(sorted(name for name in names if name is not None))


def _clean(field: str, value: object, longest: int) -> str | None:
    if value is None:
        return None
    text = text_of(value)
    if text is None:
        raise rejection(field, Reason.NOT_A_STRING, "a string", describe(value))
    return _UNSTORABLE.sub("", text)[:longest] or None
