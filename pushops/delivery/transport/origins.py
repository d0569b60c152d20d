"""How many requests a host is asked at once, and those that wait for their turn."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

from pushops.delivery.transport.request import Request
from pushops.delivery.transport.routes import Route

Waiting = tuple[Request[Any], Route]
KNOWN_MAX: Final = 1_000


class Origins:
    """Requests wait here and not in libcurl, whose deadline runs while they wait.

    A host takes as many requests as it has connections, until an answer shows that one connection carries many.
    """

    def __init__(self, connections: int) -> None:
        self.waiting = 0
        self._connections = connections
        self._lines: dict[str, deque[Waiting]] = {}
        self._out: Counter[str] = Counter()
        self._multiplexing: dict[str, None] = {}

    def put(self, host: str, waiting: Waiting) -> None:
        self._lines.setdefault(host, deque()).append(waiting)
        self.waiting += 1

    def take(self) -> Iterator[Waiting]:
        """Those whose turn it is."""
        for host, line in list(self._lines.items()):
            while line and (host in self._multiplexing or self._out[host] < self._connections):
                self._out[host] += 1
                self.waiting -= 1
                yield line.popleft()
            if not line:
                del self._lines[host]

    def done(self, host: str, *, multiplexes: bool) -> None:
        self._out[host] -= 1
        if self._out[host] <= 0:
            del self._out[host]
        if multiplexes:
            self._multiplexing.setdefault(host)
        elif host in self._multiplexing:
            del self._multiplexing[host]
        if len(self._multiplexing) > KNOWN_MAX:
            del self._multiplexing[next(iter(self._multiplexing))]

    def clear(self) -> None:
        self._lines.clear()
        self._out.clear()
        self.waiting = 0
