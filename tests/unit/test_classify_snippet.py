"""What is kept of an answer can be stored and shows no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.deadletters.spelling import SNIPPET_BYTES
from pushops.delivery.answer import Answer
from pushops.delivery.classify import snippet
from pushops.delivery.classify.snippets import HIDDEN
from tests.answers import FCM_UNKNOWN, text

REGISTRATION = "dHIoDxE7Hdg:APA91bH1Zj0kNa9wL-gA_3bXcQ"
ENDPOINT = f"https://fcm.googleapis.com/fcm/send/{REGISTRATION}"
JWT = "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwcyJ9.abc-_123"
TOKENS = st.from_regex(r"[A-Za-z0-9_-]{24,200}", fullmatch=True).filter(
    lambda token: token.casefold() != "unauthorizedregistration"
)


def test_the_body_comes_first() -> None:
    assert snippet(text(400, '{"reason":"BadTtl"}', retry_after="3")) == '{"reason":"BadTtl"}'


@pytest.mark.parametrize("body", [b"", b" \r\n", b"\x00\x00"])
def test_without_a_body_the_headers_speak(body: bytes) -> None:
    headers = {
        "WWW-Authenticate": "vapid",
        "X-WNS-Status": "dropped",
        "apns-id": "6B29FC40-CA47-1067-B31D-00DD010662DA",
        "Retry-After": "120",
        "TTL": "60",
        "Server": "nginx",
        "location": "/m/0123456789abcdef",
    }
    assert snippet(Answer(429, headers=headers, body=body)) == (
        "retry-after: 120; ttl: 60; location: [...]; apns-id: 6B29FC40-CA47-1067-B31D-00DD010662DA;"
        " x-wns-status: dropped; www-authenticate: vapid"
    )


def test_nothing_is_kept_of_nothing() -> None:
    assert snippet(Answer(201)) == ""


@pytest.mark.parametrize(
    "body",
    [
        ENDPOINT,
        f"no such endpoint {ENDPOINT}?x=1, sorry",
        f'<a href="{ENDPOINT}">',
        ENDPOINT.replace("/", r"\/"),
        f"token {REGISTRATION} is not known",
        f"POST /fcm/send/{REGISTRATION}",
        ENDPOINT.replace("https", "HTTP"),
        f"https://user:{REGISTRATION}@fcm.googleapis.com/",
    ],
)
def test_an_endpoint_is_never_kept(body: str) -> None:
    for kept in (snippet(text(404, body)), snippet(text(404, body), ENDPOINT)):
        assert HIDDEN in kept
        assert "APA91" not in kept
        assert "dHIoDxE7Hdg" not in kept


def test_even_a_short_endpoint_is_not_kept_where_it_is_known() -> None:
    assert snippet(text(404, "nothing at /up/short-one"), "https://ntfy.example/up/short-one") == "nothing at /up/[...]"


def test_a_host_may_be_seen() -> None:
    assert snippet(text(404, FCM_UNKNOWN)).endswith("as such: https://fcm.googleapis.com/[...]")


def test_a_token_of_ours_is_not_kept() -> None:
    kept = snippet(text(401, f"bad authorization vapid t={JWT}, k=BNcRdreALRFXTkOOUHK1EtK2wtaz5Ry4YfYCA_0QTpQtUbVlUls"))
    assert kept == "bad authorization vapid t=[...], [...]"


@pytest.mark.parametrize("jwt", [JWT, JWT[:30], "eyJhbGci", "eyJhbGci.e30.x"])
def test_a_jwt_is_told_by_its_beginning(jwt: str) -> None:
    assert snippet(text(401, f"jwt {jwt}!")) == "jwt [...]!"


@pytest.mark.parametrize("name", ["Location", "WWW-Authenticate", "X-WNS-Error-Description", "apns-id", "Retry-After"])
def test_headers_are_scrubbed_like_bodies(name: str) -> None:
    assert "APA91" not in snippet(Answer(400, headers={name: f"see {ENDPOINT} or {REGISTRATION}"}))


def test_a_vendors_longest_reason_stays_readable() -> None:
    assert snippet(text(400, "UnauthorizedRegistration")) == "UnauthorizedRegistration"


@given(token=TOKENS, before=st.text(" <>\"',;!?()\n", max_size=5), after=st.text(" <>\"',;!?()\n", max_size=5))
def test_whatever_looks_like_a_long_token_goes(token: str, before: str, after: str) -> None:
    assert token not in snippet(text(400, f"words {before}{token}{after} words"))
    assert token not in snippet(Answer(400, headers={"www-authenticate": token}))


@given(body=st.binary(max_size=5000), value=st.text(st.characters(codec=None), max_size=700))
def test_what_is_kept_can_always_be_stored(body: bytes, value: str) -> None:
    for answer in (Answer(500, body=body), Answer(500, headers={"retry-after": value, "x-wns-status": value})):
        kept = snippet(answer)
        assert len(kept.encode("utf-8")) <= SNIPPET_BYTES
        assert "\x00" not in kept


def test_broken_utf_8_is_replaced_and_a_cut_never_splits_a_character() -> None:
    assert snippet(text(500, b"caf\xe9 \xed\xa0\x80 end")).startswith("caf\N{REPLACEMENT CHARACTER} ")
    kept = snippet(text(500, "\N{PILE OF POO} " * 300))
    assert len(kept.encode("utf-8")) <= SNIPPET_BYTES
    assert "\N{REPLACEMENT CHARACTER}" not in kept
