"""A shift's work on the database, done beside it: the next rows are claimed and the last answers settled while the
network and encryption go on.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pushops.delivery import claiming, holds, settling
from pushops.delivery.claiming import Taken
from pushops.delivery.meaning import patiently
from pushops.delivery.settling import Attempt, Settled
from pushops.delivery.store import lanes as lanes_store
from pushops.delivery.store.lanes import Lane
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX

THREADS: Final = 3  # each takes one connection; the shift itself takes another


@dataclass(frozen=True)
class Brought:
    """What was claimed of a push service, ``since`` on the monotonic clock."""

    service: str
    lanes: Sequence[Lane]
    taken: Taken
    since: float


@dataclass
class Look:
    """Push services that have something due, and what was claimed, up to the error that ended it."""

    services: Collection[str] = ()
    brought: list[Brought] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True)
class Batch:
    """Attempts of one push service that are being settled."""

    attempts: Sequence[Attempt]
    _settled: "Future[Settled]"

    def done(self) -> bool:
        return self._settled.done()

    def result(self) -> Settled:
        """Waits for it; raises what the settling raised."""
        return self._settled.result()


class Clerk:
    """Threads for one shift. What they return is taken in by the shift, which shares nothing else with them."""

    def __init__(self, rt: Runtime, keys: Collection[str], token: UUID) -> None:
        self._rt = rt
        self._keys = keys
        self._token = token
        self._threads = ThreadPoolExecutor(min(THREADS, rt.settings.pool_size - 1), "pushops-clerk")

    def look(
        self, busy: Collection[str], sizes: Mapping[str, int], least: int, without: Collection[UUID]
    ) -> "Future[Look]":
        """Claim for every push service that is not busy, as many rows as ``sizes`` says or else ``least``."""
        return self._threads.submit(self._look, busy, sizes, least, without)

    def settle(self, service: str, attempts: Sequence[Attempt]) -> Batch:
        return Batch(attempts, self._threads.submit(self._settle, service, attempts))

    def close(self) -> None:
        """Waits for what was begun."""
        self._threads.shutdown()

    def _look(self, busy: Collection[str], sizes: Mapping[str, int], least: int, without: Collection[UUID]) -> Look:
        found = Look()
        try:
            with self._rt.db.transaction(planner=PLAN_INDEX) as tx:
                lanes = lanes_store.by_service(lanes_store.due(tx))
            found.services = lanes.keys()
            for name in lanes.keys() - busy:
                found.brought.append(self._take(name, self._signable(lanes[name]), sizes.get(name, least), without))
        except Exception as error:  # noqa: BLE001  (raised by the shift, which first takes in what was claimed)
            found.error = error
        return found

    def _take(self, service: str, lanes: Sequence[Lane], limit: int, without: Collection[UUID]) -> Brought:
        since = time.monotonic()
        lease = self._rt.settings.send_lease
        taken = claiming.take(self._rt, service, lanes, token=self._token, lease=lease, limit=limit, without=without)
        return Brought(service, lanes, taken, since)

    def _signable(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Lanes whose key we hold. The others are held for it, and let go when the key is back."""
        missing = [lane for lane in lanes if lane.vapid_key_id not in self._keys]
        for lane in missing:
            if not lane.held:
                holds.open_for_cause(self._rt, lane.lane_id, holds.NO_KEY)
        return [lane for lane in lanes if lane not in missing]

    def _settle(self, service: str, attempts: Sequence[Attempt]) -> Settled:
        return patiently(lambda: settling.settle(self._rt, service, self._token, attempts))
