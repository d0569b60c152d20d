"""Mozilla's WebSocket protocol, as a browser with dom.push.serverURL speaks it: autopush's words, one JSON a frame."""

import asyncio
import json
import time
import uuid
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Ping, Request, TextMessage
from wsproto.utilities import RemoteProtocolError

from pushops.sandbox.push.browsers import OK, Browser, Browsers


class WebSocket:
    """One browser's connection, from the moment that HTTP/1.1 has read its request."""

    def __init__(
        self, browsers: Browsers, transport: asyncio.Transport, path: str, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self._browsers = browsers
        self._transport = transport
        self._browser: Browser | None = None
        self._text = ""
        self._send = self._send_json  # one object for its whole life: a browser is told apart by it
        self._ws = WSConnection(ConnectionType.SERVER)
        try:
            self._ws.initiate_upgrade_connection(headers, path)
            self._handle_events()
        except RemoteProtocolError:
            transport.close()

    def receive(self, data: bytes) -> None:
        try:
            self._ws.receive_data(data)
            self._handle_events()
        except (RemoteProtocolError, ValueError):
            self._transport.close()

    def lost(self) -> None:
        if self._browser is not None:
            self._browsers.leave(self._browser, self._send)

    def _handle_events(self) -> None:
        for event in self._ws.events():
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case Request():
                offered = "push-notification"
                self._write(AcceptConnection(subprotocol=offered if offered in event.subprotocols else None))
            case Ping():
                self._write(event.response())
            case CloseConnection():
                self._write(event.response())
                self._transport.close()
            case TextMessage():
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    self._obey(json.loads(text))
            case _:
                pass

    def _obey(self, said: dict[str, Any]) -> None:
        match said.get("messageType", "ping"):
            case "ping":
                self._transport.write(self._ws.send(Message(data="{}")))
            case "hello":
                self._hello(said)
            case "register" if self._browser is not None:
                self._register(self._browser, said)
            case "unregister" if self._browser is not None:
                self._browsers.unregister(self._browser, said["channelID"])
                self._send({"messageType": "unregister", "channelID": said["channelID"], "status": OK})
            case "ack" if self._browser is not None:
                for update in said.get("updates", ()):
                    self._browsers.acknowledge(self._browser, update["channelID"], str(update["version"]))
            case "nack" | "broadcast_subscribe":
                pass
            case _:
                self._transport.close()

    def _hello(self, said: dict[str, Any]) -> None:
        self._browser = self._browsers.hello(said.get("uaid"), self._send)
        greeting = {"messageType": "hello", "uaid": self._browser.uaid, "status": OK, "use_webpush": True}
        self._send({**greeting, "broadcasts": {}})
        self._browsers.send_waiting(self._browser, time.time())

    def _register(self, browser: Browser, said: dict[str, Any]) -> None:
        channel = str(said["channelID"])
        answer: dict[str, Any] = {"messageType": "register", "channelID": channel}
        try:
            endpoint = self._browsers.register(browser, str(uuid.UUID(channel)), said.get("key"))
        except ValueError:
            self._send({**answer, "status": 400, "pushEndpoint": "Failed to generate endpoint"})
            return
        self._send({**answer, "status": OK, "pushEndpoint": endpoint})

    def _send_json(self, value: dict[str, Any]) -> None:
        self._write(Message(data=json.dumps(value)))

    def _write(self, event: Event) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._ws.send(event))
