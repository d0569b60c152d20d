"""What a peer may answer instead of an answer, and what is made of it."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from pushops.delivery.answer import BODY_MAX, Answer, Fault
from tests.hostile_servers import HOST, Line, Line2, Peer, authority
from tests.posting import answer_of, posted, request, requests, transport

H1 = authority().context()
H2 = authority().context(alpn=("h2",))
SOON = timedelta(seconds=1)


def saying(*parts: bytes) -> Callable[[Line], None]:
    """A script that takes one request, says this and hangs up."""

    def script(line: Line) -> None:
        line.read_request()
        for part in parts:
            line.send(part)

    return script


def said(*parts: bytes) -> Answer:
    with Peer(H1, saying(*parts)) as peer:
        answer = answer_of(peer)
    assert len(peer.bodies) == 1
    return answer


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 301, 307, 400, 404, 410, 413, 429, 500, 503, 599])
def test_any_final_status_is_the_answer(status: int) -> None:
    answer = said(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
    assert (answer.status, answer.fault, answer.http_version) == (status, None, "1.1")


@pytest.mark.parametrize("status", [600, 700, 999])
def test_a_status_from_no_class_is_no_answer(status: int) -> None:
    answer = said(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
    assert (answer.status, answer.fault) == (None, Fault.BAD_RESPONSE)


GARBAGE = {
    "http09": b"<html>hello</html>\r\n",
    "binary": bytes(range(256)) * 8,
    "status_of_letters": b"HTTP/1.1 abc Oops\r\n\r\n",
    "status_of_four_digits": b"HTTP/1.1 2010 Created\r\nContent-Length: 0\r\n\r\n",
    "status_99": b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
    "another_protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "nul_in_a_header": b"HTTP/1.1 201 Created\r\nLocation: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a_header_without_end": b"HTTP/1.1 201 Created\r\nX: " + b"x" * 200_000,
    "a_header_without_colon": b"HTTP/1.1 201 Created\r\nno colon here\r\nContent-Length: 0\r\n\r\n",
    "a_flood_of_headers": b"HTTP/1.1 201 Created\r\n" + b"X-Flood: 0123456789\r\n" * 20_000,
    "a_length_of_letters": b"HTTP/1.1 201 Created\r\nContent-Length: many\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_bad_response(name: str) -> None:
    answer = said(GARBAGE[name])
    assert (answer.status, answer.fault) == (None, Fault.BAD_RESPONSE)


@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_an_interim_answer_and_then_nothing_is_no_answer(status: bytes) -> None:
    answer = said(b"HTTP/1.1 %s\r\n\r\n" % status)
    assert answer.status is None
    assert answer.fault in {Fault.BAD_RESPONSE, Fault.AMBIGUOUS}


def test_interim_answers_before_the_final_one_are_passed_over() -> None:
    answer = said(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3, b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
    assert (answer.status, answer.headers) == (410, {"content-length": "0"})


def test_interim_answers_without_end_are_given_up() -> None:
    answer = said(b"HTTP/1.1 103 Early Hints\r\nLink: 0123456789\r\n\r\n" * 20_000)
    assert (answer.status, answer.fault) == (None, Fault.BAD_RESPONSE)


def test_switching_protocols_is_no_answer() -> None:
    answer = said(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
    assert answer.status is None
    assert answer.fault is not None


def test_half_a_header_block_is_no_answer() -> None:
    """A 410 would end a subscription: it must have been said to its end."""
    answer = said(b"HTTP/1.1 410 Gone\r\nContent-Ty")
    assert (answer.status, answer.fault) == (None, Fault.AMBIGUOUS)


def test_nothing_at_all_is_ambiguous() -> None:
    answer = said()
    assert (answer.status, answer.fault) == (None, Fault.AMBIGUOUS)


@pytest.mark.parametrize("promised", [10, 10**6, 10**18])
def test_a_body_shorter_than_promised_leaves_the_status(promised: int) -> None:
    answer = said(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\nshort" % promised)
    assert (answer.status, answer.fault, answer.body) == (404, None, b"short")


def test_a_long_body_is_cut_and_its_status_counts() -> None:
    answer = said(b"HTTP/1.1 400 Bad\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20_000)
    assert (answer.status, answer.fault, answer.body) == (400, None, b"x" * BODY_MAX)


def test_a_body_without_end_is_given_up_and_its_status_counts() -> None:
    def script(line: Line) -> None:
        line.read_request()
        line.send(b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            line.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    with Peer(H1, script) as peer:
        began = time.monotonic()
        answer = answer_of(peer)
    assert (answer.status, answer.fault, len(answer.body)) == (400, None, BODY_MAX)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 201 Created\r\nContent-Le"])
def test_a_peer_that_says_nothing_more_is_given_up_at_the_deadline(head: bytes) -> None:
    def script(line: Line) -> None:
        line.read_request()
        line.send(head)
        line.hang()

    with Peer(H1, script) as peer:
        began = time.monotonic()
        answer = answer_of(peer, deadline=SOON)
    assert (answer.status, answer.fault) == (None, Fault.AMBIGUOUS)
    assert 0.9 < time.monotonic() - began < 3


def test_a_dripping_body_ends_at_the_deadline_and_its_status_counts() -> None:
    def script(line: Line) -> None:
        line.read_request()
        line.send(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n")
        while not line.peer.closing.wait(0.1):
            line.send(b".")

    with Peer(H1, script) as peer:
        began = time.monotonic()
        answer = answer_of(peer, deadline=SOON)
    assert (answer.status, answer.fault) == (201, None)
    assert 0.9 < time.monotonic() - began < 3


def test_what_says_that_it_is_compressed_is_kept_as_it_came() -> None:
    answer = said(b"HTTP/1.1 400 Bad\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\nnot gzip")
    assert (answer.status, answer.body) == (400, b"not gzip")


def test_headers_are_lower_case_joined_and_small() -> None:
    answer = said(
        b"HTTP/1.1 429 Slow\r\nRetry-After: 117\r\nRETRY-AFTER:  soon \r\nX-Long: " + b"x" * 600,
        b"\r\nX-Latin: \xe9\r\nContent-Length: 0\r\n\r\n",
    )
    assert answer.headers == {"retry-after": "117, soon", "x-latin": "\xe9", "content-length": "0"}


def test_a_redirect_is_not_followed() -> None:
    def script(line: Line) -> None:
        while line.read_request() is not None:
            line.answer("307 Elsewhere", f"Location: https://{HOST}/elsewhere\r\n")

    with Peer(H1, script) as peer:
        answer = answer_of(peer)
    assert (answer.status, answer.headers["location"]) == (307, f"https://{HOST}/elsewhere")
    assert len(peer.bodies) == 1


def test_a_cookie_is_not_sent_back() -> None:
    def script(line: Line) -> None:
        while line.read_request() is not None:
            line.answer(headers="Set-Cookie: a=b; Path=/; Secure\r\n")

    with Peer(H1, script) as peer, transport(peer) as over:
        for _ in range(2):
            posted(over, requests(1))
    assert not any(b"cookie" in head.lower() for head in peer.heads)


def test_a_request_has_its_own_headers_a_name_and_nothing_else() -> None:
    with Peer(H1, saying(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")) as peer:
        answer_of(peer)
    first, *lines = peer.heads[0].decode().split("\r\n")
    assert first == "POST /fcm/send/0 HTTP/1.1"
    assert sorted(line.partition(":")[0] for line in lines) == [
        "Content-Encoding",
        "Content-Length",
        "Content-Type",
        "Host",
        "TTL",
        "User-Agent",
    ]
    assert f"Host: {HOST}" in lines
    assert next(line for line in lines if line.startswith("User-Agent: pushops/"))


PATHS = [
    "/a/../b/./c",
    "/%7Euser/%c3%a9/%zz",
    "//double//slash/",
    "/?query=1&x=%20?y",
    "/a;b:c,d=e!f$g&h'i(j)k*l+m-n.o_p~q@r",
    '/"<>[]^`{|}',
    "",
    "?only=query",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_an_endpoint_goes_out_byte_for_byte(path: str, version: str) -> None:
    def script(line: Line | Line2) -> None:
        number = line.read_request()
        line.answer(*[number] if isinstance(line, Line2) else [])  # type: ignore[arg-type]

    context, kind = (H1, Line) if version == "1.1" else (H2, Line2)
    with Peer(context, script, line=kind) as peer, transport(peer) as over:
        (answer,) = posted(over, [request(f"https://{HOST}{path}")])
    assert answer.status == 201
    target = path if path.startswith("/") else f"/{path}"
    written = f"POST {target} HTTP/1.1" if version == "1.1" else f":path: {target}"
    assert written in peer.heads[0].decode().split("\r\n")
