"""The trouble: a message that is delivered twice, and a worker that is killed in the middle of a transaction."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from celery import Celery

from pushops.demo import store
from pushops.demo.crew import Crew
from pushops.errors import PushopsError
from pushops.runtime import Runtime

LOOK_EVERY: Final = 0.002  # a batch takes some hundredths of a second
HELD_WITHIN: Final = 1.0
GONE_WITHIN: Final = 10.0


@contextmanager
def brewing(make: Callable[[], bool], over: threading.Event, every: float) -> Iterator[None]:
    """Try in a thread of its own until the trouble is made, or the block ends; ``every`` so many seconds."""

    def tries() -> None:
        while not over.is_set():
            with suppress(PushopsError):  # a database in distress is looked at again
                if make():
                    return
            time.sleep(every)

    thread = threading.Thread(target=tries, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=30)


@dataclass
class Trouble:
    """Makes trouble for one run from a thread of its own, and remembers what it did."""

    rt: Runtime
    crew: Crew
    run_id: UUID
    killed: list[UUID] = field(default_factory=list)
    doubled: UUID | None = None
    news: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def brewing(self) -> AbstractContextManager[None]:
        return brewing(self._make, self._over, LOOK_EVERY)

    def _make(self) -> bool:
        if self.doubled is None:
            self._deliver_again()
        else:
            self._try_to_kill()
        return bool(self.doubled and self.killed)

    def _deliver_again(self) -> None:
        """Send the first batch's message once more, now that the batch is done."""
        with self.rt.db.transaction() as tx:
            batch = store.first_done(tx, self.run_id)
        if batch is not None:
            send_batches(self.rt, self.run_id, batch)
            self.doubled = batch
            self.news.append("a message whose batch is done is delivered a second time")

    def _try_to_kill(self) -> None:
        """Freeze a worker that has a batch in hand; if that left a transaction open, it never wakes up again."""
        with self.rt.db.transaction() as tx:
            found = store.in_hand(tx, self.run_id)
        if found is None or not any(worker.owns(found.pid) for worker in self.crew.workers):
            return
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGSTOP)
            try:
                backend = self._left_open(found.batch_id)
                if backend is not None:
                    os.kill(found.pid, signal.SIGKILL)
                    if self._within(GONE_WITHIN, lambda: not self._connected(backend)):
                        self.killed.append(found.batch_id)
                        self.news.append(f"SIGKILL for worker process {found.pid}, whose transaction was open")
            finally:
                os.kill(found.pid, signal.SIGCONT)

    def _left_open(self, batch_id: UUID) -> int | None:
        backends: list[int] = []

        def look() -> bool:
            with self.rt.db.transaction() as tx:
                backend = store.held_open(tx, batch_id)
            backends.extend([backend] if backend is not None else [])
            return bool(backends)

        return backends[0] if self._within(HELD_WITHIN, look) else None

    def _connected(self, backend: int) -> bool:
        with self.rt.db.transaction() as tx:
            return store.connected(tx, backend)

    @staticmethod
    def _within(seconds: float, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not (found := condition()) and time.monotonic() < deadline:
            time.sleep(10 * LOOK_EVERY)
        return found


def send_batches(rt: Runtime, run_id: UUID, batch_id: UUID) -> None:
    """The message that the dispatcher sent, word for word, from a producer that knows nothing of pushops."""
    url = rt.settings.broker_url
    assert url is not None  # noqa: S101  (the stage set it)
    with Celery(broker=url.get_secret_value(), set_as_current=False) as producer:
        producer.send_task("pushops.sweep_batches", [str(run_id), [str(batch_id)]], queue=rt.settings.queue)
