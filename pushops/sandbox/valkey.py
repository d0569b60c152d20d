"""One Valkey server in one folder, on loopback with a random password."""

import secrets
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pushops.errors import PushopsError
from pushops.sandbox import processes
from pushops.sandbox.account import server_account
from pushops.sandbox.binaries import runnable_valkey
from pushops.sandbox.folders import claim, claimed, release, write_private

HOST: Final = "127.0.0.1"
ATTEMPTS: Final = 5
NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
# A broker that evicts keys loses tasks; nothing here needs to survive the server.
DEFAULTS: Final = {"maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}


class ValkeyServer:
    """A Valkey server whose settings, log and data live in `folder`; it outlives the process that starts it.

    It listens on TCP because kombu and redis-py spell a Unix socket's URL differently, and one URL must serve both.
    """

    def __init__(self, folder: Path, *, options: Mapping[str, str] = NO_OPTIONS, program: Path | None = None) -> None:
        """`program` is an installed Valkey or Redis server; None means the wheel's."""
        self.folder = folder.resolve()
        self.options = dict(options)
        self.program = program
        self.account = server_account()
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self._endpoint = self.folder / "endpoint"

    def start(self) -> None:
        """Start unless it runs; returns when it answers. It keeps its port, unless another took that meanwhile."""
        if self.running():
            return
        self._make_folders()
        for _ in range(ATTEMPTS):
            if self._try_start():
                return
            self._endpoint.unlink(missing_ok=True)
        raise PushopsError(f"expected Valkey to start, got\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop and wait for it; saves first when its options ask for that."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would; returns when it is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def running(self) -> bool:
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return its pid, or None unless the process there really is this server."""
        pid = processes.read_pid(self._pid_file) if claimed(self.folder) else None
        return pid if pid is not None and processes.is_ours(pid, self.account.uid, self._marker) else None

    def url(self, database: int = 0) -> str:
        """Return the URL that both redis-py and kombu take."""
        port, password = self._read_endpoint()
        return f"redis://:{password}@{HOST}:{port}/{database}"

    def remove(self) -> None:
        """Stop it, however it takes, and remove its folder."""
        try:
            self.stop()
        except PushopsError:
            self.kill()
        release(self.folder)

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    @property
    def _pid_file(self) -> Path:
        return self.data / "valkey.pid"

    @property
    def _name(self) -> str:
        return self.program.resolve().name if self.program else "valkey-server"

    @property
    def _marker(self) -> str:
        return f"--pidfile {self._pid_file}"

    def _make_folders(self) -> None:
        claim(self.folder, self.account)
        self.account.make_folder(self.data, owned=True)
        if not self.log.exists():
            self.account.make_file(self.log, owned=True)

    def _try_start(self) -> bool:
        """Start on the remembered port or a free one; False when the server gave up, as it does on a port in use."""
        self._pid_file.unlink(missing_ok=True)
        port, password = self._read_endpoint() if self._endpoint.exists() else self._new_endpoint()
        settings = self.folder / "valkey.conf"
        write_private(settings, self._settings(port, password))
        program = self.program or runnable_valkey(self.account, self.folder / "binaries")
        with (
            settings.open() as source
        ):  # over stdin: the password is in no argument, and in no file of the servers' user
            self.account.run([str(program), "-", "--pidfile", str(self._pid_file)], self.folder, source)
        processes.wait_until(lambda: self._answers(port, password) or self._gave_up(), 10, "an answer from Valkey")
        return self.running()

    def _settings(self, port: int, password: str) -> str:
        fixed = {
            "bind": HOST,
            "port": str(port),
            "requirepass": password,
            "daemonize": "yes",
            "dir": str(self.data),
            "logfile": str(self.log),
            "set-proc-title": "no",  # the arguments are how the process is known to be this server
        }
        return "".join(f"{name} {_value(value)}\n" for name, value in {**DEFAULTS, **self.options, **fixed}.items())

    def _answers(self, port: int, password: str) -> bool:
        if not self.running():
            return False
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            with connection.makefile("rb") as replies:
                return (replies.readline(), replies.readline()) == (b"+OK\r\n", b"+PONG\r\n")
        return False

    def _gave_up(self) -> bool:
        # It works in its folder before it writes its pid. Where that cannot be seen, only time tells.
        return processes.has_proc() and not processes.working_in(self.data, self._name) and not self.running()

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            processes.send(pid, number)
            processes.wait_until(lambda: not self.running(), 30, "the stopped Valkey to go")

    def _new_endpoint(self) -> tuple[int, str]:
        port, password = free_port(), secrets.token_urlsafe(24)
        write_private(self._endpoint, f"{port} {password}")
        return port, password

    def _read_endpoint(self) -> tuple[int, str]:
        port, password = self._endpoint.read_text().split()
        return int(port), password


def free_port() -> int:
    """Return a loopback port that is free right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _value(value: str) -> str:
    if "\n" in value:
        raise PushopsError("expected a Valkey option on one line, got a line break")
    return value or '""'
