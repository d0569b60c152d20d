"""A body that may have been received is sent once, whatever happens to the connection after it."""

import contextlib
import queue
import time
from collections.abc import Callable

import pytest

from pushops.delivery.answer import Fault
from tests.hostile_servers import Line, Line2, Peer, authority
from tests.posting import posted, requests, transport

H1 = authority().context()
H2 = authority().context(alpn=("h2",))
REFUSED_STREAM, CANCEL, INTERNAL_ERROR, ENHANCE_YOUR_CALM, NO_ERROR = 7, 8, 2, 11, 0


def close_politely(line: Line | Line2) -> None:
    line.tls.settimeout(0.05)  # for the client's own goodbye, which need not come
    with contextlib.suppress(OSError):
        line.tls.unwrap()
    line.tls.close()


def close_rudely(line: Line | Line2) -> None:
    line.tls.shutdown(2)


def reset(line: Line | Line2) -> None:
    Line.reset(line)  # type: ignore[arg-type]  # needs the socket only


LOOKS_EVERY = 1.1  # seconds: libcurl looks at its idle connections once a second, so that is how long a race lasts
ENDS = [close_politely, close_rudely, reset]


@pytest.mark.parametrize("end", ENDS)
def test_http1_peer_that_takes_a_body_on_a_kept_connection_and_hangs_up_gets_it_once(
    end: Callable[[Line], None],
) -> None:
    def script(line: Line) -> None:
        line.read_request()
        line.answer()
        line.read_request()
        end(line)

    with Peer(H1, script) as peer, transport(peer) as over:
        assert [answer.status for answer in posted(over, requests(1, prefix="first "))] == [201]
        (answer,) = posted(over, requests(1, prefix="second "))
    assert (answer.status, answer.fault) == (None, Fault.AMBIGUOUS)
    assert (peer.bodies, peer.connections) == ([b"first body 0", b"second body 0"], 1)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("streams", [1, 5])
def test_http2_peer_that_takes_bodies_on_a_kept_connection_and_hangs_up_gets_each_once(
    end: Callable[[Line2], None], streams: int
) -> None:
    def script(line: Line2) -> None:
        line.answer(line.read_request() or 0)
        for _ in range(streams):
            line.read_request()
        end(line)

    with Peer(H2, script, line=Line2) as peer, transport(peer) as over:
        assert [answer.http_version for answer in posted(over, requests(1, prefix="first "))] == ["2"]
        answers = posted(over, requests(streams, prefix="second "))
    assert [(answer.status, answer.fault) for answer in answers] == [(None, Fault.AMBIGUOUS)] * streams
    assert len(peer.bodies) == len(set(peer.bodies)) == 1 + streams


@pytest.mark.parametrize("code", [CANCEL, INTERNAL_ERROR, ENHANCE_YOUR_CALM, NO_ERROR])
def test_a_stream_reset_after_its_body_is_ambiguous_and_sent_once(code: int) -> None:
    def script(line: Line2) -> None:
        line.answer(line.read_request() or 0)
        while stream := line.read_request():
            line.h2.reset_stream(stream, error_code=code)
            line.flush()

    with Peer(H2, script, line=Line2) as peer, transport(peer) as over:
        posted(over, requests(1))
        (answer,) = posted(over, requests(1, prefix="second "))
    assert answer.fault is Fault.AMBIGUOUS
    assert peer.bodies.count(b"second body 0") == 1


def test_a_refused_stream_was_not_processed() -> None:
    def script(line: Line2) -> None:
        line.answer(line.read_request() or 0)
        while stream := line.read_request():
            line.h2.reset_stream(stream, error_code=REFUSED_STREAM)
            line.flush()

    with Peer(H2, script, line=Line2) as peer, transport(peer) as over:
        posted(over, requests(1))
        (answer,) = posted(over, requests(1, prefix="second "))
    assert answer.fault is Fault.CONNECT
    assert peer.bodies.count(b"second body 0") == 1


def test_goaway_tells_the_streams_below_it_from_those_above() -> None:
    streams = 5

    def script(line: Line2) -> None:
        line.answer(line.read_request() or 0)
        numbers = [line.read_request() or 0 for _ in range(streams)]
        line.h2.close_connection(error_code=NO_ERROR, last_stream_id=sorted(numbers)[1])
        line.flush()
        line.peer.closing.wait(0.2)
        close_rudely(line)

    with Peer(H2, script, line=Line2) as peer, transport(peer) as over:
        posted(over, requests(1))
        answers = posted(over, requests(streams, prefix="second "))
    assert [answer.fault for answer in answers] == [Fault.AMBIGUOUS] * 2 + [Fault.CONNECT] * 3
    assert len(peer.bodies) == len(set(peer.bodies)) == 1 + streams


def go_away(line: Line2) -> None:
    line.h2.close_connection(error_code=NO_ERROR)
    line.flush()
    close_politely(line)


@pytest.mark.parametrize("end", ENDS)
def test_a_kept_http1_connection_found_dead_before_the_body_is_replaced(end: Callable[[Line], None]) -> None:
    def script(line: Line) -> None:
        line.read_request()
        line.answer()
        end(line)
        gone.put(True)

    gone = queue.Queue[bool]()
    with Peer(H1, script) as peer:
        _post_twice(peer, gone)


# Without GOAWAY, a polite end of TLS on HTTP/2 is not noticed by libcurl until it sends: ambiguous, and sent once.
@pytest.mark.parametrize("end", [go_away, close_rudely, reset])
def test_a_kept_http2_connection_found_dead_before_the_body_is_replaced(end: Callable[[Line2], None]) -> None:
    def script(line: Line2) -> None:
        line.answer(line.read_request() or 0)
        end(line)
        gone.put(True)

    gone = queue.Queue[bool]()
    with Peer(H2, script, line=Line2) as peer:
        _post_twice(peer, gone)


def _post_twice(peer: Peer, gone: queue.Queue[bool]) -> None:
    with transport(peer) as over:
        for number in range(2):
            assert [answer.status for answer in posted(over, requests(1, prefix=f"round {number} "))] == [201]
            assert gone.get(timeout=5)
            time.sleep(LOOKS_EVERY * (number == 0))
    assert peer.connections == 2
    assert len(peer.bodies) == len(set(peer.bodies)) == 2
