"""Where a server's Unix socket goes: in the server's folder, or in a short one when that path is too long."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from pushops.errors import PushopsError
from pushops.sandbox.account import Account
from pushops.sandbox.folders import check_private

SOCKET_BYTES: Final = 100  # the kernels allow 103 (macOS) to 107 (Linux), the final zero byte excluded


def socket_folder(folder: Path, port: int) -> Path:
    """Return the folder for the socket of a server in `folder`: always the same one for the same server."""
    near = folder / "run"
    if fits(near, port):
        return near
    name = f"pushops-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    for parent in (Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()):  # noqa: S108 - ownership is checked
        if fits(parent / name, port):
            return parent / name
    raise PushopsError(f"expected room for a socket path under {SOCKET_BYTES} bytes, got none for {folder}")


def fits(folder: Path, port: int) -> bool:
    return len(os.fsencode(folder / f".s.PGSQL.{port}")) < SOCKET_BYTES


def make_socket_folder(account: Account, folder: Path) -> None:
    """Make the folder; PushopsError if somebody else made it first, for instance under its known name in /tmp."""
    account.make_folder(folder, writable=True)
    check_private(folder)
