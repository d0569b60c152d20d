"""The process: one TLS port for all hosts, one loopback port for control, everything else in memory."""

import asyncio
import os
import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import cast

from pushops.sandbox.push.config import Config
from pushops.sandbox.push.control import Control
from pushops.sandbox.push.http1 import Http1
from pushops.sandbox.push.http2 import Http2
from pushops.sandbox.push.script import parse
from pushops.sandbox.push.service import Service
from pushops.sandbox.push.talk import Talk
from pushops.sandbox.push.tls import server_context

HOST = "127.0.0.1"
BACKLOG = 1024
GOODBYE_SECONDS = 0.5  # that a peer has to say goodbye too, once TLS is closed


class Connection(asyncio.Protocol):
    """A TLS connection, which speaks what the handshake agreed on."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._talk: Talk | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        agreed = stream.get_extra_info("ssl_object").selected_alpn_protocol()
        service = self._server.service
        service.counts.totals["connections_h2" if agreed == "h2" else "connections_http1"] += 1
        self._talk = Http2(service, stream) if agreed == "h2" else Http1(service, stream)
        self._server.open.add(stream)

    def data_received(self, data: bytes) -> None:
        if self._talk is not None:
            self._talk.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._talk is not None:
            self._talk.lost()
            self._server.open.discard(self._talk.transport)


class Server:
    """Listens, and can stop listening without giving its port away."""

    def __init__(self, folder: Path, config: Config, listening: socket.socket) -> None:
        self.service = Service(config.secret, decrypt=config.decrypt)
        self.service.browsers.endpoint_host = config.endpoint_host
        self.open: set[asyncio.Transport] = set()
        self._config = config
        self._socket: socket.socket | None = listening
        self._server: asyncio.Server | None = None
        self._context = server_context(folder, self.service.handshake)

    async def run(self, control_socket: socket.socket) -> None:
        """Serve until SIGTERM."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        loop.set_exception_handler(_hush)
        await self.up()
        control = Control(self, self._config.token)
        await loop.create_server(control.connection, sock=control_socket)
        await stopped.wait()

    async def up(self) -> None:
        """Accept connections, with nothing in the way."""
        if self._server is not None:
            return
        listening = self._socket or bind(self._config.port)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self),
            sock=listening,
            ssl=self._context,
            ssl_shutdown_timeout=GOODBYE_SECONDS,
            backlog=BACKLOG,
        )
        self._socket = None

    async def down(self, *, deaf: bool = False) -> None:
        """End the connections there are and refuse new ones; the port stays ours, but nobody listens on it.

        ``deaf``: the kernel takes connections, and nobody ever reads from them.
        """
        await self.up()
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for transport in list(self.open):
            transport.abort()
        self._socket = bind(self._config.port)
        if deaf:
            self._socket.listen(BACKLOG)

    def set_script(self, described: dict[str, object]) -> None:
        self.service.set_script(parse(described, self.serial_of))

    def serial_of(self, endpoint: str) -> int:
        found = self.service.subscribers.find_url(endpoint)
        return 0 if found is None else found.serial


def bind(port: int) -> socket.socket:
    """A bound socket on loopback; port 0 means any. Connections are refused until somebody listens on it."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((HOST, port))
    return found


def _hush(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Failed handshakes and torn connections are what this server is for: only surprises are logged."""
    if not isinstance(context.get("exception"), ssl.SSLError | ConnectionError):
        loop.default_exception_handler(context)


def serve(folder: Path, config: Config, listening: socket.socket, control_socket: socket.socket) -> None:
    """Run until told to stop, and leave no pid behind."""
    try:
        asyncio.run(Server(folder, config, listening).run(control_socket))
    finally:
        with suppress(FileNotFoundError):
            (folder / "push.pid").unlink()
        os._exit(0)  # a connection that drips for ever keeps nobody waiting
