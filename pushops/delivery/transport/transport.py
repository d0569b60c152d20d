"""Many POSTs at a time over a few connections, from one thread, pulled by whoever reads the answers."""

import math
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pycurl

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.transport.origins import Origins, Waiting
from pushops.delivery.transport.pulling import Source
from pushops.delivery.transport.request import Request
from pushops.delivery.transport.resolving import Resolver
from pushops.delivery.transport.rules import TransportRules
from pushops.delivery.transport.transfer import Transfer
from pushops.subscriptions.endpoint import IntakeRules, parse_endpoint
from pushops.subscriptions.rejection import Rejected

T = TypeVar("T")

PULL: Final = 16  # requests taken between two looks at the network: encryption is slow enough to starve it
PAUSE: Final = 0.05  # seconds until the source is asked again that had nothing
PATIENCE: Final = 2.0  # seconds that a request waits for room at its host
_WAIT: Final = 1.0  # seconds at most in one wait for the network
_H2: Final = "2"


class Transport:
    """One for each process, made in it; used by one thread, one exchange at a time. Connections are kept."""

    def __init__(self, rules: TransportRules, intake: IntakeRules) -> None:
        self._rules = rules
        self._intake = intake
        self._pid = os.getpid()
        self._resolver = Resolver(rules)
        self._origins = Origins(rules.connections)
        self._idle: list[Transfer] = []
        self._out: dict[pycurl.Curl, Transfer] = {}
        self._multi = _make_multi(rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._abandon()
        while self._idle:
            self._idle.pop().close()
        self._multi.close()

    def exchange(
        self, requests: Iterator[Request[T] | None], *, in_flight: int, stop_starting_at: float = math.inf
    ) -> Iterator[tuple[Request[T], Answer | None]]:
        """Each request that was pulled, with its answer, or with None if it was not begun: its host had no room.

        Pulls the next request only when fewer than ``in_flight`` are out, and begins none after ``stop_starting_at``
        (on the monotonic clock); None from ``requests`` says that there is nothing at the moment. What was begun is
        answered within the deadline, unless the caller stops reading: then it is cut off, its fate unknown. What
        ``requests`` raises is raised once everything has come back.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("expected a Transport made in this process, since connections cannot be shared")
        source = Source(requests, stop_starting_at)
        try:
            while source.open or self._pulled:
                for request in source.take(min(PULL, in_flight - self._pulled)):
                    refused = self._admit(request)
                    if refused is not None:
                        yield request, refused
                self._start_waiting()
                yield from self._completed()
                yield from self._not_begun(source)
                self._rest(source, in_flight)
        finally:
            self._abandon()
        source.raise_error()

    @property
    def _pulled(self) -> int:
        return len(self._out) + self._origins.waiting

    def _admit(self, request: Request[Any]) -> Answer | None:
        """Put a request in line; the answer, where the endpoint is refused before any I/O."""
        endpoint = parse_endpoint(request.endpoint, self._intake)
        if isinstance(endpoint, Rejected) or endpoint.host != request.host:
            return Answer(None, Fault.ADDRESS)
        route = self._resolver.route(endpoint.host)
        if isinstance(route, Fault):
            return Answer(None, route)
        self._origins.put(endpoint.host, Waiting(request, route, time.monotonic()))
        return None

    def _start_waiting(self) -> None:
        for waiting in self._origins.take():
            transfer = self._idle.pop() if self._idle else Transfer(self._rules)
            transfer.begin(waiting.request, waiting.route, share=self._origins.multiplexes(waiting.route.host))
            self._out[transfer.curl] = transfer
            self._multi.add_handle(transfer.curl)

    def _not_begun(self, source: "Source[Any]") -> Iterator[tuple[Request[Any], None]]:
        """What waited for so long that it had better be looked at again, or still waits when the time is over."""
        if self._origins.waiting:
            before = math.inf if source.stopped else time.monotonic() - PATIENCE
            for waiting in self._origins.overdue(before):
                yield waiting.request, None

    def _completed(self) -> Iterator[tuple[Request[Any], Answer]]:
        if not self._out:
            return
        self._multi.perform()
        _, done, failed = self._multi.info_read(len(self._out))
        for curl in done:
            yield self._finish(curl, 0, "")
        for curl, code, message in failed:
            yield self._finish(curl, code, message)

    def _finish(self, curl: pycurl.Curl, code: int, message: str) -> tuple[Request[Any], Answer]:
        transfer = self._out[curl]
        request = transfer.request
        assert request is not None  # noqa: S101  (it was begun)
        port = curl.getinfo(pycurl.LOCAL_PORT)
        answer = transfer.finish(code, message, multiplexed=self._origins.spoke_h2(request.host, port))
        if answer.http_version:
            self._origins.learn(request.host, port, multiplexes=answer.http_version == _H2)
        self._origins.done(request.host)
        self._release(transfer, failed=code != 0)
        return request, answer

    def _release(self, transfer: Transfer, *, failed: bool) -> None:
        """A handle that failed is not used again: one that could not rewind was seen to fail so for ever after."""
        del self._out[transfer.curl]
        self._multi.remove_handle(transfer.curl)
        if failed:
            transfer.close()
        else:
            transfer.rest()
            self._idle.append(transfer)

    def _rest(self, source: "Source[Any]", in_flight: int) -> None:
        """Wait for the network, unless there is something to pull; if nothing is out, just for the source."""
        if source.willing and self._pulled < in_flight:
            return
        if self._out:
            self._multi.select(self._longest_wait(source))
        elif source.open:
            time.sleep(PAUSE)

    def _longest_wait(self, source: "Source[Any]") -> float:
        due = self._multi.timeout()
        wait = _WAIT if due < 0 else min(_WAIT, due / 1000)
        looks_again = self._origins.waiting or (source.open and not source.willing)
        return min(wait, PAUSE) if looks_again else wait

    def _abandon(self) -> None:
        for transfer in list(self._out.values()):
            self._release(transfer, failed=True)
        self._origins.clear()


def _make_multi(rules: TransportRules) -> pycurl.CurlMulti:
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
    multi.setopt(pycurl.M_MAX_CONCURRENT_STREAMS, rules.streams)
    multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, rules.connections)
    multi.setopt(pycurl.M_MAXCONNECTS, rules.connections * 8)  # kept idle, for all hosts together
    return multi
