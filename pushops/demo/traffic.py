"""Live traffic: browsers whose rows are doomed come back, through the public verb, before and during the purge."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pushops
from pushops import Ops
from pushops.demo.browsers import Browser
from pushops.errors import PushopsError
from pushops.settings import Settings

ATTEMPTS: Final = 20  # as a web application would: what may succeed in a moment is tried again in a moment
PAUSE: Final = 0.1


@dataclass(frozen=True)
class Return:
    """One browser's return. ``inserted``: its tombstone had been purged before, so a new row was made."""

    id: UUID
    inserted: bool


class Traffic:
    """The browsers that come back, in random order; each once."""

    def __init__(self, settings: Settings, doomed: range, count: int) -> None:
        rng = random.Random(7)  # noqa: S311  (who comes back)
        self.returns: list[Return] = []
        self.errors: list[str] = []
        self._waiting = [Browser(n) for n in rng.sample(doomed, count)]
        self._ops = pushops.open(settings)
        self._stop = threading.Event()

    def come_back(self, count: int) -> None:
        """The next browsers come back, here and now."""
        for browser in self._next(count):
            self.returns.append(_register(self._ops, browser))

    @contextmanager
    def closed_at_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._ops.close()

    @contextmanager
    def flowing(self, seconds: float) -> Iterator[None]:
        """The rest come back one after the other within so many seconds, beside whatever the block does."""
        thread = threading.Thread(target=self._flow, args=(seconds / max(len(self._waiting), 1),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(timeout=30)

    def _next(self, count: int) -> Iterator[Browser]:
        while count and self._waiting:
            yield self._waiting.pop()
            count -= 1

    def _flow(self, every: float) -> None:
        for browser in self._next(len(self._waiting)):
            if self._stop.wait(every):
                return
            try:
                self.returns.append(_register(self._ops, browser))
            except PushopsError as error:
                self.errors.append(error.label)


def _register(ops: Ops, browser: Browser) -> Return:
    subscription = browser.subscribe()
    for _ in range(ATTEMPTS - 1):
        try:
            return _save(ops, browser, subscription)
        except PushopsError as error:
            if not error.retryable:
                raise
            time.sleep(PAUSE)
    return _save(ops, browser, subscription)


def _save(ops: Ops, browser: Browser, subscription: dict[str, object]) -> Return:
    saved = ops.save_subscription(subscription, user_id=browser.user, origin="https://news.example")
    return Return(saved.id, saved.inserted)
