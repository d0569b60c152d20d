"""The control API: JSON over HTTP/1.1 on loopback, for tests and the command line, with a token."""

import asyncio
import hmac
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import h11

from pushops.errors import PushopsError
from pushops.sandbox.push.answers import Answer, names
from pushops.sandbox.push.counts import Counts
from pushops.sandbox.push.http1 import written
from pushops.sandbox.push.outages import Listening, Outage, find, scripts_of
from pushops.sandbox.push.vendors import Vendor

if TYPE_CHECKING:
    from pushops.sandbox.push.server import Server

Command = Callable[[dict[str, Any]], Any]


class Control:
    """The commands by name; each takes the fields of a JSON object and gives back something that JSON can say."""

    def __init__(self, server: "Server", token: str) -> None:
        self._server = server
        self._service = server.service
        self._token = token
        self.commands: dict[str, Command] = {
            "ping": lambda _: "pong",
            "issue": self._issue,
            "set": lambda said: server.set_script(said["script"]),
            "clear": self._clear,
            "scripts": lambda _: list(self._service.scripts),
            "names": lambda _: names(),
            "counts": lambda _: self._service.counts.as_json(),
            "doubles": self._doubles,
            "reset_counts": self._reset_counts,
            "accepted": self._accepted,
            "received": self._received,
            "messages": self._messages,
            "unregister": lambda said: self._service.gone.update(map(server.serial_of, said["endpoints"])),
            "revive": lambda said: self._service.gone.difference_update(map(server.serial_of, said["endpoints"])),
            "decrypt": self._decrypt,
            "endpoint_host": lambda said: setattr(self._service.browsers, "endpoint_host", said["host"]),
            "outage": self._outage,
            "down": lambda _: server.down(),
            "up": lambda _: server.up(),
        }

    def connection(self) -> asyncio.Protocol:
        return ControlConnection(self)

    def allowed(self, headers: dict[bytes, bytes]) -> bool:
        return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self._token}".encode())

    def _issue(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        vendor, key = Vendor(said["service"]), said.get("application_server_key")
        distinct = bool(said.get("distinct_keys", False))
        return list(self._service.subscribers.issue(vendor, int(said.get("count", 1)), key, distinct_keys=distinct))

    def _clear(self, said: dict[str, Any]) -> list[str]:
        """Without a name everything, outages too."""
        chosen = [said["script"]] if "script" in said else list(self._service.scripts)
        return [name for name in chosen if self._service.clear_script(name)]

    def _doubles(self, _: dict[str, Any]) -> list[list[Any]]:
        return [[serial, message, times] for serial, message, times in self._service.counts.doubles.values()]

    def _reset_counts(self, _: dict[str, Any]) -> None:
        self._service.counts = Counts()

    def _accepted(self, said: dict[str, Any]) -> list[int]:
        serials = map(self._server.serial_of, said["endpoints"])
        return [self._service.counts.times_accepted(serial, said.get("message_id")) for serial in serials]

    def _received(self, said: dict[str, Any]) -> list[int]:
        return [self._service.counts.received.get(self._server.serial_of(each), 0) for each in said["endpoints"]]

    def _messages(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        return [message.as_json() for message in self._service.waiting(self._server.serial_of(said["endpoint"]))]

    def _decrypt(self, said: dict[str, Any]) -> None:
        self._service.decrypt = bool(said["on"])

    async def _outage(self, said: dict[str, Any]) -> list[str]:
        """In place of the one that is staged; without a name, none."""
        name = said.get("name")
        outage = Outage("all is well") if name is None else find(name)
        for old in [script for script in self._service.scripts if script.startswith("outage ")]:
            self._service.clear_script(old)
        for script in scripts_of(name) if name else []:
            self._server.set_script(script)
        self._service.clock_ahead = outage.clock_ahead
        if outage.listening is Listening.YES:
            await self._server.up()
        else:
            await self._server.down(deaf=outage.listening is Listening.DEAF)
        return [script for script in self._service.scripts if script.startswith("outage ")]


class ControlConnection(asyncio.Protocol):
    """POST /COMMAND with a JSON object; 200 and a JSON value, or 400 and {"error": ...}."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._h11 = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._h11.receive_data(data)
        while True:
            match self._h11.next_event():
                case h11.Request() as head:
                    self._head, self._body = head, bytearray()
                case h11.Data() as part:
                    self._body += part.data
                case h11.EndOfMessage():
                    self._task = asyncio.create_task(self._answer())
                case _:
                    return

    async def _answer(self) -> None:
        status, value = await self._run()
        answer = Answer(
            status, (("Content-Type", "application/json"), ("Connection", "close")), json.dumps(value).encode()
        )
        if self._transport is not None:
            self._transport.write(written(answer))
            self._transport.close()

    async def _run(self) -> tuple[int, Any]:
        assert self._head is not None  # noqa: S101 - the end of a message follows its head
        if not self._control.allowed(dict(self._head.headers)):
            return 401, {"error": "expected the token of this service's folder"}
        command = self._control.commands.get(self._head.target.decode().lstrip("/"))
        if command is None:
            return 404, {"error": f"expected one of {', '.join(self._control.commands)}"}
        try:
            result = command(json.loads(self._body or b"{}"))
            return 200, await result if inspect.isawaitable(result) else result
        except (PushopsError, ValueError, TypeError, KeyError, OSError) as error:
            return 400, {"error": str(error) or type(error).__name__}
