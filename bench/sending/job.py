"""What a contender is told, and what it tells."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

PAYLOAD: Final = "0123456789" * 50  # 500 bytes
TTL: Final = 3_600
WARM: Final = 50  # sends before the clock runs: imports, connections, the first token
SUBJECT: Final = "mailto:bench@pushops.dev"
KEY_ID: Final = "bench"

T = TypeVar("T")
Person = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """``people``: a file of subscriptions, one a line; the first ``WARM`` are for warming up. ``local``: host:port."""

    contender: str
    people: Path
    count: int
    local: str
    ca_file: Path

    def read(self) -> Iterator[Person]:
        """All that are to be sent to, those for warming up first."""
        with self.people.open() as file:
            yield from map(json.loads, itertools.islice(file, WARM + self.count))

    def local_people(self) -> list[Person]:
        """With endpoints that lead here, for senders that cannot be told where a name really is."""
        return [one | {"endpoint": self._here(one["endpoint"])} for one in self.read()]

    def _here(self, endpoint: str) -> str:
        return f"https://{self.local}/{endpoint.split('/', 3)[3]}"

    @property
    def as_json(self) -> str:
        return json.dumps(asdict(self), default=str)


@dataclass(frozen=True)
class Done:
    """``cpu``: seconds of this process's own; ``rss_mb``: memory by number of sends."""

    sent: int
    seconds: float
    cpu: float
    rss_mb: dict[str, float] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.sent / self.seconds


def timed(sent: int, work: Callable[[], object]) -> Done:
    """Let it work, on the clock."""
    started, cpu = time.monotonic(), time.process_time()
    work()
    return Done(sent, time.monotonic() - started, time.process_time() - cpu)


def each(people: Sequence[T], send: Callable[[T], object]) -> Done:
    """One after the other, those for warming up off the clock."""
    for one in people[:WARM]:
        send(one)

    def rest() -> None:
        for one in itertools.islice(people, WARM, None):
            send(one)

    return timed(len(people) - WARM, rest)


def resident_mb() -> float:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
