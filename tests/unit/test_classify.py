"""Each row of the table takes the answer it was made for, and failures that people met come to what they should."""

import string
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Dead, Lifecycle, Outcome, Retry, Verdict, classify, learn, load_table, snippet
from tests.answers import (
    CASES,
    CONSTRAINED,
    FCM_MISMATCH,
    FCM_UNKNOWN,
    GONE,
    HOLD,
    HTML,
    MISMATCH,
    POISON,
    RESIGN,
    THROTTLED,
    VOTE,
    apple,
    mozilla,
    text,
    titled,
)

TABLE = load_table()
SERVICES = ("fcm", "mozilla", "apple", "wns", "ntfy", "any", "other", "")
Words = tuple[str, str, str, str]


def judged(answer: Answer, service: str, host: str = "push.example.net") -> Verdict:
    return classify(answer, service, TABLE, host=host)


def words(verdict: Verdict) -> Words:
    return verdict.outcome, verdict.lifecycle, verdict.retry, verdict.dead


@pytest.mark.parametrize("row", [row.id for row in TABLE.rows])
def test_each_row_takes_the_answer_it_was_made_for(row: str) -> None:
    case = CASES[row]
    verdict = classify(case.answer, case.service, TABLE, host=case.host)
    assert (verdict.row, words(verdict), verdict.code) == (row, case.verdict, case.code)


def test_there_is_no_case_without_a_row() -> None:
    assert set(CASES) == {row.id for row in TABLE.rows}


@pytest.mark.parametrize("row", [row.id for row in TABLE.rows if row.id != "66"])
def test_what_a_vendor_is_known_to_say_is_no_news(row: str) -> None:
    case = CASES[row]
    assert classify(case.answer, case.service, TABLE, host=case.host).known


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [Fault.DNS, Fault.CONNECT, Fault.ADDRESS, Fault.AMBIGUOUS, Fault.TLS])  # B01, B38
def test_what_never_answered_is_no_evidence_about_the_subscription(service: str, fault: Fault) -> None:
    verdict = judged(Answer(None, fault), service)
    assert (verdict.lifecycle, verdict.outcome in (Outcome.GONE, Outcome.NOT_FOUND)) == (Lifecycle.NONE, False)
    assert verdict.retry is not Retry.NO


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("body", [b"", HTML, b"\xff\xfe\x00", b"{", b"NotRegistered", b'{"errno":106}'])  # B04, B06
def test_a_410_revokes_at_once_whatever_its_body(service: str, body: bytes) -> None:
    assert words(judged(text(410, body), service)) == GONE


@pytest.mark.parametrize("service", ["fcm", "mozilla", "apple", "ntfy"])
@pytest.mark.parametrize("status", [*range(200, 209), 226, 299])  # B08
def test_any_2xx_is_accepted_without_a_location(service: str, status: int) -> None:
    verdict = judged(text(status), service)
    assert (verdict.outcome, verdict.retry) == (Outcome.ACCEPTED, Retry.NO)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("status", [*range(300, 309), 399])  # B09
def test_a_redirect_is_never_a_success_and_says_where_to_without_the_path(service: str, status: int) -> None:
    answer = text(status, location="https://evil.example/secret/path")
    verdict = judged(answer, service)
    assert (words(verdict), verdict.code) == (POISON, "redirect")
    assert snippet(answer) == "location: https://evil.example/[...]"


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("status", [401, 403])  # B13, B16
def test_a_refused_signature_never_touches_the_subscription_or_becomes_a_letter(service: str, status: int) -> None:
    verdict = judged(text(status, HTML), service)
    assert verdict.lifecycle in (Lifecycle.NONE, Lifecycle.MISMATCH)
    assert verdict.retry in (Retry.HOLD, Retry.RESIGN)
    assert verdict.dead in (Dead.HOLD_ROW, Dead.NO)


@pytest.mark.parametrize("status", [402, 405, 409, 411, 415, 418, 422, 431, 451, 499])  # B16
def test_a_4xx_that_nobody_should_send_has_a_name(status: int) -> None:
    verdict = judged(text(status), "fcm")
    assert (words(verdict), verdict.code) == (POISON, "http_4xx")


@pytest.mark.parametrize(
    ("service", "answer"),
    [
        ("apple", apple(400, "VapidPkHashMismatch")),  # B17
        ("apple", apple(403, "VapidPkHashMismatch")),
        ("fcm", text(403, FCM_MISMATCH)),
        ("fcm", titled(403, "MismatchSenderId")),
        ("fcm", titled(400, "UnauthorizedRegistration")),  # B19
        ("fcm", text(400, "UnauthorizedRegistration")),
        ("fcm", text(403, "Invalid push subscription endpoint\n")),  # B21
        ("mozilla", mozilla(401, 109, "VAPID public key mismatch")),
        ("wns", text(403)),
    ],
)
def test_a_foreign_key_is_judged_by_its_siblings_and_is_no_poison(service: str, answer: Answer) -> None:
    assert words(judged(answer, service)) == MISMATCH


@pytest.mark.parametrize("reason", ["NotRegistered", "notregistered", "NOTREGISTERED"])  # B19
def test_reasons_are_compared_without_their_case(reason: str) -> None:
    assert judged(text(410, reason), "fcm").row == "8"
    assert judged(apple(410, "unregistered"), "apple").row == "45"


@pytest.mark.parametrize("header", [{}, {"retry-after": "900"}, {"X-WNS-STATUS": "appthrottled"}])  # B22
def test_a_406_of_wns_is_a_throttle(header: dict[str, str]) -> None:
    verdict = judged(Answer(406, headers=header), "wns")
    assert (words(verdict), verdict.wait) == (THROTTLED, timedelta(minutes=15))
    assert words(judged(Answer(406, headers=header), "fcm")) == POISON


def test_the_reason_of_a_wns_400_stands_in_a_header_only() -> None:  # B24
    answer = Answer(400, headers={"X-WNS-ERROR-DESCRIPTION": "Ttl value conflicts with X-WNS-Cache-Policy."})
    assert (judged(answer, "wns").code, judged(answer, "wns").scope) == ("wns_cache_policy", "cfg")
    assert snippet(answer) == "x-wns-error-description: Ttl value conflicts with X-WNS-Cache-Policy."


@pytest.mark.parametrize("service", SERVICES)  # B25
def test_a_429_is_never_a_letter_nor_evidence(service: str) -> None:
    assert words(judged(text(429, HTML, retry_after="117"), service)) == THROTTLED


def test_a_device_that_takes_less_says_how_much() -> None:  # B29
    answer = mozilla(413, 104, CONSTRAINED)
    verdict = judged(answer, "mozilla")
    assert (verdict.code, verdict.lifecycle) == ("payload_device_limit", Lifecycle.DEVICE_LIMIT)
    assert learn(answer, verdict, 3_500).max_payload == 3_500 - 1_366
    assert learn(answer, verdict, 1_000).max_payload is None


@pytest.mark.parametrize("errno", [101, 110, 111, 112, 113, 114])  # B34
def test_errnos_of_a_bad_request_are_poison_under_their_number(errno: int) -> None:
    verdict = judged(mozilla(400, errno), "mozilla")
    assert (words(verdict), verdict.code) == (POISON, f"errno_{errno}")


@pytest.mark.parametrize("errno", [103, 105, 106])  # B34
def test_errnos_of_a_410_revoke_under_their_number(errno: int) -> None:
    assert judged(mozilla(410, errno), "mozilla").code == f"errno_{errno}"


@pytest.mark.parametrize(
    ("status", "errno", "row"),
    [(404, 102, "27"), (500, 999, "32"), (502, 900, "33"), (502, 903, "33"), (503, 201, "34"), (503, 202, "34b")],
)
@pytest.mark.parametrize("quoted", [False, True])  # B34
def test_an_errno_is_a_number_or_a_text(status: int, errno: int, row: str, *, quoted: bool) -> None:
    verdict = judged(mozilla(status, str(errno) if quoted else errno), "mozilla")
    assert (verdict.row, verdict.known) == (row, True)


def test_json_that_was_cut_off_still_says_its_reason() -> None:
    assert judged(text(413, b'{"code":413,"errno":104,"message":"constrained device ... too lo'), "mozilla").row == "30"
    assert judged(text(403, b'{"reason":"BadJwtToken","timest'), "apple").row == "41"


@pytest.mark.parametrize("body", [b"[" * 4096, b'{"errno":' + b"9" * 4000 + b"}", b'{"errno":true}', b'{"errno":[1]}'])
def test_json_that_is_made_to_hurt_falls_to_the_bare_status(body: bytes) -> None:
    assert judged(text(400, body), "mozilla").row == "67"


def test_texts_are_found_across_tags_entities_and_white_space() -> None:
    split = b"<p>push subscription has\n <b>unsubscribed</b>&nbsp;or   expired.</p>"
    assert judged(text(410, split), "fcm").row == "8"
    assert judged(text(404, FCM_UNKNOWN.replace(" ", "\n").upper()), "fcm").row == "6"


def test_the_longer_of_two_texts_wins_wherever_it_stands() -> None:
    both = "authorization header must be specified. crypto-key header had invalid format."
    assert judged(text(400, both), "fcm").row == "12"


def test_a_404_of_fcm_is_tried_again_twice_only_where_it_may_be_a_routing_fault() -> None:
    assert (judged(text(404, HTML), "fcm").most, judged(text(404), "fcm").row) == (2, "7")
    assert words(judged(text(404, FCM_UNKNOWN), "fcm")) == VOTE


def test_fcm_gets_ten_seconds_before_the_first_retry() -> None:
    assert judged(text(500), "fcm").wait == timedelta(seconds=10)


def test_an_expired_token_is_signed_again() -> None:
    expired = ("the token has expired", "exp claim MUST NOT be more than 24 hours from the time of the request")
    assert [words(judged(text(403, each), "fcm")) for each in expired] == [RESIGN, RESIGN]


def test_a_label_of_an_operator_falls_to_any() -> None:
    assert words(judged(text(403), "my-own")) == HOLD


@pytest.mark.parametrize("host", ["permanently-removed.invalid", "A.INVALID.", "invalid"])
@pytest.mark.parametrize("fault", [Fault.DNS, Fault.CONNECT])
def test_a_host_that_never_resolves_is_revoked(host: str, fault: Fault) -> None:
    assert words(judged(Answer(None, fault), "fcm", host)) == GONE
    assert words(judged(Answer(None, Fault.BAD_KEYS), "fcm", host)) == CASES["77"].verdict
    assert judged(Answer(None, fault), "fcm", f"{host.strip('.')}.example.org").lifecycle is Lifecycle.NONE


def test_a_status_that_came_before_the_connection_broke_is_the_truth() -> None:
    assert judged(Answer(201, Fault.AMBIGUOUS), "fcm").outcome is Outcome.ACCEPTED
    assert judged(Answer(410, Fault.AMBIGUOUS), "fcm").outcome is Outcome.GONE
    assert judged(Answer(100, Fault.AMBIGUOUS), "fcm").outcome is Outcome.AMBIGUOUS
    assert judged(Answer(201, Fault.TLS), "fcm").code == "tls"


def test_an_answer_of_nothing_may_have_been_accepted() -> None:
    assert judged(Answer(None, None), "fcm").outcome is Outcome.AMBIGUOUS


@pytest.mark.parametrize(
    ("answer", "service"),
    [
        (text(410, "this token was retired"), "fcm"),
        (mozilla(410, 107), "mozilla"),
        (mozilla(500, 777), "mozilla"),
        (apple(400, "BadSomethingNew"), "apple"),
        (apple(429, "BadJwtToken"), "apple"),
        (text(403, "go away"), "ntfy"),
        (text(200, x_wns_status="postponed"), "wns"),
        (text(503, "new words"), "fcm"),
    ],
)
def test_a_reason_that_no_row_knows_is_told_apart(answer: Answer, service: str) -> None:
    assert not judged(answer, service).known


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("status", [200, 201, 301, 400, 401, 403, 404, 410, 413, 429, 500, 503])
@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_an_empty_body_is_no_unknown_reason(service: str, status: int, body: bytes) -> None:
    assert judged(text(status, body), service).known


NAMES = st.sampled_from(
    ["Retry-After", "X-WNS-Status", "x-wns-error-description", "TTL", "Location", "WWW-Authenticate", "apns-id", "Date"]
)
ODD_CASE = st.tuples(NAMES, st.lists(st.booleans(), min_size=25, max_size=25)).map(
    lambda pair: "".join(c.upper() if up else c.lower() for c, up in zip(pair[0], pair[1], strict=False))
)
BODIES = st.one_of(
    st.binary(max_size=600),
    st.text(max_size=300).map(lambda body: body.encode("utf-8", "surrogatepass")),
    st.builds(
        lambda errno, reason: f'{{"errno": {errno}, "reason": {reason}}}'.encode(),
        st.one_of(st.integers(), st.sampled_from(["null", '"109"', "true", "1e999", "NaN", "[]"])),
        st.sampled_from(['"BadJwtToken"', "null", "3", "{}"]),
    ),
    st.sampled_from([case.answer.body for case in CASES.values()]),
)
ANSWERS = st.builds(
    Answer,
    status=st.one_of(st.integers(100, 599), st.integers(-5, 1200), st.none()),
    fault=st.one_of(st.none(), st.sampled_from(list(Fault))),
    headers=st.dictionaries(st.one_of(ODD_CASE, st.text(max_size=20)), st.text(max_size=60), max_size=6),
    body=BODIES,
)


@given(answer=ANSWERS, service=st.one_of(st.sampled_from(SERVICES), st.text(max_size=10)), host=st.text(max_size=30))
def test_every_answer_has_a_verdict_and_can_be_kept(answer: Answer, service: str, host: str) -> None:
    verdict = classify(answer, service, TABLE, host=host)
    assert set(verdict.code) <= {*string.ascii_lowercase, *string.digits, "_"}
    kept = snippet(answer, "https://push.example.net/wpush/v2/0123456789")
    assert len(kept.encode("utf-8")) <= 512
    assert "\x00" not in kept
    learn(answer, verdict, 100, 60)


@given(status=st.integers(100, 599), service=st.sampled_from(SERVICES), body=BODIES)
@example(status=404, service="fcm", body=b"")
def test_only_a_404_or_410_or_a_damaged_endpoint_is_evidence_of_death(status: int, service: str, body: bytes) -> None:
    verdict = judged(text(status, body), service)
    if verdict.lifecycle in (Lifecycle.VOTE, Lifecycle.REVOKE):
        assert status in (404, 410) or (status, verdict.code) in {(400, "errno_108"), (400, "invalid_registration")}


@given(status=st.integers(0, 999), service=st.sampled_from(SERVICES), body=BODIES)
def test_success_is_said_by_2xx_alone(status: int, service: str, body: bytes) -> None:
    assert (judged(text(status, body), service).outcome is Outcome.ACCEPTED) == (200 <= status < 300)
