"""How many requests a host is asked at once, and those that wait for their turn."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pushops.delivery.transport.request import Request
from pushops.delivery.transport.routes import Route

K = TypeVar("K")
V = TypeVar("V")
HOSTS_MAX: Final = 1_000
PORTS_MAX: Final = 10_000
# Connections to a host that has not answered yet: few, since one may carry all, and more than one, since it may hang.
FIRST_CONTACT: Final = 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in line ``since`` a moment on the monotonic clock."""

    request: Request[Any]
    route: Route
    since: float


class Origins:
    """Requests wait here and not in libcurl, whose deadline runs while they wait.

    A host that speaks HTTP/1.1 takes as many requests as it may have connections.
    """

    def __init__(self, connections: int) -> None:
        self.waiting = 0
        self._connections = connections
        self._lines: dict[str, deque[Waiting]] = {}
        self._out: Counter[str] = Counter()
        self._multiplexes: dict[str, bool] = {}
        self._spoke_h2: dict[tuple[str, int], bool] = {}

    def put(self, host: str, waiting: Waiting) -> None:
        self._lines.setdefault(host, deque()).append(waiting)
        self.waiting += 1

    def take(self) -> Iterator[Waiting]:
        """Those whose turn it is."""
        for host in list(self._lines):
            while host in self._lines and self._has_room(host):
                self._out[host] += 1
                yield self._pop(host)

    def overdue(self, before: float) -> Iterator[Waiting]:
        """Those that came before a moment and may wait no longer."""
        for host in list(self._lines):
            while host in self._lines and self._lines[host][0].since < before:
                yield self._pop(host)

    def done(self, host: str) -> None:
        self._out[host] -= 1
        if self._out[host] <= 0:
            del self._out[host]

    def learn(self, host: str, port: int, *, multiplexes: bool) -> None:
        """What an answer shows about its host, and about its connection, which has this port on our side."""
        _remember(self._multiplexes, host, multiplexes, HOSTS_MAX)
        _remember(self._spoke_h2, (host, port), multiplexes, PORTS_MAX)

    def multiplexes(self, host: str) -> bool:
        return self._multiplexes.get(host, False)

    def spoke_h2(self, host: str, port: int) -> bool:
        return self._spoke_h2.get((host, port), False)

    def clear(self) -> None:
        self._lines.clear()
        self._out.clear()
        self.waiting = 0

    def _has_room(self, host: str) -> bool:
        known = self._multiplexes.get(host)
        if known is None:
            return self._out[host] < min(FIRST_CONTACT, self._connections)
        return known or self._out[host] < self._connections

    def _pop(self, host: str) -> Waiting:
        line = self._lines[host]
        waiting = line.popleft()
        self.waiting -= 1
        if not line:
            del self._lines[host]
        return waiting


def _remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value, and of the keys so many."""
    if key not in known and len(known) >= most:
        del known[next(iter(known))]
    known[key] = value
