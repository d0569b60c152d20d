"""All servers as one thing with a folder of its own: up, down, status, and how to reach them while it is up."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pushops.errors import PushopsError
from pushops.sandbox.account import Account, server_account
from pushops.sandbox.folders import MARKER, claim, claimed, release
from pushops.sandbox.keys import read_or_make_keys
from pushops.sandbox.postgres import PostgresServer
from pushops.sandbox.push import PushService
from pushops.sandbox.valkey import ValkeyServer

DATABASE: Final = "pushops"
FOLDER_VARIABLE: Final = "PUSHOPS_SANDBOX_DIR"


@dataclass(frozen=True)
class SandboxInfo:
    """Where a running sandbox is and how to reach it.

    ``ca_file`` and ``connect_to`` lead a sender to the sandbox's push service in place of the vendors'.
    """

    folder: Path
    database_url: str
    broker_url: str
    ca_file: Path
    connect_to: Mapping[str, str]

    def settings(self) -> dict[str, Any]:
        """The settings that lead here, by field name."""
        urls = {"database_url": self.database_url, "broker_url": self.broker_url}
        kept = {"payload_store": (self.folder / "payloads").as_uri(), "spool": str(self.folder / "spool")}
        return {**urls, **kept, "ca_file": str(self.ca_file), "connect_to": dict(self.connect_to)}


@dataclass(frozen=True)
class SandboxStatus:
    """What runs, by pid; None for a server that does not, and no info unless all do."""

    folder: Path
    postgres_pid: int | None
    valkey_pid: int | None
    push_pid: int | None
    info: SandboxInfo | None


class Sandbox:
    """A PostgreSQL, a Valkey and a push service in `folder`, by default PUSHOPS_SANDBOX_DIR or one per user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.account = server_account()
        self.folder = (folder or default_folder(self.account)).expanduser().absolute()
        self.postgres = PostgresServer(self.folder / "postgres")
        self.valkey = ValkeyServer(self.folder / "valkey")
        self.push = PushService(self.folder / "push")

    def up(self) -> SandboxInfo:
        """Start what does not run yet and return the URLs; safe to call twice, also at the same time."""
        with self._locked():
            self.postgres.start()
            if not self.postgres.query(f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"):
                self.postgres.create_database(DATABASE)
            self.valkey.start()
            self.push.start()
            return self._info()

    def down(self) -> bool:
        """Stop all servers and remove everything; False when there was nothing to do."""
        if not claimed(self.folder):
            return False
        with self._locked():
            self.postgres.remove()
            self.valkey.remove()
            self.push.remove()
            release(self.folder)
        return True

    def status(self) -> SandboxStatus:
        servers = (self.postgres, self.valkey, self.push)
        pids = [server.pid() for server in servers] if claimed(self.folder) else [None] * len(servers)
        return SandboxStatus(self.folder, pids[0], pids[1], pids[2], self._info() if all(pids) else None)

    def info(self) -> SandboxInfo | None:
        """Return the URLs if all servers run, else None: a few small files and two looks at the process table."""
        return self.status().info

    def keys(self) -> dict[str, Any]:
        """The key settings of a sandbox that is up, by field name: made at the first call, the same ever after."""
        with self._locked():
            return read_or_make_keys(self.folder)

    def environment(self) -> dict[str, str] | None:
        """What to export so that any process uses this sandbox, keys included; None when it is not up."""
        info = self.info()
        if info is None:
            return None
        found = {**info.settings(), **self.keys()}
        return {f"PUSHOPS_{name.upper()}": _as_text(value) for name, value in found.items()}

    def _info(self) -> SandboxInfo:
        urls = self.postgres.url(DATABASE), self.valkey.url()
        return SandboxInfo(self.folder, *urls, self.push.ca_file, self.push.connect_to())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = self._lock()
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        """Lock the folder's mark, the one that is there now: `down` takes folder and mark away under the lock."""
        while True:
            with suppress(FileNotFoundError):  # taken away between two of these lines: begin again
                claim(self.folder, self.account)
                descriptor = os.open(self.folder / MARKER, os.O_RDWR | os.O_NOFOLLOW)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_file(self.folder / MARKER, descriptor):
                    return descriptor
                os.close(descriptor)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def default_folder(account: Account) -> Path:
    """Return PUSHOPS_SANDBOX_DIR, or a folder for this user in the first temporary folder that the servers can enter.

    XDG_RUNTIME_DIR would be more private, but is a small memory file system that vanishes when the user logs out.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    parents = [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - claim() checks the owner
    parent = next((parent for parent in parents if account.can_enter(parent)), None)
    if parent is None:
        raise PushopsError(f"expected a temporary folder that the servers can enter, got none: set {FOLDER_VARIABLE}")
    return parent.resolve() / f"pushops-sandbox-{os.geteuid()}"


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
