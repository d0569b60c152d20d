"""What a refused registration says: which field, what was expected, what came, and what the client should do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Advice(StrEnum):
    """What the client should do with the subscription that its browser holds."""

    KEEP = "keep"
    RESUBSCRIBE = "resubscribe"
    UNSUBSCRIBE = "unsubscribe"


class Reason(StrEnum):
    """Metric labels of refusals; one for each thing an operator would look up on its own."""

    NOT_AN_OBJECT = "not_an_object"
    NOT_A_STRING = "not_a_string"
    MISSING_ENDPOINT = "missing_endpoint"
    MISSING_KEYS = "missing_keys"
    MISSING_P256DH = "missing_p256dh"
    MISSING_AUTH = "missing_auth"
    ENDPOINT_TOO_LONG = "endpoint_too_long"
    NOT_ASCII = "endpoint_not_ascii"
    WHITE_SPACE = "endpoint_white_space"
    CONTROL_CHARACTER = "endpoint_control_character"
    BACKSLASH = "endpoint_backslash"
    FRAGMENT = "endpoint_fragment"
    NOT_HTTPS = "not_https"
    USER_INFO = "user_info"
    BAD_PORT = "bad_port"
    NO_HOST = "no_host"
    BAD_HOST = "bad_host"
    HOST_NOT_LOWER_CASE = "host_not_lower_case"
    TRAILING_DOT_HOST = "trailing_dot_host"
    IP_LITERAL = "ip_literal"
    SPECIAL_USE_HOST = "special_use_host"
    DEAD_HOST = "dead_host"
    DEAD_SERVICE = "dead_service"
    UNKNOWN_PUSH_SERVICE = "unknown_push_service"
    BAD_BASE64 = "bad_base64"
    BAD_BASE64_PADDING = "bad_base64_padding"
    MIXED_BASE64_ALPHABET = "mixed_base64_alphabet"
    BAD_P256DH_LENGTH = "bad_p256dh_length"
    BAD_P256DH_POINT = "bad_p256dh_point"
    BAD_AUTH_LENGTH = "bad_auth_length"
    AESGCM_ENCODING = "aesgcm_encoding"
    UNSUPPORTED_CONTENT_ENCODING = "unsupported_content_encoding"
    BAD_EXPIRATION_TIME = "bad_expiration_time"
    BAD_APPLICATION_SERVER_KEY_LENGTH = "bad_application_server_key_length"
    BAD_APPLICATION_SERVER_KEY_POINT = "bad_application_server_key_point"
    UNKNOWN_VAPID_KEY = "unknown_vapid_key"
    ERASED = "erased"


# Damaged on the way or bound to a dead service: a fresh subscription mends it. A browser that hands out
# `*.invalid` has no push service: subscribing again gives the same name, for ever. All else is left alone,
# since the fault is the caller's request or our configuration, and a good subscription should outlive both.
_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        Reason.NOT_ASCII: Advice.RESUBSCRIBE,
        Reason.WHITE_SPACE: Advice.RESUBSCRIBE,
        Reason.CONTROL_CHARACTER: Advice.RESUBSCRIBE,
        Reason.DEAD_SERVICE: Advice.RESUBSCRIBE,
        Reason.MISSING_KEYS: Advice.RESUBSCRIBE,
        Reason.MISSING_P256DH: Advice.RESUBSCRIBE,
        Reason.MISSING_AUTH: Advice.RESUBSCRIBE,
        Reason.BAD_BASE64: Advice.RESUBSCRIBE,
        Reason.BAD_BASE64_PADDING: Advice.RESUBSCRIBE,
        Reason.MIXED_BASE64_ALPHABET: Advice.RESUBSCRIBE,
        Reason.BAD_P256DH_LENGTH: Advice.RESUBSCRIBE,
        Reason.BAD_P256DH_POINT: Advice.RESUBSCRIBE,
        Reason.BAD_AUTH_LENGTH: Advice.RESUBSCRIBE,
        Reason.UNKNOWN_VAPID_KEY: Advice.RESUBSCRIBE,
        Reason.DEAD_HOST: Advice.UNSUBSCRIBE,
        Reason.ERASED: Advice.UNSUBSCRIBE,
    },
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refusal as a value: safe to log, count and send back, since ``got`` holds a type, a length or a host at most.

    ``field`` is the path in the request ("keys.auth"); ``reason`` is a metric label.
    """

    field: str
    reason: str
    expected: str
    got: str
    advice: Advice

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, got {self.got} ({self.reason})"


class RejectionError(Exception):
    """Carries a ``Rejected`` from the reader that found it to the parser that returns it; leaves no module."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected)
        self.rejected = rejected


def rejected(field: str, reason: str, expected: str, got: str) -> Rejected:
    return Rejected(field, reason, expected, got, _ADVICE.get(reason, Advice.KEEP))


def rejection(field: str, reason: str, expected: str, got: str) -> RejectionError:
    return RejectionError(rejected(field, reason, expected, got))


# Compared with "is": a look-up would hash the value's class, and a metaclass may refuse that.
_NAMES: Final = (
    (type(None), "nothing"),
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (dict, "an object"),
    (list, "an array"),
    (bytes, "bytes"),
)


def describe(value: object) -> str:
    """The type of a value and, for a string, its length: the most that may be said of what may be a secret."""
    text = text_of(value)
    if text is not None:
        return f"a string of {len(text)} characters"
    return next((name for kind, name in _NAMES if type(value) is kind), "a value of another type")


def text_of(value: object) -> str | None:
    """An exact ``str``, or None for anything else.

    ``isinstance`` would ask the value's own ``__class__``, and a subclass could lie in every method.
    """
    return str.__str__(value) if issubclass(type(value), str) else None
