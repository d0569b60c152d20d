"""What a vendor asks of a push message beside its signature, and the words it refuses one with."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pushops.sandbox.push.vendors import Vendor

BODY_MAX: Final = 4096  # RFC 8030 section 7.2: what a service must take at least, and what they take
WNS_BODY_MAX: Final = 5000
LONGEST_TTL: Final = {
    Vendor.FCM: 2_419_200,  # 28 days
    Vendor.MOZILLA: 2_592_000,  # 30 days
    Vendor.APPLE: 2_592_000,
    Vendor.WNS: 2_592_000,
}
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")  # RFC 8030 section 5.4
_URGENCIES: Final = frozenset({"very-low", "low", "normal", "high"})


class Problem(StrEnum):
    """What may be wrong with a request's own headers or body."""

    NO_TTL = "no_ttl"
    NEGATIVE_TTL = "negative_ttl"
    ENCODING = "encoding"
    TOPIC = "topic"
    URGENCY = "urgency"
    SIZE = "size"
    CACHE_POLICY = "cache_policy"


PROBLEMS: Final[Mapping[Vendor, Mapping[Problem, str]]] = {
    Vendor.FCM: {
        Problem.NO_TTL: "fcm-400-InvalidTtlParameter",
        Problem.NEGATIVE_TTL: "fcm-400-InvalidTtlParameter",
        Problem.ENCODING: "fcm-400-encoding",
        Problem.TOPIC: "fcm-400-topic",
        Problem.SIZE: "fcm-413",
    },
    Vendor.MOZILLA: {
        Problem.NO_TTL: "mozilla-400-111",
        Problem.NEGATIVE_TTL: "mozilla-400-114",
        Problem.ENCODING: "mozilla-400-110",
        Problem.TOPIC: "mozilla-400-113",
        Problem.SIZE: "mozilla-413",
    },
    Vendor.APPLE: {
        Problem.NO_TTL: "apple-400-BadTtl",
        Problem.NEGATIVE_TTL: "apple-400-BadTtl",
        Problem.ENCODING: "apple-400-BadWebPushRequest",
        Problem.TOPIC: "apple-400-BadWebPushTopic",
        Problem.URGENCY: "apple-400-BadUrgency",
        Problem.SIZE: "apple-413",
    },
    Vendor.WNS: {
        Problem.NO_TTL: "wns-400",
        Problem.NEGATIVE_TTL: "wns-400",
        Problem.ENCODING: "wns-400",
        Problem.TOPIC: "wns-400",
        Problem.SIZE: "wns-413",
        Problem.CACHE_POLICY: "wns-400-cache-policy",
    },
}


def problem(vendor: Vendor, headers: Mapping[str, str], size: int) -> Problem | None:
    """The first thing that this vendor would refuse; names of headers are in lower case."""
    if size > (WNS_BODY_MAX if vendor is Vendor.WNS else BODY_MAX):
        return Problem.SIZE
    ttl = read_ttl(headers)
    if ttl is None:
        return Problem.NO_TTL
    if ttl < 0:
        return Problem.NEGATIVE_TTL
    if size and headers.get("content-encoding") != "aes128gcm":
        return Problem.ENCODING
    return _of_headers(vendor, headers, ttl)


def _of_headers(vendor: Vendor, headers: Mapping[str, str], ttl: int) -> Problem | None:
    topic = headers.get("topic")
    if topic is not None and not topic_is_fine(vendor, topic):
        return Problem.TOPIC
    if vendor is Vendor.APPLE and headers.get("urgency", "normal") not in _URGENCIES:
        return Problem.URGENCY
    # Without the header a channel caches, so that a TTL of 0 is refused then too.
    caches = headers.get("x-wns-cache-policy", "cache") == "cache"
    return Problem.CACHE_POLICY if vendor is Vendor.WNS and caches != (ttl > 0) else None


def topic_is_fine(vendor: Vendor, topic: str) -> bool:
    """Apple decodes the topic, and base64 of no length leaves one character over (seen in the field)."""
    return _TOPIC.fullmatch(topic) is not None and not (vendor is Vendor.APPLE and len(topic) % 4 == 1)


def read_ttl(headers: Mapping[str, str]) -> int | None:
    try:
        return int(headers["ttl"])
    except (KeyError, ValueError):
        return None
