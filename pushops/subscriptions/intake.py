"""The door: a browser's ``PushSubscription.toJSON()`` comes in, a checked subscription or a refusal goes out.

After it nobody checks a key length again. Pure: no clock, no network, no settings.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

from pushops.subscriptions import base64url
from pushops.subscriptions.endpoint import Endpoint, IntakeRules, parse_endpoint, read_endpoint
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.material import APPLICATION_SERVER_KEY, P256DH, check_point, read_auth, read_point
from pushops.subscriptions.rejection import Advice, Reason, Rejected, RejectionError, describe, rejection, text_of

__all__ = [
    "Advice",
    "Endpoint",
    "IntakeRules",
    "NewSubscription",
    "Reason",
    "Rejected",
    "parse",
    "parse_application_server_key",
    "parse_endpoint",
]

_CONTENT_ENCODING: Final = "aes128gcm"
# 2001 to 2099 in milliseconds: seconds since the epoch lie far below, and no later date means anything.
_EARLIEST_MS: Final = 1e12
_LATEST_MS: Final = 4.1e12


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A registration that was checked in full. What names or opens it is hidden from ``repr``.

    ``p256dh`` is canonical base64url (87 characters), ``auth`` 16 raw bytes, ``expiration_time`` UTC;
    ``expiration_ignored`` says that a number came which is no plausible time (to be counted).
    ``application_server_key`` is the public key that the client subscribed with, or None if it did not say.
    """

    endpoint: str = field(repr=False)
    endpoint_hash: bytes = field(repr=False)
    push_service: str
    host: str
    p256dh: str = field(repr=False)
    auth: bytes = field(repr=False)
    content_encoding: str
    expiration_time: datetime | None
    expiration_ignored: bool
    application_server_key: bytes | None = None


def parse(payload: object, rules: IntakeRules, application_server_key: object = None) -> NewSubscription | Rejected:
    """Reads ``toJSON()``'s object, unknown members ignored. Total: any Python value gives one of the two.

    ``contentEncoding`` is no member of it, but clients add it; absent or null means aes128gcm.
    """
    try:
        return _read(payload, rules, application_server_key)
    except RejectionError as refusal:
        return refusal.rejected


def parse_application_server_key(value: object) -> bytes | Rejected:
    """The VAPID public key that a client subscribed with, 65 bytes, from base64 in either alphabet or raw. Total."""
    try:
        return _read_application_server_key(value)
    except RejectionError as refusal:
        return refusal.rejected


def _read(payload: object, rules: IntakeRules, application_server_key: object) -> NewSubscription:
    members = _members("subscription", payload)
    endpoint = read_endpoint(members.get("endpoint"), rules)
    p256dh, auth = _read_keys(members.get("keys"))
    encoding = _read_content_encoding(members.get("contentEncoding"))
    expiration_time, expiration_ignored = _read_expiration(members.get("expirationTime"))
    return NewSubscription(
        endpoint=endpoint.text,
        endpoint_hash=endpoint_hash(endpoint.text),
        push_service=endpoint.push_service,
        host=endpoint.host,
        p256dh=base64url.encode(p256dh),
        auth=auth,
        content_encoding=encoding,
        expiration_time=expiration_time,
        expiration_ignored=expiration_ignored,
        application_server_key=(
            None if application_server_key is None else _read_application_server_key(application_server_key)
        ),
    )


def _members(name: str, value: object) -> dict[str, object]:
    """The members with plain string names; foreign keys are never compared, since their ``__eq__`` is theirs."""
    if not issubclass(type(value), dict):
        raise rejection(name, Reason.NOT_AN_OBJECT, "an object", describe(value))
    items = dict.items(cast("dict[Any, object]", value))
    return {key: member for key, member in items if type(key) is str}


def _read_keys(value: object) -> tuple[bytes, bytes]:
    if value is None:
        raise rejection("keys", Reason.MISSING_KEYS, "an object with p256dh and auth", "nothing")
    keys = _members("keys", value)
    if keys.get("p256dh") is None:
        raise rejection("keys.p256dh", Reason.MISSING_P256DH, "a base64url string", "nothing")
    if keys.get("auth") is None:
        raise rejection("keys.auth", Reason.MISSING_AUTH, "a base64url string", "nothing")
    return read_point(P256DH, keys["p256dh"]), read_auth(keys["auth"])


def _read_content_encoding(value: object) -> str:
    encoding = _CONTENT_ENCODING if value is None else text_of(value)
    if encoding == _CONTENT_ENCODING:
        return encoding
    reason = Reason.AESGCM_ENCODING if encoding == "aesgcm" else Reason.UNSUPPORTED_CONTENT_ENCODING
    raise rejection("contentEncoding", reason, f"'{_CONTENT_ENCODING}'", describe(value))


def _read_expiration(value: object) -> tuple[datetime | None, bool]:
    """The time, and whether a number was ignored: it is advice, so a wrong one never costs the subscription."""
    if value is None:
        return None, False
    if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
        raise rejection("expirationTime", Reason.BAD_EXPIRATION_TIME, "null or a finite number", describe(value))
    if not _EARLIEST_MS <= value <= _LATEST_MS:
        return None, True
    return datetime.fromtimestamp(value / 1000, UTC), False


def _read_application_server_key(value: object) -> bytes:
    if type(value) is bytes or type(value) is bytearray:
        return check_point(APPLICATION_SERVER_KEY, bytes(value))
    return read_point(APPLICATION_SERVER_KEY, value)
