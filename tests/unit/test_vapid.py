"""Tokens: whose they are, how long they are kept, when they are signed anew; and subjects that are no use."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from py_vapid import Vapid02

from pushops.delivery import vapid
from pushops.delivery.vapid import Tokens, UnknownVapidKeyError, VapidSigningError, subject_fault
from pushops.subscriptions.keys import generate_vapid_key

FCM = "https://fcm.googleapis.com"
MOZILLA = "https://updates.push.services.mozilla.com"
SUBJECT = "mailto:push@pushops.dev"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEYS = {"one": generate_vapid_key(), "two": generate_vapid_key()}


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(KEYS, SUBJECT)


def claims(header: str) -> dict[str, Any]:
    payload = header.removeprefix("vapid t=").split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def test_a_token_is_for_one_origin_under_one_key_for_twelve_hours(tokens: Tokens) -> None:
    header = tokens.header("one", FCM, NOW)
    assert claims(header) == {"aud": FCM, "sub": SUBJECT, "exp": int((NOW + 12 * HOUR).timestamp())}
    assert header.endswith(f",k={KEYS['one'].public_text}")
    assert Vapid02.verify(header)


def test_two_origins_do_not_share_claims(tokens: Tokens) -> None:
    headers = {(key, origin): tokens.header(key, origin, NOW) for key in KEYS for origin in (FCM, MOZILLA)}
    assert {(key, claims(header)["aud"]) for (key, _), header in headers.items()} == set(headers)
    assert tokens.signed == 4


@pytest.mark.parametrize(("later", "signed"), [(0, 1), (1, 1), (10.9, 1), (11, 2), (30, 2)])
def test_a_token_is_kept_until_less_than_an_hour_is_left(tokens: Tokens, later: float, signed: int) -> None:
    tokens.header("one", FCM, NOW)
    header = tokens.header("one", FCM, NOW + later * HOUR)
    assert tokens.signed == signed
    assert claims(header)["exp"] >= (NOW + later * HOUR + HOUR).timestamp()


def test_a_database_that_set_its_clock_back_gets_a_token_for_its_own_time(tokens: Tokens) -> None:
    tokens.header("one", FCM, NOW)
    tokens.header("one", FCM, NOW - HOUR / 2)
    assert tokens.signed == 1
    assert claims(tokens.header("one", FCM, NOW - 24 * HOUR))["exp"] == int((NOW - 12 * HOUR).timestamp())


def test_a_refused_token_is_signed_anew_once_a_minute_at_most(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1_000.0
    monkeypatch.setattr(vapid.time, "monotonic", lambda: clock)
    for elapsed, signed in [(0, 1), (59, 1), (61, 2), (62, 2), (119, 2), (122, 3)]:
        clock = 1_000.0 + elapsed
        tokens.renew("one", FCM)
        tokens.header("one", FCM, NOW)
        assert tokens.signed == signed


def test_renewing_leaves_other_tokens_alone(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(vapid.time, "monotonic", lambda: clock)
    first = tokens.header("two", FCM, NOW)
    tokens.renew("one", FCM)
    clock = 3_600.0
    tokens.renew("one", FCM)
    tokens.renew("two", MOZILLA)
    assert tokens.header("two", FCM, NOW) is first


def test_the_oldest_tokens_make_room(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vapid, "TOKENS_MAX", 2)
    for origin in ("https://a.example", "https://b.example", "https://c.example"):
        tokens.header("one", origin, NOW)
    assert len(tokens._tokens) == 2
    tokens.header("one", "https://c.example", NOW)
    assert tokens.signed == 3


@pytest.mark.parametrize("key_id", ["three", ""])
def test_a_key_that_is_not_held_is_an_error_of_its_own(tokens: Tokens, key_id: str) -> None:
    with pytest.raises(UnknownVapidKeyError, match="found none"):
        tokens.header(key_id, FCM, NOW)


@pytest.mark.parametrize(("subject", "origin"), [("", FCM), (SUBJECT, "fcm"), (SUBJECT, "")])
def test_what_cannot_be_signed_is_an_error_of_its_own(subject: str, origin: str) -> None:
    with pytest.raises(VapidSigningError, match="VapidException"):
        Tokens(KEYS, subject).header("one", origin, NOW)


GOOD = [
    SUBJECT,
    "mailto:ops+push@mail.pushops.co.uk",
    "https://pushops.dev",
    "https://www.pushops.dev/contact",
    "mailto:a@b.museum",
]
BAD = {
    None: "nothing",
    "": "nothing",
    "push@pushops.dev": "another scheme",
    "http://pushops.dev": "another scheme",
    "tel:+123": "another scheme",
    "MAILTO:push@pushops.dev": "another scheme",
    "mailto:": "without an address",
    "mailto:push": "without an address",
    "mailto:@pushops.dev": "without an address",
    "mailto:push@": "without an address",
    "mailto:push@pushops.dev?subject=x": "without an address",
    "mailto: push@pushops.dev": "without an address",
    "https://": "without an address",
    "mailto:ops@localhost": "nobody's",
    "mailto:ops@host.localhost": "nobody's",
    "mailto:you@example.com": "nobody's",
    "mailto:you@mail.example.org": "nobody's",
    "mailto:ops@printer.local": "nobody's",
    "mailto:ops@push.invalid": "nobody's",
    "mailto:ops@push.test": "nobody's",
    "https://localhost": "nobody's",
    "https://example.com/contact": "nobody's",
    "mailto:ops@intranet": "no public name",
    "mailto:ops@127.0.0.1": "no public name",
    "mailto:ops@[::1]": "no public name",
    "https://127.0.0.1": "no public name",
    "https://[::1]": "no public name",
    "https://pushops.dev:8443": "no public name",
    "mailto:a@pushops.dev,b@pushops.dev": "without an address",
}


@pytest.mark.parametrize("subject", GOOD)
def test_a_subject_that_reaches_somebody_is_accepted_and_signs(subject: str) -> None:
    assert subject_fault(subject) is None
    assert claims(Tokens(KEYS, subject).header("one", FCM, NOW))["sub"] == subject


@pytest.mark.parametrize("subject", BAD)
def test_a_subject_that_apple_would_refuse_is_refused(subject: str | None) -> None:
    fault = subject_fault(subject)
    assert fault is not None
    assert fault.startswith("expected PUSHOPS_VAPID_SUBJECT")
    assert BAD[subject] in fault
