"""What is kept of an answer for people: 512 bytes that PostgreSQL stores whatever came, without what nobody may see."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pushops.deadletters.spelling import cut
from pushops.delivery.answer import BODY_MAX, Answer
from pushops.delivery.classify.reading import decode

HIDDEN: Final = "[...]"

# In this order, when there is no body. Of X-WNS-* those that are short and not of our making.
_NAMES: Final = ("retry-after", "ttl", "location", "apns-id")
_WNS: Final = re.compile(r"x-wns-[a-z-]{1,23}", re.ASCII)
_LAST: Final = "www-authenticate"

# A host may be seen; what comes before it (user-info) and after it (an endpoint's token) may not. JSON may have
# escaped the slashes.
_URL: Final = re.compile(
    r"https?:(?:\\?/){2}(?:[^\s/@\\\"'<>]*@)?([A-Za-z0-9.-]{0,253}(?::[0-9]{1,5})?)[^\s\"'<>]*", re.IGNORECASE
)
_JWT: Final = re.compile(r"eyJ[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*){0,4}")
# A run of what tokens are made of, and the sign that it is one: 24 url-safe characters without a break. The whole run
# goes, since standard base64 and FCM's "id:token" break it.
_RUN: Final = re.compile(r"[A-Za-z0-9_\-.:~%+=/]{24,}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_\-%]{24,}")
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# The one reason of a vendor's that is as long as a token.
_WORDS: Final = frozenset({"unauthorizedregistration"})


def snippet(answer: Answer, endpoint: str = "") -> str:
    """The body, or if it is empty the headers that say something; ``endpoint`` is removed in any case.

    At most ``SNIPPET_BYTES`` of UTF-8. No NUL, no lone surrogate, no endpoint, token, JWT or path of a Location.
    """
    if not answer.body and not answer.headers:
        return ""
    body = scrub(decode(answer.body[:BODY_MAX]), endpoint).strip()
    return cut(body or "; ".join(_headers(answer.headers, endpoint)))


def scrub(text: str, endpoint: str = "") -> str:
    """A text without secrets, in characters that can be stored."""
    storable = _CONTROL.sub(" ", text.encode("utf-8", errors="replace").decode("utf-8"))
    for secret in _secrets(endpoint):
        storable = storable.replace(secret, HIDDEN)
    return _RUN.sub(_hide_token, _JWT.sub(HIDDEN, _URL.sub(_hide_path, storable)))


def _secrets(endpoint: str) -> Iterator[str]:
    """The endpoint and its last part, which alone is the address of a browser."""
    if endpoint:
        yield endpoint
        token = endpoint.rpartition("/")[2]
        if len(token) >= 8:  # noqa: PLR2004  (shorter ones are words)
            yield token


def _hide_path(match: re.Match[str]) -> str:
    return f"https://{match[1]}/{HIDDEN}"


def _hide_token(match: re.Match[str]) -> str:
    hidden = _TOKEN.search(match[0]) and match[0].casefold() not in _WORDS
    return HIDDEN if hidden else match[0]


def _headers(headers: Mapping[str, str], endpoint: str) -> Iterator[str]:
    lower = {name.casefold(): value for name, value in headers.items()}
    wns = sorted(name for name in lower if _WNS.fullmatch(name))
    for name in (*_NAMES, *wns, _LAST):
        value = lower.get(name, "").strip()
        if value:
            yield f"{name}: {_value(name, value, endpoint)}"


def _value(name: str, value: str, endpoint: str) -> str:
    if name == "apns-id" and _UUID.fullmatch(value):
        return value  # made by Apple for this message alone
    if name == "location" and "://" not in value:
        return HIDDEN
    return scrub(value, endpoint)
