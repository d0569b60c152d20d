"""What a subscription is known by."""

import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pushops.subscriptions.identity import endpoint_hash, endpoint_host, endpoint_tag

ENDPOINT = "https://wns2-bl2p.notify.windows.com/w/?token=BQYAAAC%2fcpad%2b4MZ%3d"
KEY = bytes(range(32))


def test_the_hash_is_the_plain_sha_256_of_the_bytes() -> None:
    assert endpoint_hash(ENDPOINT) == hashlib.sha256(ENDPOINT.encode("ascii")).digest()
    assert len(endpoint_hash(ENDPOINT)) == 32


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ENDPOINT.replace("%2f", "/"), id="A29-decoded"),
        pytest.param(ENDPOINT.replace("%2f", "%2F"), id="A29-other-case-of-an-escape"),
        pytest.param(ENDPOINT + "/", id="A29-trailing-slash"),
        pytest.param(ENDPOINT + ".", id="A29-trailing-dot"),
        pytest.param(ENDPOINT.replace("/w/", "//w/"), id="A29-duplicate-slash"),
        pytest.param(ENDPOINT.replace("/w/", "/W/"), id="A29-upper-case-path"),
        pytest.param(ENDPOINT.replace(".com/", ".com:443/"), id="A29-default-port"),
    ],
)
def test_what_a_url_library_would_call_the_same_is_another_endpoint(other: str) -> None:
    assert endpoint_hash(other) != endpoint_hash(ENDPOINT)


@settings(deadline=None)
@given(st.text(st.characters()))
def test_any_text_has_a_hash_and_a_tag_and_a_host(text: str) -> None:
    assert len(endpoint_hash(text)) == 32
    assert len(endpoint_tag(text, key=KEY)) == 32
    assert endpoint_host(text)


def test_a_lone_surrogate_has_a_hash() -> None:
    hashes = {endpoint_hash(f"https://fcm.googleapis.com/{tail}") for tail in ("", "\ud800", "\ud801", "?")}
    assert len(hashes) == 4


def test_the_tag_is_the_same_from_the_endpoint_and_from_its_hash() -> None:
    assert endpoint_tag(ENDPOINT, key=KEY) == endpoint_tag(endpoint_hash(ENDPOINT), key=KEY)


def test_the_tag_does_not_change_between_releases() -> None:
    """Logs of a quarter are searched by it."""
    domain = b"pushops.endpoint-tag.v1\x00"
    assert endpoint_tag(ENDPOINT, key=KEY) == hmac.digest(KEY, domain + endpoint_hash(ENDPOINT), "sha256").hex()[:32]


def test_the_tag_needs_the_key_and_shows_nothing_of_the_hash() -> None:
    tag = endpoint_tag(ENDPOINT, key=KEY)
    assert tag != endpoint_tag(ENDPOINT, key=bytes(32))
    assert tag not in endpoint_hash(ENDPOINT).hex()
    assert tag not in hashlib.sha256(KEY + endpoint_hash(ENDPOINT)).hexdigest()


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        (ENDPOINT, "wns2-bl2p.notify.windows.com"),
        ("https://fcm.googleapis.com", "fcm.googleapis.com"),
        ("https://fcm.googleapis.com:443/x", "fcm.googleapis.com"),
        ("https://10.0.0.5:8443/admin", "10.0.0.5"),
        ("https://user:secret@fcm.googleapis.com/x", "fcm.googleapis.com"),
        ("https://user:secret@other:secret@fcm.googleapis.com/x", "fcm.googleapis.com"),
        ("https://secret token/x", "unreadable"),
        ("https://secret\\@fcm.googleapis.com/x", "unreadable"),
        ("https://fcm.googleapis.com\n", "unreadable"),
        ("http://fcm.googleapis.com/x", "unreadable"),
        ("secret", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_a_log_gets_the_host_and_nothing_else(endpoint: str, host: str) -> None:
    assert endpoint_host(endpoint) == host
