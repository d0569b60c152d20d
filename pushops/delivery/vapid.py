"""VAPID tokens (RFC 8292): signed once for each key and origin and kept for hours, as Apple wants it."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Final
from urllib.parse import urlsplit

from py_vapid import Vapid02, VapidException

from pushops.errors import PushopsError
from pushops.subscriptions.hosts import host_fault, is_special_use
from pushops.subscriptions.keys import VapidKey

LIFETIME: Final = timedelta(hours=12)  # RFC 8292 allows 24: half of it leaves room for a clock that is wrong
RENEW_BEFORE: Final = timedelta(hours=1)
# Apple refuses whoever signs more often than once an hour; a refused token is worth one more.
SIGN_EVERY: Final = timedelta(hours=1)
RESIGN_EVERY: Final = timedelta(minutes=1)
TOKENS_MAX: Final = 10_000

# The library would take no https: subject with a path, and take localhost; `subject_fault` judges instead.
_CONF: Final = {"no-strict": True}
_MAILTO: Final = re.compile(r"mailto:[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@([^@?]+)", re.ASCII)
_EXPECTED: Final = "expected PUSHOPS_VAPID_SUBJECT to be a mailto: or https: URI that reaches you"


class UnknownVapidKeyError(PushopsError):
    """No key has this id: what is signed under it is held, not revoked, and goes out when the key is back."""

    label: ClassVar[str] = "unknown_vapid_key"
    reportable: ClassVar[bool] = False


class VapidSigningError(PushopsError):
    """A key is there and cannot sign, which start-up should have found. Says nothing of the key."""

    label: ClassVar[str] = "vapid_signing"


@dataclass(frozen=True, slots=True)
class _Token:
    header: str = field(repr=False)
    signed_at: datetime
    since: float  # of the same moment on the monotonic clock


class Tokens:
    """The Authorization header by key id and origin. Time is the caller's, the database's, since ours may be wrong."""

    def __init__(self, keys: Mapping[str, VapidKey], subject: str) -> None:
        self.signed = 0
        self._subject = subject
        self._signers = {key_id: Vapid02(key.private, conf=_CONF) for key_id, key in keys.items()}
        self._tokens: dict[tuple[str, str], _Token] = {}

    def header(self, key_id: str, origin: str, now: datetime) -> str:
        """``vapid t=...,k=...`` for one push service's origin (``https://host``).

        Raises UnknownVapidKeyError and VapidSigningError.
        """
        token = self._tokens.get((key_id, origin))
        if token is None or not self._good(token, now):
            token = self._renewed(key_id, origin, now)
        return token.header

    def renew(self, key_id: str, origin: str) -> None:
        """Sign anew at the next use, since this token was refused; at most once a minute, whoever asks."""
        token = self._tokens.get((key_id, origin))
        if token is not None and time.monotonic() - token.since >= RESIGN_EVERY.total_seconds():
            del self._tokens[key_id, origin]

    def _good(self, token: _Token, now: datetime) -> bool:
        age = now - token.signed_at
        if age < timedelta():  # the database's clock was set back: one signed ahead of it may be refused
            return -age < SIGN_EVERY
        return age < LIFETIME - RENEW_BEFORE

    def _renewed(self, key_id: str, origin: str, now: datetime) -> _Token:
        if len(self._tokens) >= TOKENS_MAX:
            del self._tokens[next(iter(self._tokens))]
        token = _Token(self._sign(key_id, origin, now), now, time.monotonic())
        self._tokens[key_id, origin] = token
        return token

    def _sign(self, key_id: str, origin: str, now: datetime) -> str:
        signer = self._signers.get(key_id)
        if signer is None:
            raise UnknownVapidKeyError(f"expected a VAPID key with the id {key_id!r}, found none")
        claims = {"aud": origin, "exp": int((now + LIFETIME).timestamp()), "sub": self._subject or None}
        try:
            header: str = signer.sign(claims)["Authorization"]
        except (VapidException, ValueError, TypeError) as error:
            raise VapidSigningError(f"expected the VAPID key {key_id!r} to sign, got {type(error).__name__}") from None
        self.signed += 1
        return header


def subject_fault(subject: str | None) -> str | None:
    """Why a subject is no use, in words that may be shown, or None. Apple refuses what other services let pass."""
    text = subject or ""
    if text.startswith("mailto:"):
        found = _MAILTO.fullmatch(text)
        host = found[1] if found else ""
    elif text.startswith("https://"):
        host = _https_host(text)
    else:
        return f"{_EXPECTED}, got {'one with another scheme' if text else 'nothing'}"
    if not host:
        return f"{_EXPECTED}, got one without an address"
    return _host_fault(host)


def _host_fault(host: str) -> str | None:
    if is_special_use(host):
        return f"{_EXPECTED}, got one at {host}, which is nobody's"
    if "." not in host or host_fault(host) is not None:
        return f"{_EXPECTED}, got one whose host is no public name in lower case"
    return None


def _https_host(text: str) -> str:
    try:
        return urlsplit(text).netloc
    except ValueError:
        return ""
