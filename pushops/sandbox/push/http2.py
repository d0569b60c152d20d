"""HTTP/2 on h2; what h2 would refuse to say is written as frames of its own."""

import asyncio
from typing import Final, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import GoAwayFrame

from pushops.sandbox.push.answers import Answer
from pushops.sandbox.push.service import Exchange, Request, Service
from pushops.sandbox.push.talk import Talk

STREAMS: Final = 1000  # at once on one connection
WINDOW: Final = 1 << 24  # bytes of bodies under way; never a limit for messages of 4 KB
_DRIPPED: Final = b"one byte at a time"
_HIDDEN: Final = frozenset({"connection", "transfer-encoding", "content-length"})


class Http2(Talk):
    """Many requests at once."""

    def __init__(self, service: Service, transport: asyncio.Transport) -> None:
        super().__init__(service, transport)
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding="latin-1",
                validate_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self._exchanges: dict[int, Exchange] = {}
        self._unsent: dict[int, bytes] = {}
        self._last: int | None = None
        self._h2.local_settings.update({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS})
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW)
        self._flush()

    def receive(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except h2.exceptions.ProtocolError:
            self._flush()
            self.transport.close()
            return
        self._flush()

    def say(self, stream: int, answer: Answer) -> None:
        if not 200 <= answer.status <= 999:  # noqa: PLR2004 - h2 would not end a stream with these
            self.truncate(stream, answer)
        elif self._open(stream):
            self._h2.send_headers(stream, self._fields(answer), end_stream=not answer.body)
            if answer.body:
                self._unsent[stream] = answer.body
                self._send_more(stream)
        self._closed(stream)

    def drip(self, stream: int, answer: Answer, pause: float) -> None:
        if not self._open(stream):
            return
        body = answer.body or _DRIPPED
        self._h2.send_headers(stream, self._fields(answer))
        self._flush()

        def one(place: int) -> None:
            if self._open(stream):
                last = place + 1 >= len(body)
                self._h2.send_data(stream, body[place : place + 1], end_stream=last)
                self._flush()
                if not last:
                    self.later(pause, lambda: one(place + 1))

        one(0)

    def truncate(self, stream: int, answer: Answer) -> None:
        if self._open(stream):
            promised = Answer(answer.status or 200)
            self._h2.send_headers(stream, [*self._fields(promised), ("content-length", "1000")])
            self._h2.send_data(stream, b"cut off")
            self._flush()
        self.transport.close()

    def stop_stream(self, stream: int, code: int) -> None:
        if self._open(stream):
            self._h2.reset_stream(stream, code)
        self._closed(stream)

    def go_away(self, stream: int, code: int) -> None:
        """Say that this stream and later ones were not processed; earlier ones are answered before the end."""
        self._last = stream - 2 if self._last is None else min(self._last, stream - 2)
        frame = GoAwayFrame(0, last_stream_id=max(self._last, 0), error_code=code)
        self._flush()
        self.transport.write(frame.serialize())
        for refused in [each for each in self._exchanges if each > self._last]:
            del self._exchanges[refused]
        self._end_if_idle()

    def _take(self, event: object) -> None:
        match event:
            case h2.events.RequestReceived():
                self._begin(event)
            case h2.events.DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None and not exchange.struck:
                    exchange.request.body += event.data
                    self.read_some(event.stream_id, exchange)
            case h2.events.StreamEnded():
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None and not exchange.struck:
                    self.read_all(event.stream_id, exchange)
            case h2.events.StreamReset():
                self._closed(event.stream_id)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in list(self._unsent):
                    self._send_more(stream)
            case _:
                pass

    def _begin(self, event: h2.events.RequestReceived) -> None:
        stream = event.stream_id
        if self._last is not None and stream > self._last:
            return
        headers = cast("dict[str, str]", dict(event.headers))  # header_encoding makes them text
        request = Request(
            headers[":method"], headers.get(":authority", ""), headers[":path"], headers, kept=self.requests > 0
        )
        self._exchanges[stream] = self.service.begin(request)
        self.began(stream, self._exchanges[stream])

    def _send_more(self, stream: int) -> None:
        if not self._open(stream):
            self._unsent.pop(stream, None)
            return
        body = self._unsent[stream]
        while body:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                self._unsent[stream] = body
                return
            self._h2.send_data(stream, body[:room], end_stream=len(body) <= room)
            body = body[room:]
        del self._unsent[stream]

    def _open(self, stream: int) -> bool:
        found = self._h2.streams.get(stream)
        return found is not None and not found.closed and not self.transport.is_closing()

    def _closed(self, stream: int) -> None:
        self._exchanges.pop(stream, None)
        self._flush()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._last is not None and not self._exchanges:
            self.transport.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _fields(self, answer: Answer) -> list[tuple[str, str]]:
        rest = ((name.lower(), value) for name, value in answer.headers if name.lower() not in _HIDDEN)
        return [(":status", str(answer.status)), ("date", self.service.date()), *rest]
