"""HTTP/1.1: h11 reads; what is written is spelled out here, because h11 refuses to say what a broken peer says."""

import asyncio
from typing import Final

import h11

from pushops.sandbox.push.answers import Answer
from pushops.sandbox.push.service import Exchange, Request, Service
from pushops.sandbox.push.talk import Talk, bytes_of, phrase
from pushops.sandbox.push.websocket import WebSocket

ONLY: Final = 1  # there is one request at a time
_NO_BODY: Final = frozenset({204, 304})
_PROMISED: Final = 1000


class Http1(Talk):
    """One request after another, or a WebSocket once that was asked for."""

    def __init__(self, service: Service, transport: asyncio.Transport) -> None:
        super().__init__(service, transport)
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
        self._exchange: Exchange | None = None
        self._socket: WebSocket | None = None

    def receive(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.receive(data)
            return
        self._h11.receive_data(data)
        self._read()

    def lost(self) -> None:
        super().lost()
        if self._socket is not None:
            self._socket.lost()

    def say(self, stream: int, answer: Answer) -> None:  # noqa: ARG002 - there is one stream
        self.transport.write(written(answer, self.service.date()))
        self._answered(answer)

    def drip(self, stream: int, answer: Answer, pause: float) -> None:  # noqa: ARG002 - there is one stream
        remaining = bytes_of(written(answer, self.service.date()))

        def one() -> None:
            byte = next(remaining, None)
            if byte is None:
                self._answered(answer)
            else:
                self.transport.write(byte)
                self.later(pause, one)

        one()

    def truncate(self, stream: int, answer: Answer) -> None:  # noqa: ARG002 - there is one stream
        head = f"HTTP/1.1 {answer.status or 200} OK\r\nContent-Length: {_PROMISED}\r\n\r\n"
        self.transport.write(head.encode() + b"cut off")
        self.transport.close()

    def _read(self) -> None:
        while not self.transport.is_closing():
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError:
                self.transport.write(written(Answer(400)))
                self.transport.close()
                return
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                if self._h11.they_are_waiting_for_100_continue:
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self._h11.send(h11.InformationalResponse(status_code=100, headers=[]))
                return
            self._take(event)

    def _take(self, event: object) -> None:
        match event:
            case h11.Request():
                self._begin(event)
            case h11.Data() if self._exchange is not None and not self._exchange.struck:
                self._exchange.request.body += event.data
                self.read_some(ONLY, self._exchange)
            case h11.EndOfMessage() if self._exchange is not None and not self._exchange.struck:
                self.read_all(ONLY, self._exchange)
            case _:
                pass

    def _begin(self, event: h11.Request) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        path = event.target.decode("latin-1")
        if headers.get("upgrade", "").lower() == "websocket":
            self._socket = WebSocket(self.service.browsers, self.transport, path, list(event.headers))
            return
        request = Request(event.method.decode(), headers.get("host", ""), path, headers, kept=self.requests > 0)
        self._exchange = self.service.begin(request)
        self.began(ONLY, self._exchange)

    def _answered(self, answer: Answer) -> None:
        """Tell h11 that something was said, whatever it was, so that it reads the next request."""
        if not 200 <= answer.status <= 999:  # noqa: PLR2004 - nothing after that can be believed
            self.transport.close()
            return
        self._h11.send(h11.Response(status_code=204, headers=[]))
        self._h11.send(h11.EndOfMessage())
        if self._h11.our_state is h11.MUST_CLOSE:
            self.transport.close()
        elif self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            asyncio.get_running_loop().call_soon(self._read)


def written(answer: Answer, date: str | None = None) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {answer.status} {phrase(answer.status)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if date is not None:
        lines.append(f"Date: {date}")
    if answer.status not in _NO_BODY:
        lines.append(f"Content-Length: {len(answer.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + answer.body
