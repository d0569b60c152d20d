"""Exchanging many requests for their answers: limits, reuse, and an end that is clean."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pushops.delivery.transport import Request
from pushops.delivery.transport.origins import FIRST_CONTACT
from pushops.delivery.transport.transport import PATIENCE
from tests.hostile_servers import HOST, OTHER_HOST, Line, Line2, Peer, authority
from tests.posting import posted, requests, transport

H1 = authority().context()
H2 = authority().context(alpn=("h2", "http/1.1"))


def welcome(line: Line) -> None:
    while line.read_request() is not None:
        line.answer()


def welcome2(line: Line2) -> None:
    while stream := line.read_request():
        line.answer(stream)


class Gate:
    """Holds back answers until it is opened, and counts how many requests wait behind it at once."""

    def __init__(self) -> None:
        self.waiting = 0
        self.most = 0
        self.opened = threading.Event()
        self._lock = threading.Lock()

    def script(self, line: Line) -> None:
        while line.read_request() is not None:
            with self._lock:
                self.waiting += 1
                self.most = max(self.most, self.waiting)
            self.opened.wait(10)
            with self._lock:
                self.waiting -= 1
            line.answer()


def test_every_request_comes_back_once_with_its_tag_and_its_answer() -> None:
    with Peer(H2, welcome2, line=Line2) as peer, transport(peer) as over:
        found = []
        for request, answer in over.exchange(requests(500), in_flight=50):
            assert answer is not None
            found.append((request.tag, answer.status, answer.http_version))
    assert sorted(found) == [(number, 201, "2") for number in range(500)]
    assert sorted(peer.bodies) == sorted(request.body for request in requests(500))


def test_http2_carries_all_over_a_few_connections() -> None:
    with Peer(H2, welcome2, line=Line2) as peer, transport(peer) as over:
        for _ in range(3):
            assert {answer.status for answer in posted(over, requests(50))} == {201}
    assert peer.connections <= FIRST_CONTACT


def test_http1_is_used_where_it_is_all_that_is_offered_and_connections_are_kept() -> None:
    with Peer(H1, welcome) as peer, transport(peer, connections=4) as over:
        for _ in range(3):
            assert {answer.http_version for answer in posted(over, requests(20))} == {"1.1"}
    assert peer.connections <= 4


def test_no_more_are_out_than_allowed_and_none_is_pulled_before_its_turn() -> None:
    pulled: list[int] = []

    def source() -> Iterator[Request[int]]:
        for request in requests(12):
            pulled.append(request.tag)
            if len(pulled) == 3:
                threading.Timer(0.2, gate.opened.set).start()
            yield request

    gate = Gate()
    with Peer(H1, gate.script) as peer, transport(peer) as over:
        answers = over.exchange(source(), in_flight=3)
        next(answers)
        assert len(pulled) == 3
        assert gate.most == 3
        assert len(list(answers)) == 11
    assert gate.most == 3


def test_a_host_that_speaks_http1_is_asked_as_much_as_it_has_connections_and_the_rest_waits_its_turn() -> None:
    gate = Gate()
    threading.Timer(0.3, gate.opened.set).start()
    with Peer(H1, gate.script) as peer, transport(peer, connections=2) as over:
        assert {answer.status for answer in posted(over, requests(10))} == {201}
    assert (gate.most, peer.connections) == (2, 2)


def test_a_slow_host_does_not_hold_up_another() -> None:
    gate = Gate()
    with Peer(H1, gate.script) as slow, Peer(H1, welcome) as quick:
        targets = {HOST: slow.target, OTHER_HOST: quick.target}
        with transport(connect_to=targets, connections=2) as over:
            mixed = iter([*requests(20), *requests(20, host=OTHER_HOST)])
            hosts = []
            for request, _ in over.exchange(mixed, in_flight=50):
                hosts.append(request.host)
                if len(hosts) == 20:
                    gate.opened.set()
    assert hosts == [OTHER_HOST] * 20 + [HOST] * 20


def test_a_request_that_finds_no_room_for_long_comes_back_not_begun() -> None:
    gate = Gate()
    with Peer(H1, gate.script) as peer, transport(peer, connections=2) as over:
        began = time.monotonic()
        found = []
        for request, answer in over.exchange(requests(6), in_flight=10):
            found.append((request.tag, answer and answer.status))
            if len(found) == 4:
                gate.opened.set()
    assert found[:4] == [(2, None), (3, None), (4, None), (5, None)]
    assert sorted(found[4:]) == [(0, 201), (1, 201)]
    assert PATIENCE <= time.monotonic() - began < PATIENCE + 2
    assert len(peer.bodies) == 2


def test_what_waits_when_the_time_is_over_comes_back_not_begun() -> None:
    gate = Gate()
    threading.Timer(0.5, gate.opened.set).start()
    with Peer(H1, gate.script) as peer, transport(peer, connections=2) as over:
        found = list(over.exchange(requests(6), in_flight=10, stop_starting_at=time.monotonic() + 0.2))
    assert sorted((request.tag, answer and answer.status) for request, answer in found[:4]) == [
        (number, None) for number in range(2, 6)
    ]
    assert [answer and answer.status for _, answer in found[4:]] == [201, 201]


def test_nothing_is_pulled_after_the_time_to_stop_and_what_is_out_is_answered() -> None:
    gate = Gate()
    threading.Timer(0.5, gate.opened.set).start()
    with Peer(H1, gate.script) as peer, transport(peer) as over:
        found = list(over.exchange(requests(1000), in_flight=4, stop_starting_at=time.monotonic() + 0.2))
    assert [answer and answer.status for _, answer in found] == [201] * 4
    assert len(peer.bodies) == 4


def test_a_source_that_has_nothing_at_the_moment_is_asked_again() -> None:
    def source() -> Iterator[Request[int] | None]:
        for request in requests(3):
            yield request
            for _ in range(3):
                yield None

    with Peer(H1, welcome) as peer, transport(peer) as over:
        assert [request.tag for request, _ in over.exchange(source(), in_flight=10)] == [0, 1, 2]


def test_what_the_source_raises_is_raised_after_what_is_out_has_been_answered() -> None:
    def source() -> Iterator[Request[int]]:
        yield from requests(3)
        raise LookupError("no more keys")

    found = []
    with Peer(H1, welcome) as peer, transport(peer) as over:
        with pytest.raises(LookupError):
            found.extend(over.exchange(source(), in_flight=10))
        assert [answer.status for answer in posted(over, requests(1))] == [201]
    assert len(peer.bodies) == 4


def test_a_caller_that_stops_reading_leaves_nothing_behind_and_the_next_one_is_served() -> None:
    gate = Gate()
    with Peer(H1, gate.script) as peer, transport(peer) as over:
        for round_number in range(3):
            gate.opened.set()
            answers = over.exchange(requests(20, prefix=f"round {round_number} "), in_flight=8)
            next(answers)
            gate.opened.clear()
            answers.close()
            assert not over._out
            assert over._pulled == 0
        gate.opened.set()
        assert {answer.status for answer in posted(over, requests(20))} == {201}
        assert len(over._idle) <= 20


def test_handles_are_used_again() -> None:
    with Peer(H2, welcome2, line=Line2) as peer, transport(peer) as over:
        for _ in range(5):
            posted(over, requests(40), in_flight=10)
        assert len(over._idle) == 10


def test_descriptors_are_closed_with_the_transport() -> None:
    def descriptors() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    with Peer(H1, welcome) as peer:
        before = descriptors()
        with transport(peer) as over:
            posted(over, requests(20))
            ours = descriptors() - before
        assert ours
        deadline = time.monotonic() + 5
        while peer._open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(descriptors()) <= len(before)


def test_a_child_may_not_use_its_parents_connections() -> None:
    with Peer(H1, welcome) as peer, transport(peer) as over:
        posted(over, requests(1))
        over._pid += 1
        with pytest.raises(RuntimeError, match="made in this process"):
            posted(over, requests(1))
