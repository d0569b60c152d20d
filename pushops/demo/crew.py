"""The crew: real Celery workers and beats as processes of their own, with their logs in the demo's folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from pushops.demo.stage import undisturbed
from pushops.errors import PushopsError
from pushops.sandbox import processes

CELERY: Final = (sys.executable, "-m", "celery", "-A", "pushops.tasks")
START_SECONDS: Final = 90
LEAVE_SECONDS: Final = 15


class Member:
    """One process and the processes that it forks; they share a session, so that none can be left behind."""

    def __init__(self, folder: Path, name: str, arguments: list[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter)
                [*CELERY, *arguments],
                cwd=folder,  # where its celeryconfig is
                # A child that is killed leaves its temporary folder behind: let it lie where everything is removed.
                env=os.environ | {"PUSHOPS_LOG_LEVEL": "info", "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def says(self, text: str) -> bool:
        """Whether its log holds the text; PushopsError with the log's end if it is not alive to say more."""
        found = text in self.log.read_text(errors="replace")
        if not found and self._process.poll() is not None:
            raise PushopsError(f"expected {self.name} to live, got exit {self._process.returncode}:\n{self.tail()}")
        return found

    def owns(self, pid: int) -> bool:
        with suppress(ProcessLookupError):
            return os.getsid(pid) == self._process.pid
        return False

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in its log: JSON objects, after whatever Celery puts before them."""
        for line in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line[line.find("{") :])
                if isinstance(event, dict):
                    yield event

    def ask_to_leave(self) -> None:
        self._process.terminate()

    def gone(self) -> bool:
        return self._process.poll() is not None

    def remove(self) -> None:
        """Whatever of it is left, stopped processes included, goes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Crew:
    """All processes of the demo, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Member] = []
        self.beats: list[Member] = []

    @property
    def members(self) -> list[Member]:
        return [*self.beats, *self.workers]

    def hire_workers(self, count: int) -> None:
        for n in range(1, count + 1):
            quiet = ["--without-gossip", "--without-mingle"]
            arguments = ["worker", "-n", f"worker-{n}@%h", "-c", "1", "--loglevel", "INFO", *quiet]
            self.workers.append(Member(self._folder, f"worker-{n}", arguments))

    def hire_beats(self, count: int) -> None:
        for n in range(1, count + 1):
            files = ["--schedule", f"beat-{n}.schedule", "--pidfile", f"beat-{n}.pid"]
            self.beats.append(Member(self._folder, f"beat-{n}", ["beat", "--loglevel", "INFO", *files]))

    def wait_for_workers(self) -> None:
        for worker in self.workers:
            processes.wait_until(partial(worker.says, " ready."), START_SECONDS, f"{worker.name} to start")

    def dismiss(self, members: list[Member]) -> None:
        """Let them finish what they have in hand, and go on without those that do not."""
        for member in members:
            member.ask_to_leave()
        with suppress(PushopsError):
            processes.wait_until(lambda: all(m.gone() for m in members), LEAVE_SECONDS, "the crew to leave")
        for member in members:
            member.remove()


@contextmanager
def crew(folder: Path) -> Iterator[Crew]:
    hired = Crew(folder)
    try:
        yield hired
    finally:
        with undisturbed():
            for member in hired.members:
                member.remove()
