"""The demo on a small scale, as a newcomer runs it: in a process of its own, with traps around it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests import servers

SMALL: Final = ("--tombstones", "40000", "--live", "4000", "--seconds", "3")


@contextmanager
def new_place() -> Iterator[Path]:
    """A temporary folder that the servers can enter, and that is empty again at the end."""
    folder = servers.new_folder("demo")
    folder.mkdir(mode=0o755)
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    """With settings around it that name a database and a sandbox that it must not touch."""
    traps = {
        "TMPDIR": str(place),
        "PUSHOPS_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/not-this-one",
        "PUSHOPS_SANDBOX_DIR": str(place / "not-this-sandbox"),
        "PUSHOPS_SWEEP_WALK": "sideways",
        "PGOPTIONS": "-c default_transaction_read_only=on",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pushops.demo", *arguments],
        env=os.environ | traps,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(place: Path) -> list[str]:
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(place) in line]


def interrupt(place: Path, number: signal.Signals) -> None:
    """Signal the demo in the middle of its story; it says so, and nothing of it is left."""
    demo = start(place, *SMALL)
    assert demo.stdout is not None
    while "readers go on" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(number)
    out, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130
    assert json.loads(out.splitlines()[-1]) == {"ok": False, "error": "interrupted"}
    assert processes_of(place) == []
