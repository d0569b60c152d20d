"""Both servers as one thing with a folder of its own: up, down, status, and the URLs while it is up."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pushops.errors import PushopsError
from pushops.sandbox.account import server_account
from pushops.sandbox.postgres import PostgresServer
from pushops.sandbox.sockets import check_private
from pushops.sandbox.valkey import ValkeyServer, write_private

DATABASE: Final = "pushops"
FOLDER_VARIABLE: Final = "PUSHOPS_SANDBOX_DIR"
STATE: Final = "state.json"
LOCK: Final = "lock"
OURS: Final = frozenset({STATE, f"{STATE}.partial", LOCK, "postgres", "valkey"})


@dataclass(frozen=True)
class SandboxInfo:
    """Where a running sandbox is and how to reach it."""

    folder: Path
    database_url: str
    broker_url: str


@dataclass(frozen=True)
class SandboxStatus:
    """What runs, by pid; None for a server that does not."""

    folder: Path
    postgres_pid: int | None
    valkey_pid: int | None
    info: SandboxInfo | None

    @property
    def up(self) -> bool:
        return self.info is not None


class Sandbox:
    """A PostgreSQL and a Valkey server in `folder`, by default PUSHOPS_SANDBOX_DIR or one per user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()).resolve()
        self.postgres = PostgresServer(self.folder / "postgres")
        self.valkey = ValkeyServer(self.folder / "valkey")

    def up(self) -> SandboxInfo:
        """Start what does not run yet and return the URLs; safe to call twice, also at the same time."""
        self._make_folder()
        with self._locked():
            running = self.info()
            return running or self._start()

    def down(self) -> bool:
        """Stop both servers and remove everything; False when there was nothing to do."""
        if not self._exists():
            return False
        with self._locked():
            (self.folder / STATE).unlink(missing_ok=True)
            self.postgres.remove()
            self.valkey.remove()
            (self.folder / f"{STATE}.partial").unlink(missing_ok=True)
            (self.folder / LOCK).unlink()
        with suppress(OSError):  # not empty: another `up` has already begun
            self.folder.rmdir()
        return True

    def status(self) -> SandboxStatus:
        pids = (self.postgres.pid(), self.valkey.pid()) if self._exists() else (None, None)
        return SandboxStatus(self.folder, *pids, info=self.info())

    def info(self) -> SandboxInfo | None:
        """Return the URLs if both servers run, else None: one small file and two looks at the process table."""
        if not self._exists() or not self.postgres.running() or not self.valkey.running():
            return None
        with suppress(FileNotFoundError, ValueError, KeyError):
            state = json.loads((self.folder / STATE).read_text())
            return SandboxInfo(self.folder, state["database_url"], state["broker_url"])
        return None

    def _start(self) -> SandboxInfo:
        self.postgres.start()
        if self.postgres.query(f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'") != "1":
            self.postgres.create_database(DATABASE)
        self.valkey.start()
        urls = {"database_url": self.postgres.url(DATABASE), "broker_url": self.valkey.url()}
        write_private(self.folder / STATE, json.dumps(urls))
        return SandboxInfo(self.folder, **urls)

    def _make_folder(self) -> None:
        server_account().make_folder(self.folder)
        check_private(self.folder)
        foreign = sorted({entry.name for entry in self.folder.iterdir()} - OURS)
        if foreign:
            raise PushopsError(f"expected an empty folder for the sandbox, got {foreign[0]!r} in {self.folder}")

    def _exists(self) -> bool:
        """Whether there is a sandbox folder of the caller's; somebody else's in its place is refused, not believed."""
        if not (self.folder / LOCK).exists():
            return False
        check_private(self.folder)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the sandbox's lock, on the lock file that is there now: `down` removes it, `up` makes a new one."""
        descriptor = self._lock()
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        file = self.folder / LOCK
        while True:
            with suppress(FileNotFoundError):  # a `down` in between takes folder and file away: begin again
                server_account().make_folder(self.folder)
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_file(file, descriptor):
                    return descriptor
                os.close(descriptor)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def default_folder() -> Path:
    """Return PUSHOPS_SANDBOX_DIR, or a folder for this user in the temporary folder.

    XDG_RUNTIME_DIR would be more private, but is a small memory file system that vanishes when the user logs out.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"pushops-sandbox-{os.geteuid()}"
