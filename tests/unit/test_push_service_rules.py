"""The push service's rules, without a network: endpoints, tokens, scripts, its library, its memory."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from pushops.errors import PushopsError
from pushops.sandbox.push import rules
from pushops.sandbox.push.answers import REFUSALS, named, names
from pushops.sandbox.push.config import read_or_make
from pushops.sandbox.push.counts import Counts
from pushops.sandbox.push.inbox import Inbox, Message, new_id
from pushops.sandbox.push.outages import OUTAGES, scripts_of
from pushops.sandbox.push.script import Handshake, parse, place
from pushops.sandbox.push.subscribers import BROWSERS, POOL, UNBOUND, Subscribers, fingerprint
from pushops.sandbox.push.tls import CA_FILE, make_certificates
from pushops.sandbox.push.vapid import Claims, Flaw, judge, read, subject_is_real
from pushops.sandbox.push.vendors import CERTIFIED, HOST_PATTERNS, Vendor, core_of, decode, path_of, vendor_of
from pushops.subscriptions.hosts import DEFAULT_RULES, match
from tests.pushing import Sender

SECRET = b"a secret of thirty-two bytes, no"
ORIGIN = "https://fcm.googleapis.com"


# Endpoints


@given(st.binary(min_size=32, max_size=32), st.sampled_from(list(Vendor)))
def test_an_endpoint_says_what_it_was_made_of_and_no_byte_may_change(core: bytes, vendor: Vendor) -> None:
    path = path_of(vendor, core)
    assert core_of(vendor, path) == core
    for place_ in (len(path) - 1, len(path) // 2):
        other = "A" if path[place_] != "A" else "B"
        assert core_of(vendor, path[:place_] + other + path[place_ + 1 :]) is None
    assert core_of(vendor, path + "A") is None


@given(st.text(max_size=80), st.sampled_from(list(Vendor)))
def test_any_other_path_is_nobodys(path: str, vendor: Vendor) -> None:
    assert core_of(vendor, path) is None


@pytest.mark.parametrize("vendor", list(Vendor))
def test_what_is_issued_is_found_again_by_any_process_that_knows_the_secret(vendor: Vendor) -> None:
    key = Sender().public
    issued = list(Subscribers(SECRET).issue(vendor, POOL + 3, key))
    assert len({each["endpoint"] for each in issued}) == POOL + 3
    assert len({each["keys"]["p256dh"] for each in issued}) == POOL
    for each in issued:
        found = Subscribers(SECRET).find_url(each["endpoint"])
        assert found is not None
        assert found.fingerprint == fingerprint(decode(key))
        assert decode(each["keys"]["auth"]) == Subscribers(SECRET).auth(found.core)
        assert Subscribers(b"another secret").find_url(each["endpoint"]) is None


def test_distinct_keys_are_distinct_and_none_is_a_browsers() -> None:
    issued = list(Subscribers(SECRET).issue(Vendor.FCM, 200, distinct_keys=True))
    assert len({each["keys"]["p256dh"] for each in issued}) == 200
    found = [Subscribers(SECRET).find_url(each["endpoint"]) for each in issued]
    assert all(one is not None and POOL <= one.key < BROWSERS for one in found)


def test_every_issued_endpoint_is_one_that_intake_allows() -> None:
    for vendor in Vendor:
        endpoint = next(Subscribers(SECRET).issue(vendor, 1))["endpoint"]
        host = endpoint.split("/")[2]
        rule = match(host, DEFAULT_RULES)
        assert rule is not None
        assert rule.service == vendor
        assert vendor_of(host) is vendor


def test_the_hosts_that_are_served_are_those_that_intake_knows() -> None:
    assert set(HOST_PATTERNS) == {rule.pattern for rule in DEFAULT_RULES if rule.refused is None}


@pytest.mark.parametrize("host", ["evil.example", "fcm.googleapis.com.evil.example", "push.apple.com", ""])
def test_other_hosts_are_not_served(host: str) -> None:
    assert vendor_of(host) is None


# VAPID


NOW = 1_800_000_000.0
GOOD = Claims(ORIGIN, NOW + 3600, "mailto:a@pushops.dev", b"12345678")


@pytest.mark.parametrize(
    ("claims", "bound", "expected"),
    [
        (GOOD, UNBOUND, None),
        (GOOD, b"12345678", None),
        (GOOD, b"87654321", Flaw.MISMATCH),
        (Claims(ORIGIN + "/", NOW + 1, GOOD.subject, UNBOUND), UNBOUND, Flaw.AUDIENCE),
        (Claims(ORIGIN, NOW, GOOD.subject, UNBOUND), UNBOUND, Flaw.EXPIRED),
        (Claims(ORIGIN, NOW + 86_400, GOOD.subject, UNBOUND), UNBOUND, None),
        (Claims(ORIGIN, NOW + 86_401, GOOD.subject, UNBOUND), UNBOUND, Flaw.TOO_LONG),
        (Claims(ORIGIN, NOW + 1, "", UNBOUND), UNBOUND, Flaw.SUBJECT),
    ],
)
def test_claims_are_held_against_origin_clock_and_key(claims: Claims, bound: bytes, expected: Flaw | None) -> None:
    assert judge(claims, ORIGIN, Vendor.FCM, bound, NOW) is expected


def test_a_header_is_read_in_either_order_and_its_signature_checked() -> None:
    sender = Sender()
    header = sender.authorization(ORIGIN + "/fcm/send/x", exp=int(NOW))
    scheme, token, key = header.replace(",", "").split(" ")
    claims = read(header)
    assert claims == read(f"{scheme.upper()} {key},{token}")
    assert isinstance(claims, Claims)
    assert (claims.audience, claims.expires) == (ORIGIN, NOW)
    assert read(header.replace(sender.public, Sender().public)) is Flaw.SIGNATURE
    assert read(header.replace(sender.public, "AAAA")) is Flaw.KEY
    assert read(f"WebPush {token[2:]}") is Flaw.MALFORMED


@pytest.mark.parametrize(
    ("subject", "apple", "others"),
    [
        ("mailto:ops@pushops.dev", True, True),
        ("https://pushops.dev/contact", True, True),
        ("mailto:ops@localhost", False, True),
        ("https://app.local", False, True),
        ("mailto:ops@thing.invalid", False, True),
        ("ops@pushops.dev", False, False),
        ("mailto:local@pushops.dev", True, True),
    ],
)
def test_apple_looks_at_the_subjects_host(subject: str, apple: bool, others: bool) -> None:
    assert subject_is_real(subject, Vendor.APPLE) is apple
    assert subject_is_real(subject, Vendor.FCM) is others


# The library


def test_every_refusal_is_in_the_library() -> None:
    for vendor in Vendor:
        assert {flaw: named(REFUSALS[vendor][flaw]).status >= 400 for flaw in Flaw} == dict.fromkeys(Flaw, True)
        assert all(named(name).status >= 400 for name in rules.PROBLEMS[vendor].values())


def test_mozillas_answers_are_autopushs_json_and_apples_name_a_reason() -> None:
    for name in names():
        if name.startswith("mozilla-"):
            said = json.loads(named(name).body)
            assert set(said) == {"code", "errno", "error", "message", "more_info"}
            assert said["code"] == named(name).status
        if name.startswith("apple-"):
            assert set(json.loads(named(name).body)) == {"reason"}


def test_a_star_is_each_vendors_own() -> None:
    assert named("*-410", Vendor.APPLE) is named("apple-410")
    with pytest.raises(PushopsError, match="library of answers"):
        named("*-410")


@pytest.mark.parametrize("name", sorted(OUTAGES))
def test_every_outage_can_be_staged(name: str) -> None:
    for described in scripts_of(name):
        script = parse(described, lambda _: 0)
        for vendor in Vendor:
            if script.answers and not script.hosts:
                assert script.answer(0, vendor) is not None


# Scripts


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "x", "shar": 1},
        {"name": "x", "fault": "explode"},
        {"name": "x", "answer": "fcm-4100"},
        {"name": "x", "answer": {"body": "no status"}},
        {"name": "x", "answer": 410},
    ],
)
def test_a_wrong_script_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PushopsError, match="expected"):
        parse(wrong, lambda _: 0)


def test_places_are_stable_and_even() -> None:
    assert place("mix", 1) == place("mix", 1) != place("other", 1)
    struck = sum(place("mix", number) < 0.02 for number in range(20_000))
    assert 330 < struck < 470  # 400, within 3.5 standard deviations


def test_a_handshake_script_leaves_requests_alone() -> None:
    script = parse({"name": "tls", "host": "*.push.apple.com", "handshake": "stranger"}, lambda _: 0)
    assert script.handshake is Handshake.STRANGER
    assert not script.covers("web.push.apple.com", 1, 1, kept=False)
    assert script.covers_host("web.push.apple.com")
    assert not script.covers_host("push.apple.com")


# Rules


@pytest.mark.parametrize("policy", [None, "cache", "no-cache"])
@pytest.mark.parametrize("ttl", ["0", "1"])
def test_wns_wants_ttl_and_cache_policy_to_agree(policy: str | None, ttl: str) -> None:
    headers = {"ttl": ttl} | ({} if policy is None else {"x-wns-cache-policy": policy})
    agree = (policy != "no-cache") == (ttl != "0")
    assert rules.problem(Vendor.WNS, headers, 0) is (None if agree else rules.Problem.CACHE_POLICY)
    assert rules.problem(Vendor.FCM, headers, 0) is None


# Memory


def message(serial: int, *, topic: str | None = None, expires: float = NOW + 60) -> Message:
    return Message(new_id(), serial, b"x", False, topic, "normal", 60, expires)


def test_the_inbox_keeps_one_of_a_topic_and_forgets_what_has_expired() -> None:
    inbox = Inbox()
    first, second, other, old = message(1, topic="t"), message(1, topic="t"), message(2, topic="t"), message(1)
    assert [inbox.put(each) for each in (first, second, other)] == [None, first.id, None]
    inbox.put(Message(old.id, 1, b"", False, None, "normal", 0, NOW))
    assert inbox.of(1, NOW) == [second]
    assert len(inbox) == 2
    assert inbox.take(second.id) == second
    assert inbox.take(second.id) is None
    assert inbox.put(message(1, topic="t")) is None


def test_the_inbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pushops.sandbox.push.inbox.MOST", 3)
    inbox = Inbox()
    kept = [message(number) for number in range(5)]
    for each in kept:
        inbox.put(each)
    assert len(inbox) == 3
    assert inbox.of(0, NOW) == []
    assert inbox.of(4, NOW) == [kept[4]]


def test_only_the_same_message_of_the_same_endpoint_is_a_double() -> None:
    counts = Counts()
    for serial, text in ((1, "m"), (2, "m"), (1, "n"), (1, "m"), (1, "m")):
        counts.was_accepted(serial, text)
    assert counts.totals["doubled"] == 2
    assert (counts.times_accepted(1), counts.times_accepted(1, "m"), counts.times_accepted(2, "m")) == (4, 3, 1)
    assert list(counts.doubles.values()) == [(1, "m", 3)]


def test_counting_a_hundred_thousand_takes_a_moment() -> None:
    counts, began = Counts(), time.monotonic()
    for number in range(100_000):
        counts.was_accepted(number % 20_000, "m")
    assert time.monotonic() - began < 5


# Its folder


def test_certificates_name_every_host_and_are_made_once(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    before = (tmp_path / CA_FILE).read_bytes()
    make_certificates(tmp_path)
    assert (tmp_path / CA_FILE).read_bytes() == before
    pem = (tmp_path / "good.pem").read_bytes()
    certificate = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(san.get_values_for_type(x509.DNSName)) == set(CERTIFIED)
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_the_secret_stays_when_something_else_changes(tmp_path: Path) -> None:
    first = read_or_make(tmp_path)
    second = read_or_make(tmp_path, port=4430, decrypt=False)
    assert (second.secret, second.token, second.port, second.decrypt) == (first.secret, first.token, 4430, False)
    assert read_or_make(tmp_path) == second
