"""An answer as the table looks at it: its reason fields, its texts and its headers, in lower case. Nothing raises."""

import html
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pushops.delivery.answer import BODY_MAX

ABSENT: Final = -1  # no errno at all: not the same as errno null

# Linear, whatever comes: a tag ends at the next bracket of either kind.
_TAG: Final = re.compile(r"<[^<>]*>")
# What is left of JSON that was cut off, or is none.
_ERRNO: Final = re.compile(r'"errno"\s*:\s*"?(null|\d{1,9})\b')
_REASON: Final = re.compile(r'"reason"\s*:\s*"([^"\\]{1,200})"')
_QUOTES: Final = str.maketrans("\u2018\u2019\u201c\u201d\u00a0", "''\"\" ")

# Where WNS says what it does not say in the body.
REASON_HEADERS: Final = ("x-wns-status", "x-wns-notificationstatus", "x-wns-error-description")


@dataclass(frozen=True, slots=True)
class Body:
    """``texts``: the body as it is, and without tags. ``errno`` is ``ABSENT`` or JSON's value; ``reason`` may be ""."""

    errno: int | None
    reason: str
    texts: tuple[str, ...]

    def contains(self, text: str) -> bool:
        return any(text in each for each in self.texts)


EMPTY: Final = Body(ABSENT, "", ())


def read(body: bytes) -> Body:
    """A body in any state: JSON, HTML, text, cut off, in broken UTF-8, or nothing."""
    text = decode(body[:BODY_MAX])
    if not text.strip():
        return EMPTY
    fields = _fields(text)
    plain = _normal(text)
    without_tags = _normal(html.unescape(_TAG.sub(" ", text))) if "<" in text or "&" in text else plain
    texts = (plain,) if without_tags == plain else (plain, without_tags)
    return Body(_errno(fields, text), _reason(fields, text), texts)


def decode(body: bytes) -> str:
    """Text whatever it takes: broken sequences are replaced; UTF-16 is told by its mark."""
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return body.decode("utf-16", errors="replace")
    return body.decode("utf-8-sig", errors="replace")


def _normal(text: str) -> str:
    """Lower case, straight quotes, and white space as one blank."""
    return " ".join(text.translate(_QUOTES).casefold().split())


def _fields(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _errno(fields: Mapping[str, Any], text: str) -> int | None:
    """A number, as such or as text; JSON's null; ABSENT if there is neither."""
    if fields:
        value = fields.get("errno", ABSENT)
    else:
        match = _ERRNO.search(text)
        value = ABSENT if match is None else match[1]
    if value is None or value == "null":
        return None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else ABSENT
    return value if isinstance(value, int) and not isinstance(value, bool) else ABSENT


def _reason(fields: Mapping[str, Any], text: str) -> str:
    if fields:
        value = fields.get("reason")
    else:
        match = _REASON.search(text)
        value = match[1] if match else None
    return _normal(value) if isinstance(value, str) else ""


def header(headers: Mapping[str, str], name: str) -> str | None:
    """A header's value in lower case, under whatever case its name has."""
    found = headers.get(name)
    if found is None:
        found = next((value for key, value in headers.items() if key.casefold() == name), None)
    return None if found is None else _normal(found)


def headers_of(headers: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Those of these names, in whatever case they came, with their values in lower case."""
    return {lower: _normal(value) for name, value in headers.items() if (lower := name.casefold()) in names}
