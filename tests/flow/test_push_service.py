"""The sandbox's push service, asked over libcurl as a sender asks: it verifies, decrypts, stores and counts."""

import socket
import time

import pycurl
import pytest

from pushops.errors import PushopsError
from pushops.sandbox.push import PushService
from tests.pushing import Sender, push, push_service, request

VENDORS = ("fcm", "mozilla", "apple", "wns")


@pytest.fixture
def service(pushed_to: PushService) -> PushService:
    return pushed_to


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender()


@pytest.mark.parametrize("http1", [False, True])
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_message_is_verified_decrypted_and_kept(
    service: PushService, sender: Sender, vendor: str, http1: bool
) -> None:
    subscription = service.issue(vendor, 1, sender.public)[0]
    got = push(service, subscription, b'{"message_id": "m1"}', sender, http1=http1, Topic="a-topic_12", Urgency="low")
    assert (got.status, got.error) == (201, 0)
    assert got.http_version == (pycurl.CURL_HTTP_VERSION_1_1 if http1 else pycurl.CURL_HTTP_VERSION_2_0)
    kept = service.messages(subscription["endpoint"])
    assert [(m["text"], m["topic"], m["urgency"], m["ttl"]) for m in kept] == [
        ('{"message_id": "m1"}', "a-topic_12", "low", 60)
    ]
    assert service.accepted([subscription["endpoint"]], "m1") == [1]


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_acceptance_has_the_vendors_own_headers(service: PushService, sender: Sender, vendor: str) -> None:
    got = push(service, service.issue(vendor)[0], sender=sender, TTL="9999999", X_WNS_Cache_Policy="cache")
    expected = {"fcm": "location", "mozilla": "location", "apple": "apns-id", "wns": "x-wns-status"}
    assert expected[vendor] in got.headers
    assert "date" in got.headers
    if vendor == "mozilla":
        assert got.headers["ttl"] == "2592000"


@pytest.mark.parametrize(
    ("claims", "statuses", "texts"),
    [
        ({"aud": "https://other.example"}, (403, 401, 403, 401), ("aud claim", "audience", "BadJwtToken", "")),
        ({"exp": 1_000_000_000}, (403, 401, 403, 401), ("token has expired", "Expired", "BadJwtToken", "")),
        ({"exp": int(time.time()) + 90_000}, (403, 401, 403, 401), ("24 hours", "too long", "BadJwtToken", "")),
        ({"sub": "ops"}, (403, 401, 403, 401), ("invalid JWT", "109", "BadJwtToken", "")),
    ],
)
def test_a_wrong_claim_is_refused_in_the_vendors_words(
    service: PushService, sender: Sender, claims: dict[str, object], statuses: tuple[int, ...], texts: tuple[str, ...]
) -> None:
    for vendor, status, text in zip(VENDORS, statuses, texts, strict=True):
        subscription = service.issue(vendor, 1, sender.public)[0]
        header = sender.authorization(subscription["endpoint"], **claims)
        got = push(service, subscription, sender=sender, Authorization=header)
        assert got.status == status
        assert text in got.body.decode()
    assert service.counts()["accepted"] == 0


def test_only_apple_refuses_a_subject_at_localhost(service: PushService, sender: Sender) -> None:
    for vendor in VENDORS:
        subscription = service.issue(vendor)[0]
        header = sender.authorization(subscription["endpoint"], sub="mailto:ops@localhost")
        got = push(service, subscription, sender=sender, Authorization=header)
        assert got.status == (403 if vendor == "apple" else 201)


def test_another_key_than_the_subscriptions_is_a_mismatch(service: PushService, sender: Sender) -> None:
    statuses = [push(service, service.issue(vendor, 1, Sender().public)[0], sender=sender) for vendor in VENDORS]
    assert [got.status for got in statuses] == [403, 401, 400, 403]
    assert b"do not correspond" in statuses[0].body
    assert b"VAPID public key mismatch" in statuses[1].body
    assert b"VapidPkHashMismatch" in statuses[2].body


def test_a_signature_of_another_key_is_refused(service: PushService, sender: Sender) -> None:
    subscription = service.issue("fcm")[0]
    header = sender.authorization(subscription["endpoint"]).replace(sender.public, Sender().public)
    assert push(service, subscription, Authorization=header).status == 403


@pytest.mark.parametrize(
    ("vendor", "headers", "status"),
    [
        ("fcm", {"TTL": None}, 400),
        ("mozilla", {"TTL": "-1"}, 400),
        ("apple", {"Content_Encoding": "aesgcm"}, 400),
        ("mozilla", {"Topic": "x" * 33}, 400),
        ("apple", {"Topic": "collie-update"}, 400),
        ("fcm", {"Topic": "collie-update"}, 201),
        ("wns", {"TTL": "0"}, 400),
        ("wns", {"TTL": "0", "X_WNS_Cache_Policy": "no-cache"}, 201),
        ("wns", {"X_WNS_Cache_Policy": "no-cache"}, 400),
        ("fcm", {"Authorization": None}, 401),
    ],
)
def test_headers_are_held_to_the_vendors_rules(
    service: PushService, sender: Sender, vendor: str, headers: dict[str, str | None], status: int
) -> None:
    assert push(service, service.issue(vendor)[0], sender=sender, **headers).status == status


def test_4096_bytes_are_taken_and_4097_are_not(service: PushService, sender: Sender) -> None:
    subscription = service.issue("fcm")[0]
    assert push(service, subscription, b"x" * 3993, sender).status == 201
    assert push(service, subscription, b"x" * 3994, sender).status == 413


def test_an_endpoint_is_known_to_the_byte(service: PushService, sender: Sender) -> None:
    subscription = service.issue("wns")[0]
    tidied = subscription | {"endpoint": subscription["endpoint"].replace("%2b", "%2B").replace("%2f", "%2F") + "A"}
    assert push(service, tidied, sender=sender).status == 404


def test_another_host_of_a_vendors_is_served_too(service: PushService, sender: Sender) -> None:
    for vendor, host in (("fcm", "jmt17.google.com"), ("wns", "par02p.notify.windows.com")):
        assert push(service, service.issue(vendor, host=host)[0], sender=sender).status == 201
    assert set(service.counts()["by_host"]) == {"jmt17.google.com", "par02p.notify.windows.com"}
    lost = service.issue("fcm")[0]
    lost["endpoint"] = lost["endpoint"].replace("fcm.googleapis.com", "www.google.com")
    assert push(service, lost, sender=sender).status == 421


def test_an_unregistered_endpoint_is_gone(service: PushService, sender: Sender) -> None:
    kept, left = service.issue("mozilla", 2)
    service.unregister([left["endpoint"]])
    assert push(service, kept, sender=sender).status == 201
    got = push(service, left, sender=sender)
    assert got.status == 410
    assert b'"errno":106' in got.body


def test_a_topic_replaces_and_a_delete_takes_back(service: PushService, sender: Sender) -> None:
    subscription = service.issue("mozilla")[0]
    push(service, subscription, b"first", sender, Topic="t")
    got = push(service, subscription, b"second", sender, Topic="t")
    assert [m["text"] for m in service.messages(subscription["endpoint"])] == ["second"]
    assert request(service, "DELETE", got.headers["location"], {}).status == 204
    assert service.messages(subscription["endpoint"]) == []
    assert request(service, "DELETE", got.headers["location"], {}).status == 404


def test_a_message_sent_twice_shows_in_the_counts(service: PushService, sender: Sender) -> None:
    one, other = service.issue("fcm", 2)
    for subscription in (one, other, one):
        push(service, subscription, b'{"message_id": "m"}', sender)
    counts = service.counts()
    assert (counts["received"], counts["accepted"], counts["doubled"]) == (3, 3, 1)
    assert service.accepted([one["endpoint"], other["endpoint"]], "m") == [2, 1]
    assert [times for _, message, times in service.tell("doubles") if message == "m"] == [2]


def test_what_does_not_decrypt_is_counted(service: PushService, sender: Sender) -> None:
    mine, other = service.issue("fcm", 2)
    push(service, other | {"endpoint": mine["endpoint"]}, sender=sender)
    assert service.counts()["undecryptable"] == 1


def test_ports_and_endpoints_survive_a_restart(sender: Sender) -> None:
    with push_service() as service:
        port, subscription = service.port, service.issue("fcm", 1, sender.public)[0]
        service.kill()
        assert not service.running()
        service.start()
        assert service.port == port
        assert push(service, subscription, sender=sender).status == 201
    assert not service.folder.exists()


def test_it_listens_on_loopback_and_its_control_needs_the_token(service: PushService) -> None:
    config = service._config()
    answer = b""
    with socket.create_connection(("127.0.0.1", config.control_port), timeout=5) as connection:
        connection.sendall(b"POST /counts HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 401")
    with pytest.raises(PushopsError, match="expected a name from the library"):
        service.script("typo", answer="fcm-4100")
