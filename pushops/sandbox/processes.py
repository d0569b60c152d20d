"""Looking at processes that we did not fork ourselves, or that an earlier run of us did."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pushops.errors import PushopsError

PROC: Final = Path("/proc")
POLL_SECONDS: Final = 0.01


def is_ours(pid: int, uid: int, marker: str) -> bool:
    """Whether `pid` lives, belongs to `uid` and was started with `marker` in its arguments: pids are reused."""
    return f" {marker} " in f"{command_line(pid)} " and owner(pid) == uid


def command_line(pid: int) -> str:
    """Return the arguments joined by spaces; empty for a process that is gone or a zombie."""
    if not has_proc():
        return _ps(pid, "args")
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return ""


def owner(pid: int) -> int | None:
    if not has_proc():
        uid = _ps(pid, "uid")
        return int(uid) if uid else None
    with suppress(OSError):
        return (PROC / str(pid)).stat().st_uid
    return None


def working_in(folder: Path, program: str) -> list[int]:
    """Return the processes of `program` whose working directory is `folder`; none where there is no /proc."""
    return [pid for pid in _pids() if _link(pid, "cwd") == str(folder) and Path(_link(pid, "exe")).name == program]


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Callable[[], bool], seconds: float, expected: str) -> None:
    """Poll `condition` until it holds; PushopsError saying what was `expected` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise PushopsError(f"expected {expected} within {seconds:g} s, got none")
        time.sleep(POLL_SECONDS)


def read_pid(file: Path) -> int | None:
    """Return the pid on the first line of a pid file; None when there is no such file or no pid in it."""
    with suppress(OSError, ValueError, IndexError):
        pid = int(file.read_text().splitlines()[0])
        return pid if pid > 1 else None
    return None


def has_proc() -> bool:
    return (PROC / "self").exists()


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()] if has_proc() else []


def _link(pid: int, name: str) -> str:
    with suppress(OSError):
        return str((PROC / str(pid) / name).readlink())
    return ""


def _ps(pid: int, column: str) -> str:
    arguments = ["ps", "-ww", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout.strip()
