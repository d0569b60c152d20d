"""One PostgreSQL server in one folder, reached through a Unix socket only."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import quote, urlencode

from pushops.errors import PushopsError
from pushops.sandbox import processes
from pushops.sandbox.account import ENVIRONMENT, server_account
from pushops.sandbox.binaries import postgres_programs, runnable_postgres
from pushops.sandbox.folders import claim, claimed, release
from pushops.sandbox.sockets import make_socket_folder, socket_folder

SUPERUSER: Final = "pushops"
PORT: Final = 5432  # only part of the socket's name: nothing listens on TCP
NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
# Trust is safe here because of who can reach the socket: only the caller (and the servers' user) can enter its folder.
# Without a "host" line a listen_addresses option opens nothing either.
ACCESS: Final = "local all all trust\nlocal replication all trust\n"
# A killed server leaves nothing in /dev/shm when its dynamic shared memory lives in its folder.
DEFAULTS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

Strategy = Literal["file_copy", "wal_log"]


class PostgresServer:
    """A PostgreSQL server whose data, log and socket live in `folder`; it outlives the process that starts it."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str] = NO_OPTIONS,
        programs: Path | None = None,
    ) -> None:
        """`programs` is the folder of an installed PostgreSQL's programs; None means the wheel's."""
        self.folder = folder.resolve()
        self.port = port or PORT
        self.options = dict(options)
        self.programs = programs
        self.account = server_account()
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.sockets = socket_folder(self.folder, self.port)

    def start(self) -> None:
        """Start unless it runs, making the cluster first if there is none; returns when it takes connections."""
        if self.running():
            return
        self._make_folders()
        if not self.data.exists():
            self._initialise()
        self._clear_leftovers()
        self.account.make_file(self.folder / "pg_hba.conf", ACCESS)
        arguments = ["-l", str(self.log), "-t", "60", "-o", shlex.join(self._settings())]
        try:
            self._pg_ctl("start", *arguments)
        except PushopsError as error:
            raise PushopsError(f"{error}\n{self.log_tail()}") from error

    def stop(self, mode: str = "fast") -> None:
        """Stop and wait for it; `mode` is smart, fast or immediate."""
        if self.running():
            self._pg_ctl("stop", "-m", mode, "-t", "60")

    def kill(self) -> None:
        """Kill the postmaster and its children with SIGKILL, as a crash would; returns when they are gone."""
        pid = self.pid()
        if pid is not None:
            processes.send(pid, signal.SIGKILL)
        processes.wait_until(self._all_killed, 10, "the killed PostgreSQL's processes to go")

    def restart(self) -> None:
        self.stop()
        self.start()

    def running(self) -> bool:
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return the postmaster's pid, or None unless the process there really is this server."""
        pid = processes.read_pid(self.data / "postmaster.pid") if claimed(self.folder) else None
        if pid is None or not processes.is_ours(pid, self.account.uid, f"-D {self.data}"):
            return None
        return pid

    def url(self, database: str = "postgres", user: str | None = None) -> str:
        """Return the libpq URL of a database."""
        query = urlencode({"host": str(self.sockets), "port": self.port}, quote_via=quote, safe="")
        return f"postgresql://{quote(user or SUPERUSER, safe='')}@/{quote(database, safe='')}?{query}"

    def query(self, sql: str, database: str = "postgres") -> str:
        """Run one statement through psql, return its bare output; for set-up, before any driver is involved."""
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", sql]
        command[0] = str((self.programs or postgres_programs()) / "psql")
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise PushopsError(f"expected psql to succeed, got {done.stderr.strip()}")
        return done.stdout.strip()

    def create_database(self, name: str, template: str | None = None, *, strategy: Strategy | None = None) -> str:
        """Create a database, as a copy of `template` if named, and return its URL."""
        source = f" TEMPLATE {_identifier(template)}" if template else ""
        how = f" STRATEGY {strategy}" if strategy else ""
        self.query(f"CREATE DATABASE {_identifier(name)}{source}{how}")
        return self.url(name)

    def base_backup(
        self, folder: Path, *, slot: str | None = None, options: Mapping[str, str] | None = None
    ) -> "PostgresServer":
        """Copy this server into `folder` and start the copy as a hot standby that streams from it.

        `slot` names a replication slot to create and use; `options` default to this server's own.
        """
        options = self.options if options is None else options
        replica = PostgresServer(folder, port=self.port, options=options, programs=self.programs)
        try:
            replica.copy_from(self.url(), ["-C", "-S", slot] if slot else [])
            replica.start()
        except PushopsError:
            replica.remove()
            raise
        return replica

    def copy_from(self, source: str, arguments: Sequence[str] = ()) -> None:
        """Fill the folder with a base backup of the server at `source`, set up to follow it."""
        self._make_folders()
        fixed = ["-R", "-X", "stream", "-c", "fast", "-d", source]
        self._fill(lambda partial: self._program("pg_basebackup", "-D", str(partial), *fixed, *arguments))

    def remove(self) -> None:
        """Stop it, however it takes, and remove its folder, socket and shared memory."""
        if not claimed(self.folder):
            return
        try:
            self.stop("fast")
        except PushopsError:
            self.kill()
        if self.data.exists():
            self._release_shared_memory()
            # A removal cut short must not leave half a cluster that the next start takes for a whole one.
            self.data.rename(self.data.with_name(f"removed-{os.urandom(4).hex()}"))
        if self.sockets.exists():
            shutil.rmtree(self.sockets)
        release(self.folder)

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _settings(self) -> list[str]:
        fixed = {
            "port": str(self.port),
            "unix_socket_directories": f'"{self.sockets}"',
            "hba_file": str(self.folder / "pg_hba.conf"),
        }
        merged = {**DEFAULTS, **self.options, **fixed}
        return [part for name, value in merged.items() for part in ("-c", f"{name}={value}")]

    def _make_folders(self) -> None:
        claim(self.folder, self.account)
        make_socket_folder(self.account, self.sockets)
        if not self.log.exists():
            self.account.make_file(self.log, owned=True)

    def _initialise(self) -> None:
        fixed = ["-U", SUPERUSER, "-A", "trust", "--encoding=UTF8", "--no-sync", *self._locale()]
        self._fill(lambda partial: self._program("initdb", "-D", str(partial), *fixed))

    def _locale(self) -> list[str]:
        if "--builtin-locale" in self._program("initdb", "--help"):
            return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        return ["--locale=C.UTF-8"]  # before PostgreSQL 17 the C library's

    def _fill(self, make: Callable[[Path], str]) -> None:
        """Make the cluster beside its place and move it there when whole, so that a cut-off one is never used."""
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        self.account.make_folder(partial, owned=True)
        make(partial)
        partial.rename(self.data)

    def _clear_leftovers(self) -> None:
        """Remove what a killed server left: its pid may belong to somebody else by now, and then blocks the start."""
        self._all_killed()
        for stale in (self.data / "postmaster.pid", *self.sockets.glob(f".s.PGSQL.{self.port}*")):
            stale.unlink(missing_ok=True)

    def _all_killed(self) -> bool:
        left = processes.working_in(self.data, "postgres")
        for pid in left:
            processes.send(pid, signal.SIGKILL)
        return not left and self.pid() is None

    def _release_shared_memory(self) -> None:
        """Free a killed server's System V segment: a start in check mode recycles it and frees it on exit."""
        if (self.data / "postmaster.pid").exists():
            self._clear_leftovers()
            self._program("postgres", "--check", "-D", str(self.data), *self._settings())

    def _pg_ctl(self, verb: str, *arguments: str) -> None:
        self._program("pg_ctl", verb, "-s", "-w", "-D", str(self.data), *arguments)

    def _program(self, name: str, *arguments: str) -> str:
        programs = self.programs or runnable_postgres(self.account, self.folder / "binaries")
        return self.account.run([str(programs / name), *arguments], self.folder)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
