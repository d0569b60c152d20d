"""Celery workers as one starts them, their logs, and what they wrote into them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.house import House, wait_for
from bench.timing import connected

READY: Final = "ready."
PROCESSES: Final = 2
_CONNECTED: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"""


@dataclass(frozen=True)
class Worker:
    """A running ``celery worker`` and the file that it logs into."""

    house: House
    log: Path
    pid: int

    def mark(self) -> int:
        """Where the log ends now."""
        return self.log.stat().st_size

    def events(self, since: int, name: str) -> list[dict[str, Any]]:
        """The events of one name that it has logged after a mark."""
        with self.log.open() as file:
            file.seek(since)
            found = [event for line in file for event in _objects(line)]
        return [event for event in found if event["event"] == name]

    def connections(self, application: str) -> int:
        with connected(self.house) as conn:
            row = conn.execute(_CONNECTED, [application]).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def working(house: House, app: str, processes: int = PROCESSES, **settings: object) -> Iterator[Worker]:
    """``celery -A APP worker -c PROCESSES``, ready; stopped at the end of the block."""
    log = house.folder / f"{app}.log"
    options = ["--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "-c", str(processes), *options]
    environment = house.environment(**settings) | {"TMPDIR": str(house.folder)}
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        wait_for(lambda: _ready(process, log), 60, f"the worker of {app} to be ready")
        yield Worker(house, log, process.pid)
    finally:
        _stop(process)
        log.unlink(missing_ok=True)


def _objects(line: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a line: two processes that log at once may share one."""
    at = line.find("{")
    while at >= 0:
        try:
            found, at = json.JSONDecoder().raw_decode(line, at)
        except ValueError:
            return
        if "event" in found:
            yield found
        at = line.find("{", at)


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> bool | None:
    if process.poll() is not None:
        raise RuntimeError(f"expected a worker, got exit {process.returncode}:\n{log.read_text()[-2000:]}")
    return True if READY in log.read_text() else None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
