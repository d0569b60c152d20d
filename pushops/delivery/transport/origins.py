"""How many requests a host is asked at once, and those that wait for their turn."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pushops.delivery.transport.request import Request
from pushops.delivery.transport.routes import Route

K = TypeVar("K")
Waiting = tuple[Request[Any], Route]
HOSTS_MAX: Final = 1_000
PORTS_MAX: Final = 10_000


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
        self._spoke_h2: dict[tuple[str, int], None] = {}

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

    def done(self, host: str) -> None:
        self._out[host] -= 1
        if self._out[host] <= 0:
            del self._out[host]

    def learn(self, host: str, port: int, *, multiplexes: bool) -> None:
        """What an answer shows about its host, and about its connection, which has this port on our side."""
        _mark(self._multiplexing, host, HOSTS_MAX, there=multiplexes)
        _mark(self._spoke_h2, (host, port), PORTS_MAX, there=multiplexes)

    def spoke_h2(self, host: str, port: int) -> bool:
        return (host, port) in self._spoke_h2

    def clear(self) -> None:
        self._lines.clear()
        self._out.clear()
        self.waiting = 0


def _mark(known: dict[K, None], key: K, most: int, *, there: bool) -> None:
    """Put a key into a set that forgets its oldest, or take it out."""
    if not there:
        known.pop(key, None)
    elif key not in known:
        if len(known) >= most:
            del known[next(iter(known))]
        known[key] = None
