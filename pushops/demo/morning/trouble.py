"""The trouble: a worker is killed while it holds letters whose attempts have begun."""

import os
import signal
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.demo import store as purge
from pushops.demo.crew import Crew
from pushops.demo.faults import brewing
from pushops.demo.morning import store
from pushops.runtime import Runtime

LOOK_EVERY: Final = 0.005  # a group of letters is out for some hundredths of a second
SILENT: Final = timedelta(seconds=0.5)  # far longer than an answer takes here
LOST: Final = timedelta(seconds=3)  # nobody living takes so long
AT_ONCE: Final = timedelta()
HELD_WITHIN: Final = 1.0
BURIED_WITHIN: Final = 10.0
CALM: Final = 0.5  # between two freezes: a run must get on even where none of them hits


@dataclass
class Trouble:
    """Kills one worker of a run from a thread of its own, once ``after`` letters were sent again.

    ``left``: rows whose letters it had begun to send.
    """

    rt: Runtime
    crew: Crew
    run_id: UUID
    after: int
    killed: list[int] = field(default_factory=list)
    left: frozenset[bytes] = frozenset()
    news: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def brewing(self) -> AbstractContextManager[None]:
        return brewing(self._make, self._over, LOOK_EVERY)

    def _make(self) -> bool:
        if self._begun():
            self._try_to_kill()
        return bool(self.killed)

    def _begun(self) -> bool:
        with self.rt.db.transaction() as tx:
            return store.replayed_by(tx, self.run_id) >= self.after

    def _try_to_kill(self) -> None:
        """Freeze a worker that has a page in hand; if letters of it stay begun, it never wakes up again."""
        with self.rt.db.transaction() as tx:
            found = purge.in_hand(tx, self.run_id) if store.opened(tx, self.run_id, AT_ONCE) else None
        if found is None or not any(worker.owns(found.pid) for worker in self.crew.workers):
            return
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGSTOP)
            try:
                if self._begun_and_silent(SILENT, HELD_WITHIN):
                    os.kill(found.pid, signal.SIGKILL)
                    self._bury(found.pid)
            finally:
                os.kill(found.pid, signal.SIGCONT)
        self._over.wait(CALM)

    def _bury(self, pid: int) -> None:
        """What it had begun stays begun; what it had said in its last moment may still be written down."""
        self.killed.append(pid)
        self.left = self._begun_and_silent(LOST, BURIED_WITHIN)
        self.news.append(f"SIGKILL for worker process {pid}, which had begun to send {len(self.left)} letters")

    def _begun_and_silent(self, since: timedelta, within: float) -> frozenset[bytes]:
        deadline = time.monotonic() + within
        left: frozenset[bytes] = frozenset()
        while not left and time.monotonic() < deadline:
            with self.rt.db.transaction() as tx:
                left = frozenset(store.opened(tx, self.run_id, since))
            time.sleep(10 * LOOK_EVERY)
        return left
