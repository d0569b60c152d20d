"""The route of each host, remembered; behind a proxy, with the address that we looked up and checked.

A proxy that is given a name resolves it itself, where we cannot look. It is given an address instead.
"""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Final

from pushops.delivery.answer import Fault
from pushops.delivery.transport.routes import HTTPS, Route, Target, route
from pushops.delivery.transport.rules import TransportRules

KNOWN_MAX: Final = 1_000
GOOD_FOR: Final = 60.0  # seconds that a looked-up address is used for, as long as libcurl keeps one


class Resolver:
    def __init__(self, rules: TransportRules) -> None:
        self._rules = rules
        self._known: dict[str, tuple[float, Route | Fault]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def route(self, host: str) -> Route | Fault:
        """How to reach a host, or why there is no way. Waits for the resolver only where there is a proxy."""
        until, found = self._known.get(host, (0.0, Fault.DNS))
        if time.monotonic() < until:
            return found
        direct = route(host, connect_to=self._rules.connect_to, private_hosts=self._rules.private_hosts)
        found = direct if self._rules.proxy is None or direct.target else self._proxied(direct)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[host] = (time.monotonic() + GOOD_FOR, found)
        return found

    def _proxied(self, direct: Route) -> Route | Fault:
        addresses = self._look_up(direct.host)
        allowed = next((address for address in addresses if direct.allows(address, HTTPS)), None)
        if allowed is None:
            return Fault.ADDRESS if addresses else Fault.DNS
        return replace(direct, target=Target(allowed, HTTPS), proxied=True)

    def _look_up(self, host: str) -> list[str]:
        """Every address of a host; none where the resolver fails or takes longer than connecting may."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="pushops-resolver")
        asked = self._thread.submit(socket.getaddrinfo, host, HTTPS, type=socket.SOCK_STREAM)
        try:
            return [str(found[4][0]) for found in asked.result(self._rules.connect_timeout.total_seconds())]
        except (OSError, FutureTimeoutError, UnicodeError):
            return []
