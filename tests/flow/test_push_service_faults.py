"""What scripts make of the push service: every fault looks to a sender as the real one does."""

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import nullcontext
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import h2.connection
import pycurl
import pytest
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame

from pushops.sandbox.push import PushService
from pushops.sandbox.push.answers import named, names
from tests.pushing import Got, Sender, push

BOTH = pytest.mark.parametrize("http1", [False, True])
HTTP2_STREAM = 92  # CURLE_HTTP2_STREAM, which pycurl has no name for
ENDED = {
    pycurl.E_HTTP2,
    HTTP2_STREAM,
    pycurl.E_RECV_ERROR,
    pycurl.E_SEND_ERROR,
    pycurl.E_GOT_NOTHING,
    pycurl.E_PARTIAL_FILE,
}

# With a kept connection: found dead before, while or after sending.
LOST = ENDED | {pycurl.E_SEND_FAIL_REWIND, pycurl.E_COULDNT_CONNECT}


@pytest.fixture
def service(pushed_to: PushService) -> PushService:
    return pushed_to


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender()


def once(service: PushService, sender: Sender, vendor: str = "fcm", *, http1: bool = False, timeout: float = 5) -> Got:
    return push(service, service.issue(vendor)[0], sender=sender, http1=http1, timeout=timeout)


# Answers


@pytest.mark.parametrize("name", names())
def test_every_answer_of_the_library_goes_over_the_wire(service: PushService, sender: Sender, name: str) -> None:
    service.script("named", answer=name)
    got = once(service, sender, timeout=20)
    expected = named(name)
    if expected.status >= 200 and name != "huge-headers":  # which curl refuses; it waits for more after a 1xx
        assert (got.status, got.error) == (expected.status, 0)
        assert got.body == expected.body
    assert service.counts()["scripts"] == {"named": 1}


def test_a_script_spells_out_an_answer(service: PushService, sender: Sender) -> None:
    service.script("own", answer={"status": 451, "body": "no", "headers": {"Retry-After": ["1", "2"]}})
    got = once(service, sender)
    assert (got.status, got.body, got.headers["retry-after"]) == (451, b"no", "2")


def test_answers_follow_one_another_for_each_endpoint(service: PushService, sender: Sender) -> None:
    service.script("flapping", answer=["fcm-404", "as-usual", "fcm-410"])
    one, other = service.issue("fcm", 2)
    assert [push(service, one, sender=sender).status for _ in range(4)] == [404, 201, 410, 410]
    assert push(service, other, sender=sender).status == 404


def test_a_script_is_spent_after_so_many_times(service: PushService, sender: Sender) -> None:
    service.script("twice", answer="fcm-503", times=2)
    assert [once(service, sender).status for _ in range(3)] == [503, 503, 201]


def test_a_script_is_for_a_host_or_an_endpoint(service: PushService, sender: Sender) -> None:
    service.script("wns", host="*.notify.windows.com", answer="wns-406")
    one, other = service.issue("fcm", 2)
    service.script("one", endpoints=[one["endpoint"]], answer="fcm-410")
    assert [once(service, sender, "wns").status, once(service, sender, "mozilla").status] == [406, 201]
    assert [push(service, each, sender=sender).status for each in (one, other)] == [410, 201]
    service.clear("one")
    assert push(service, one, sender=sender).status == 201


def test_a_share_always_strikes_the_same_endpoints_and_shares_of_a_mix_never_meet(
    service: PushService, sender: Sender
) -> None:
    subscriptions = service.issue("fcm", 60)
    service.mix({"fcm-410": 0.25, "fcm-429": 0.25})
    endpoints = [each["endpoint"] for each in subscriptions]
    gone = service.chosen(endpoints, salt="mix", share=0.25)
    throttled = service.chosen(endpoints, salt="mix", share=0.25, start=0.25)
    assert gone
    assert throttled
    assert not set(gone) & set(throttled)
    for _ in range(2):
        for each in subscriptions:
            expected = 410 if each["endpoint"] in gone else 429 if each["endpoint"] in throttled else 201
            assert push(service, each, sender=sender).status == expected


def test_a_2xx_is_an_acceptance_unless_wns_dropped_it(service: PushService, sender: Sender) -> None:
    service.script("any", answer="202")
    assert once(service, sender).status == 202
    assert service.counts()["accepted"] == 1
    service.script("any", answer="wns-200-dropped")
    assert once(service, sender, "wns").status == 200
    assert service.counts()["accepted"] == 1


@BOTH
def test_ten_megabytes_of_body_arrive(service: PushService, sender: Sender, http1: bool) -> None:
    service.script("huge", answer="huge-body")
    assert len(once(service, sender, http1=http1, timeout=30).body) == 10_485_760


# Time


@BOTH
def test_slow_answers_come_late(service: PushService, sender: Sender, http1: bool) -> None:
    service.script("slow", delay=0.4)
    began = time.monotonic()
    assert once(service, sender, http1=http1).status == 201
    assert time.monotonic() - began >= 0.4


@BOTH
def test_dripping_answers_outlast_a_deadline(service: PushService, sender: Sender, http1: bool) -> None:
    service.script("drip", drip=0.05, answer="fcm-410")
    assert once(service, sender, http1=http1, timeout=0.5).error == pycurl.E_OPERATION_TIMEDOUT
    service.script("drip", drip=0.001, answer="fcm-410")
    assert once(service, sender, http1=http1).status == 410


@BOTH
def test_hanging_reads_the_request_and_never_answers(service: PushService, sender: Sender, http1: bool) -> None:
    service.script("hang", fault="hang")
    assert once(service, sender, http1=http1, timeout=0.4).error == pycurl.E_OPERATION_TIMEDOUT
    assert service.counts()["received"] == 1
    assert service.counts()["accepted"] == 0


# Connections


@BOTH
@pytest.mark.parametrize("at", ["headers", "body", "end"])
@pytest.mark.parametrize("fault", ["reset", "close", "garbage", "truncate"])
def test_a_fault_ends_the_connection(service: PushService, sender: Sender, fault: str, at: str, http1: bool) -> None:
    service.script("fault", fault=fault, at=at)
    got = once(service, sender, http1=http1)
    # Garbage looks like HTTP/0.9 to curl, or like a wrong frame.
    assert got.error in ENDED | {pycurl.E_UNSUPPORTED_PROTOCOL, 1, 8}
    counts = service.counts()
    assert counts["accepted"] == 0
    assert counts["begun"] >= 1
    if at != "end":
        assert counts["received"] == 0


@pytest.mark.parametrize("fault", ["reset", "close"])
def test_a_reset_is_one_and_a_close_is_none(service: PushService, sender: Sender, fault: str) -> None:
    service.script("fault", fault=fault)
    said = fields(service.issue("fcm")[0]["endpoint"], sender)
    path, rest = said[3][1], "".join(f"{name}: {value}\r\n" for name, value in said[4:])
    context = ssl.create_default_context(cafile=str(service.ca_file))
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="fcm.googleapis.com") as connection,
    ):
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: fcm.googleapis.com\r\n{rest}\r\n".encode())
        # Python's TLS makes one end of both: look underneath it.
        with socket.socket(fileno=os.dup(connection.fileno())) as below:
            below.settimeout(5)
            with pytest.raises(ConnectionResetError) if fault == "reset" else nullcontext():
                while below.recv(65536):
                    pass


@BOTH
def test_what_was_accepted_before_a_reset_is_counted(service: PushService, sender: Sender, http1: bool) -> None:
    service.script("lost", fault="reset", accept=True)
    subscription = service.issue("fcm")[0]
    assert push(service, subscription, sender=sender, http1=http1).error in ENDED
    assert service.accepted([subscription["endpoint"]]) == [1]


def test_only_a_kept_connection_is_closed_after_the_body(service: PushService, sender: Sender) -> None:
    service.script("kept", fault="close", kept=True, accept=True)
    one, other = service.issue("fcm", 2)
    curl = pycurl.Curl()
    assert push(service, one, sender=sender, curl=curl, http1=True).status == 201
    assert push(service, other, sender=sender, curl=curl, http1=True).error in ENDED | {pycurl.E_SEND_FAIL_REWIND}
    curl.close()
    assert service.accepted([one["endpoint"], other["endpoint"]]) == [1, 1]


def test_a_post_that_curl_repeats_by_itself_is_counted_twice(service: PushService, sender: Sender) -> None:
    """With POSTFIELDS libcurl can rewind, and does, unasked."""
    service.script("kept", fault="close", kept=True, accept=True, times=1)
    one, other = service.issue("fcm", 2)
    curl = pycurl.Curl()
    assert push(service, one, sender=sender, curl=curl, http1=True).status == 201
    assert push(service, other, sender=sender, curl=curl, http1=True, rewindable=True).status == 201
    curl.close()
    assert service.accepted([other["endpoint"]], "1") == [2]
    assert service.counts()["doubled"] == 1


def test_one_stream_is_refused_and_the_connection_goes_on(service: PushService, sender: Sender) -> None:
    service.script("refused", fault="rst_stream", code=2, times=1)
    curl = pycurl.Curl()
    subscription = service.issue("fcm")[0]
    assert push(service, subscription, sender=sender, curl=curl).error == HTTP2_STREAM
    assert push(service, subscription, sender=sender, curl=curl).status == 201
    curl.close()
    assert service.counts()["connections_h2"] == 1


def test_going_away_ends_the_connection_and_the_next_one_works(service: PushService, sender: Sender) -> None:
    service.script("away", fault="goaway", at="headers", code=0, times=1)
    curl = pycurl.Curl()
    subscription = service.issue("fcm")[0]
    push(service, subscription, sender=sender, curl=curl)  # libcurl may send it again by itself: it was not processed
    assert push(service, subscription, sender=sender, curl=curl).status == 201
    curl.close()
    assert service.counts()["connections_h2"] == 2


def test_going_away_says_what_was_processed_and_answers_that(service: PushService, sender: Sender) -> None:
    """Two requests at once: the first is slow, the second is sent away, and the first is still answered."""
    slow, away = service.issue("fcm", 2)
    service.script("slow", endpoints=[slow["endpoint"]], delay=0.3)
    service.script("away", endpoints=[away["endpoint"]], fault="goaway", at="headers", code=0)
    context = ssl.create_default_context(cafile=str(service.ca_file))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="fcm.googleapis.com") as connection,
    ):
        client = h2.connection.H2Connection()
        client.initiate_connection()
        for stream, subscription in ((1, slow), (3, away)):
            client.send_headers(stream, fields(subscription["endpoint"], sender), end_stream=True)
        connection.sendall(client.data_to_send())
        gone, statuses = None, {}
        while data := connection.recv(65536):
            # h2 forgets streams at a GOAWAY; frames are what counts here.
            for frame in frames(data):
                if isinstance(frame, GoAwayFrame):
                    gone = (frame.last_stream_id, frame.error_code)
                elif isinstance(frame, HeadersFrame):
                    statuses[frame.stream_id] = client.decoder.decode(frame.data)[0][1]
    assert gone == (1, 0)
    assert statuses == {1: "201"}


def fields(endpoint: str, sender: Sender) -> list[tuple[str, str]]:
    parts = urlsplit(endpoint)
    head = [(":method", "POST"), (":scheme", "https"), (":authority", parts.netloc), (":path", parts.path)]
    return [*head, ("authorization", sender.authorization(endpoint)), ("ttl", "60")]


def frames(data: bytes) -> Iterator[Frame]:
    """The frames in what was read, which here never ends within one."""
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        yield frame
        data = data[9 + length :]


# TLS and listening


@pytest.mark.parametrize(
    ("handshake", "error"),
    [
        ("stranger", pycurl.E_PEER_FAILED_VERIFICATION),
        ("expired", pycurl.E_PEER_FAILED_VERIFICATION),
        ("wrong_name", pycurl.E_PEER_FAILED_VERIFICATION),
        ("reset", pycurl.E_SSL_CONNECT_ERROR),
    ],
)
def test_a_hosts_tls_breaks_and_the_others_do_not(
    service: PushService, sender: Sender, handshake: str, error: int
) -> None:
    service.script("tls", host="fcm.googleapis.com", handshake=handshake)
    assert once(service, sender).error == error
    assert once(service, sender, "mozilla").status == 201


def test_a_host_may_have_no_http2(service: PushService, sender: Sender) -> None:
    service.script("old", host="*.push.apple.com", handshake="http1")
    assert once(service, sender, "apple").http_version == pycurl.CURL_HTTP_VERSION_1_1
    assert once(service, sender).http_version == pycurl.CURL_HTTP_VERSION_2_0


def test_down_refuses_connections_and_up_brings_the_port_back(service: PushService, sender: Sender) -> None:
    curl, subscription, port = pycurl.Curl(), service.issue("fcm")[0], service.port
    assert push(service, subscription, sender=sender, curl=curl).status == 201
    service.outage("down")
    assert push(service, subscription, sender=sender, curl=curl).error in LOST
    curl.close()
    assert push(service, subscription, sender=sender).error == pycurl.E_COULDNT_CONNECT
    service.outage(None)
    assert service.port == port
    assert push(service, subscription, sender=sender).status == 201


def test_deaf_takes_connections_and_says_nothing(service: PushService, sender: Sender) -> None:
    service.outage("deaf")
    got = once(service, sender, timeout=0.4)
    assert (got.error, got.status) == (pycurl.E_OPERATION_TIMEDOUT, 0)
    service.outage("down")
    assert once(service, sender).error == pycurl.E_COULDNT_CONNECT
    service.outage(None)
    assert once(service, sender).status == 201


# Incidents


@pytest.mark.parametrize(
    ("vendor", "status", "text"),
    [("fcm", 403, b"token has expired"), ("mozilla", 401, b"109"), ("apple", 403, b"BadJwtToken"), ("wns", 401, b"")],
)
def test_a_day_between_the_clocks_makes_tokens_expire(
    service: PushService, sender: Sender, vendor: str, status: int, text: bytes
) -> None:
    service.outage("clock")
    got = once(service, sender, vendor)
    assert (got.status, text in got.body) == (status, True)
    assert parsedate_to_datetime(got.headers["date"]).timestamp() > time.time() + 80_000
    service.outage(None)
    assert once(service, sender, vendor).status == 201


@pytest.mark.parametrize(
    ("outage", "vendor", "statuses"),
    [
        ("all-404", "apple", {404}),
        ("all-410", "wns", {410}),
        ("all-404-410", "mozilla", {404, 410}),
        ("fcm-2019", "fcm", {201, 404}),
        ("fcm-2024", "fcm", {201, 404}),
        ("fcm-2024", "apple", {201}),
        ("wns-406", "wns", {406}),
        ("vapid-mismatch", "apple", {400}),
        ("vapid-mismatch", "mozilla", {401}),
        ("redirect", "fcm", {302}),
    ],
)
def test_an_outage_is_what_its_name_says(
    service: PushService, sender: Sender, outage: str, vendor: str, statuses: set[int]
) -> None:
    service.outage(outage)
    assert {push(service, each, sender=sender).status for each in service.issue(vendor, 40)} == statuses
    service.outage(None)
    assert once(service, sender, vendor).status == 201


def test_false_404s_come_and_go_and_true_ones_stay(service: PushService, sender: Sender) -> None:
    subscriptions = service.issue("fcm", 12)
    service.outage("fcm-2019")
    flapping = [{push(service, each, sender=sender).status for _ in range(12)} for each in subscriptions]
    assert flapping == [{201, 404}] * 12
    service.outage("fcm-2024")
    assert all(len({push(service, each, sender=sender).status for _ in range(3)}) == 1 for each in subscriptions)
