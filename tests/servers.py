"""Private PostgreSQL and Valkey servers for tests: in a temporary folder, gone at exit whatever happens."""

import atexit
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from pushops.sandbox import PostgresServer, ValkeyServer

Server = TypeVar("Server", PostgresServer, ValkeyServer)


# Most tests have a database of their own, a thousand files: half of a run's time, where a disk has to make them.
MEMORY: Final = Path("/dev/shm")  # noqa: S108  (names there are as random as elsewhere)
ROOM: Final = 6 * 1024**3


def new_folder(prefix: str = "pushops-test") -> Path:
    """Name a folder that is not there yet: pytest's own are closed to `nobody`, who runs the servers under root."""
    return home() / f"{prefix}-{secrets.token_hex(6)}"


@functools.cache
def home() -> Path:
    """In memory where there is room for it, else where temporary files are."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    return MEMORY if roomy else Path(tempfile.gettempdir())


@contextmanager
def postgres(options: Mapping[str, str] | None = None, programs: Path | None = None) -> Iterator[PostgresServer]:
    """Yield a started server; stop and remove it afterwards."""
    with removed(PostgresServer(new_folder("pushops-pg"), options=options or {}, programs=programs)) as server:
        server.start()
        yield server


@contextmanager
def replica(primary: PostgresServer, slot: str | None = None) -> Iterator[PostgresServer]:
    """Yield a started hot standby of `primary`; stop and remove it afterwards."""
    with removed(primary.base_backup(new_folder("pushops-replica"), slot=slot)) as server:
        yield server


@contextmanager
def valkey(options: Mapping[str, str] | None = None, program: Path | None = None) -> Iterator[ValkeyServer]:
    """Yield a started server; stop and remove it afterwards."""
    with removed(ValkeyServer(new_folder("pushops-valkey"), options=options or {}, program=program)) as server:
        server.start()
        yield server


@contextmanager
def removed(server: Server) -> Iterator[Server]:
    """Remove `server` at the end of the block, and at the interpreter's exit if the block never ends."""
    atexit.register(server.remove)
    try:
        yield server
    finally:
        server.remove()
        atexit.unregister(server.remove)
