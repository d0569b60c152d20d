"""What both versions of HTTP have in common: when a script strikes, and what it does to the connection."""

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from pushops.sandbox.push.answers import Answer
from pushops.sandbox.push.script import At, Fault
from pushops.sandbox.push.service import Exchange, Service

_GARBAGE: Final = b"\x15\x00ICY 200 OK\r\nthis is no HTTP of any version\r\n\r\n" * 4
_LINGER_NOT: Final = struct.pack("ii", 1, 0)  # close() then sends RST in place of FIN


class Talk(ABC):
    """One connection's conversation. ``stream`` is the HTTP/2 stream, 1 in HTTP/1.1."""

    def __init__(self, service: Service, transport: asyncio.Transport) -> None:
        self.service = service
        self.transport = transport
        self.requests = 0
        self._timers: set[asyncio.TimerHandle] = set()

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Bytes came."""

    @abstractmethod
    def say(self, stream: int, answer: Answer) -> None:
        """Send a whole answer."""

    @abstractmethod
    def drip(self, stream: int, answer: Answer, pause: float) -> None:
        """Send an answer with a pause between the bytes."""

    @abstractmethod
    def truncate(self, stream: int, answer: Answer) -> None:
        """Promise a body, send a part of it and end the connection."""

    def stop_stream(self, stream: int, code: int) -> None:  # noqa: ARG002 - HTTP/2 knows better
        """End one request only; without streams that is the connection."""
        self.reset()

    def go_away(self, stream: int, code: int) -> None:  # noqa: ARG002 - HTTP/2 knows better
        """Refuse this request and every later one."""
        self.transport.close()

    def lost(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def began(self, stream: int, exchange: Exchange) -> None:
        self.requests += 1
        self._strike_at(At.HEADERS, stream, exchange)

    def read_some(self, stream: int, exchange: Exchange) -> None:
        self._strike_at(At.BODY, stream, exchange)

    def read_all(self, stream: int, exchange: Exchange) -> None:
        """The request is whole: answer it, now or after the script's delay."""
        answer = self.service.finish(exchange)
        script = exchange.script
        if script is not None and script.delay > 0:
            self.later(script.delay, lambda: self._end(stream, exchange, answer))
        else:
            self._end(stream, exchange, answer)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, unless the connection is lost first."""
        timer: asyncio.TimerHandle

        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    def reset(self) -> None:
        """TCP RST, without the TLS alert that says a connection is closed on purpose."""
        found = self.transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()

    def _strike_at(self, at: At, stream: int, exchange: Exchange) -> None:
        script = exchange.script
        if script is not None and script.fault is not None and script.at is at:
            exchange.struck = True
            self._strike(script.fault, stream, exchange, Answer(200))

    def _end(self, stream: int, exchange: Exchange, answer: Answer) -> None:
        script = exchange.script
        if script is not None and script.fault is not None:
            self._strike(script.fault, stream, exchange, answer)
        elif script is not None and script.drip > 0:
            self.drip(stream, answer, script.drip)
        else:
            self.say(stream, answer)

    def _strike(self, fault: Fault, stream: int, exchange: Exchange, answer: Answer) -> None:
        self.service.counts.totals[f"fault_{fault}"] += 1
        code = exchange.script.code if exchange.script else 0
        match fault:
            case Fault.HANG:
                pass
            case Fault.RESET:
                self.reset()
            case Fault.CLOSE:
                self.transport.close()
            case Fault.TRUNCATE:
                self.truncate(stream, answer)
            case Fault.GARBAGE:
                self.transport.write(_GARBAGE)
                self.transport.close()
            case Fault.GOAWAY:
                self.go_away(stream, code)
            case Fault.RST_STREAM:
                self.stop_stream(stream, code)


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def bytes_of(text: bytes) -> Iterator[bytes]:
    for place in range(len(text)):
        yield text[place : place + 1]
