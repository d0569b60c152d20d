"""Live traffic: small messages to single people, all the time, whatever else is sent."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

import pushops
from pushops import Ops
from pushops.demo.campaign.subscribers import Subscriber
from pushops.errors import PushopsError
from pushops.settings import Settings

CAMPAIGN: Final = "live"
PER_SECOND: Final = 12.0
TTL: Final = timedelta(minutes=10)


class Users:
    """A thread that sends to one after the other. ``phase`` names what goes on around them."""

    def __init__(self, settings: Settings, people: Sequence[Subscriber]) -> None:
        self.phase = "alone"
        self.sent: dict[UUID, str] = {}
        self.errors: list[str] = []
        self._people = people
        self._ops = pushops.open(settings)
        self._stop = threading.Event()
        self._rng = random.Random(6)  # noqa: S311  (to whom)

    @contextmanager
    def talking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._talk, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.hush()
            thread.join(timeout=30)
            self._ops.close()

    def hush(self) -> None:
        self._stop.set()

    def _talk(self) -> None:
        """At a rate that does not wait for answers, as people do not."""
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 1) + 1 / PER_SECOND
            phase = self.phase
            try:
                self.sent[_send(self._ops, self._rng.choice(self._people), len(self.sent))] = phase
            except PushopsError as error:
                self.errors.append(error.label)


def _send(ops: Ops, one: Subscriber, n: int) -> UUID:
    payload = {"title": "Your parcel is here", "id": f"live-{n}"}
    return ops.send(payload, user=one.user, ttl=TTL, urgency="high", campaign=CAMPAIGN, actor="demo").message_id
