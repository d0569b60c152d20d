"""Where a host is reached, and which addresses it may turn out to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from pushops.delivery.transport.addresses import is_public
from pushops.subscriptions.hosts import HostRule, match

HTTPS: Final = 443


@dataclass(frozen=True, slots=True)
class Target:
    """What ``PUSHOPS_CONNECT_TO`` names: a host or an address, and a port."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        return _is_address(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach one host.

    ``target`` takes the place of the host and port at connect alone: the name that TLS checks, Host and the VAPID
    audience stay the vendor's. ``proxied``: the connection goes to the operator's proxy, wherever that is.
    """

    host: str
    target: Target | None = None
    any_address: bool = False
    proxied: bool = False

    @property
    def connect_to(self) -> list[str]:
        """For libcurl's option of that name."""
        return [] if self.target is None else [f"{self.host}:{HTTPS}:{self.target}"]

    def allows(self, address: str, port: int) -> bool:
        """Whether a socket may be opened to what the name resolved to."""
        if self.proxied:
            return True
        if self.target is None:
            return port == HTTPS and (self.any_address or is_public(address))
        return port == self.target.port and (self.any_address or _same(address, self.target.host))


def route(host: str, *, connect_to: Mapping[str, str], private_hosts: tuple[str, ...]) -> Route:
    """The direct route of a host. A target that is a name is the operator's word, whatever address it has."""
    rule = match(host, [HostRule(pattern, target) for pattern, target in connect_to.items()])
    if rule is None:
        return Route(host, any_address=match(host, [HostRule(pattern, "") for pattern in private_hosts]) is not None)
    target = parse_target(rule.service)
    return Route(host, target, any_address=not target.is_address)


def parse_target(text: str) -> Target:
    """``127.0.0.1:8443``, ``[::1]:8443`` or ``name:8443``; raises ValueError."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError("expected host:port, such as 127.0.0.1:8443")
    if bracketed != (":" in host) or (bracketed and not _is_address(host)) or not _plain(host):
        raise ValueError("expected a host name or an address, an IPv6 one in brackets")
    return Target(host, int(port))


def _plain(host: str) -> bool:
    return all(character.isascii() and (character.isalnum() or character in ".-:") for character in host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _same(address: str, named: str) -> bool:
    return ip_address(address.partition("%")[0]) == ip_address(named)
