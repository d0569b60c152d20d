"""Where messages are sent from and watched: public verbs on one side, ledger and push service on the other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops import Ops
from pushops.demo.campaign import store
from pushops.demo.campaign.judging import Counted
from pushops.demo.campaign.store import Progress
from pushops.demo.campaign.subscribers import PATIENCE, Subscriber
from pushops.demo.telling import Teller
from pushops.errors import PushopsError
from pushops.sandbox import processes
from pushops.sandbox.push import PushService

LOOK_EVERY: Final = 0.5
WAIT_SECONDS: Final = 240.0  # beyond what any message should take: the machine may be busy
TTL: Final = timedelta(hours=1)


@dataclass
class Desk:
    """Messages by the name of their act."""

    ops: Ops
    service: PushService
    teller: Teller
    messages: dict[str, UUID] = field(default_factory=dict)

    def send(self, name: str, tags: Sequence[str] | None = None) -> None:
        """The id in the payload is how the push service tells a second copy from another message."""
        payload = {"title": "Hello", "body": f"This is the {name} message of the demo.", "id": name}
        self.service.reset_counts()
        sent = self.ops.send(payload, origin=store.ORIGIN, tags=tags, campaign=name, ttl=TTL, actor="demo")
        self.messages[name] = sent.message_id

    def watch(self, name: str, over: Callable[[Progress], bool]) -> None:
        """Show how far a message is until it is over; raises PushopsError past the patience."""
        deadline = time.monotonic() + WAIT_SECONDS
        processes.wait_until(lambda: self._look(name).complete, WAIT_SECONDS, "a worker to fan out")
        with self.teller.progress(name, self._look(name).recipients) as moved:
            while not self._is_over(name, over, moved):
                if time.monotonic() > deadline:
                    raise PushopsError(f"expected {name} to get on, got {self._look(name)}")
                time.sleep(LOOK_EVERY)

    def ledger(self, name: str) -> dict[bytes, store.Entry]:
        with self.ops.runtime.db.transaction(statement_timeout=PATIENCE) as tx:
            return {entry.endpoint_hash: entry for entry in store.ledger(tx, self.messages[name])}

    def count(self, name: str, everyone: Sequence[Subscriber]) -> Counted:
        """What the push service says of a message, by row."""
        endpoints = [one.endpoint for one in everyone]
        hashes = [one.endpoint_hash for one in everyone]
        accepted = dict(zip(hashes, self.service.accepted(endpoints, name), strict=True))
        requests = dict(zip(hashes, self.service.received(endpoints), strict=True))
        undecryptable = int(self.service.counts().get("undecryptable", 0))
        return Counted(self.ledger(name), accepted, requests, undecryptable)

    def _look(self, name: str) -> Progress:
        with self.ops.runtime.db.transaction(statement_timeout=PATIENCE) as tx:
            return store.progress(tx, self.messages[name])

    def _is_over(self, name: str, over: Callable[[Progress], bool], moved: Callable[[int, str], None]) -> bool:
        now = self._look(name)
        moved(now.ended, f"{now.accepted:,} accepted, {now.waiting:,} wait")
        return over(now)
