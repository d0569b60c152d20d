"""The audience's other half: connections that read all the time, and notice when they have to wait."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import Connection

from pushops.db.transaction import render
from pushops.demo import store
from pushops.demo.browsers import Browser

EVERY: Final = 0.2  # seconds between the looks of one reader


class Readers:
    """Threads with a connection each. ``phase`` names what goes on around them; waits are kept by phase."""

    def __init__(self, database_url: str, schema: str, users: range, count: int) -> None:
        self.phase = "alone"
        self.count = count
        self.errors: list[str] = []
        self._url, self._users = database_url, users
        self._query = render(store.READ, schema)
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(count)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(timeout=10)

    def reads(self, phase: str) -> int:
        return len(self._waits[phase])

    def p99_ms(self, phase: str) -> float:
        return percentile(self._waits[phase], 0.99) * 1000

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  (who reads what)
        try:
            with psycopg.connect(self._url, autocommit=True, application_name="demo-reader") as conn:
                while not self._stop.wait(rng.uniform(0, 2 * EVERY)):
                    self._read(conn, Browser(rng.choice(self._users)).user)
        except psycopg.Error as error:
            self.errors.append(type(error).__name__)

    def _read(self, conn: Connection[Any], user: str) -> None:
        phase, started = self.phase, time.monotonic()
        found = conn.execute(self._query, {"user": user}).fetchall()
        self._waits[phase].append(time.monotonic() - started)
        if not found:
            self.errors.append("a live subscription was not found")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
