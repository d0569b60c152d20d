"""Which hosts are push services: rules as data, ours and the operator's.

A pattern is an exact host ("fcm.googleapis.com"), a suffix on a dot boundary ("*.push.apple.com", never the bare
domain) or has one "#" for one or more digits ("jmt#.google.com").
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pushops.subscriptions.rejection import Reason

_MAX_HOST: Final = 253  # RFC 1035, section 2.3.4, as text
_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
# What the WHATWG URL standard takes for the end of an IPv4 address: 1.2.3.4, 127.1, 2130706433, 0x7f000001, 0177.1.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_SERVICE: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)

# RFC 6761, 6762, 7686, 8375, 9476 and ICANN's "internal": names that no public push service can have.
_SPECIAL_USE: Final = (
    "alt",
    "example",
    "example.com",
    "example.net",
    "example.org",
    "home.arpa",
    "internal",
    "invalid",
    "local",
    "localhost",
    "onion",
    "test",
)


@dataclass(frozen=True, slots=True)
class HostRule:
    """``service`` labels the rows of matching hosts; ``refused`` is the reason if the service is known to be dead."""

    pattern: str
    service: str
    refused: str | None = None


# The vendors' push services, from their documentation and from what browsers hand out.
DEFAULT_RULES: Final = (
    HostRule("fcm.googleapis.com", "fcm"),
    HostRule("jmt#.google.com", "fcm"),
    HostRule("updates.push.services.mozilla.com", "mozilla"),
    HostRule("*.push.apple.com", "apple"),
    HostRule("*.notify.windows.com", "wns"),
    HostRule("android.googleapis.com", "fcm", refused=Reason.DEAD_SERVICE),
)


def match(host: str, rules: Sequence[HostRule]) -> HostRule | None:
    """The most specific rule that fits (exact, then digits, then the longest suffix; the earlier of two equals)."""
    for rule in rules:
        if rule.pattern == host:
            return rule
    return max((rule for rule in rules if _fits(rule.pattern, host)), key=_specificity, default=None)


def _fits(pattern: str, host: str) -> bool:
    """Whether a pattern that is no exact host takes in this one; the digits are one or more."""
    if pattern.startswith("*."):
        return len(host) >= len(pattern) and host.endswith(pattern[1:])
    head, digits, tail = pattern.partition("#")
    if not digits:
        return False
    middle = host[len(head) : len(host) - len(tail)]
    return host.startswith(head) and host.endswith(tail) and middle.isascii() and middle.isdigit()


def _specificity(rule: HostRule) -> tuple[bool, int]:
    return "*" not in rule.pattern, len(rule.pattern)


@lru_cache(maxsize=1024)  # asked once for each message: a few hosts, however many a stranger makes up
def host_fault(host: str) -> Reason | None:
    """Why a text is no host name in the one form that we store, or None. Special-use names are names."""
    if not host:
        return Reason.NO_HOST
    if len(host) > _MAX_HOST:
        return Reason.BAD_HOST
    if host.startswith("[") or _NUMBER.fullmatch(host.lower().rstrip(".").rpartition(".")[2]):
        return Reason.IP_LITERAL
    if host.endswith("."):
        return Reason.TRAILING_DOT_HOST
    if host != host.lower():
        return Reason.HOST_NOT_LOWER_CASE
    return None if _HOST.fullmatch(host) else Reason.BAD_HOST


def never_resolves(host: str) -> bool:
    """Whether the name lies in ``.invalid``, which browsers without a push service hand out (RFC 6761, 6.4)."""
    return host == "invalid" or host.endswith(".invalid")


def is_special_use(host: str) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in _SPECIAL_USE)


def parse_host_rules(mapping: Mapping[str, str]) -> tuple[HostRule, ...]:
    """The operator's rules from pattern -> service label, to stand before ``DEFAULT_RULES``.

    A pattern may name special-use hosts (tests and sandboxes live there), but never ``.invalid``.
    Raises one ValueError that names every fault.
    """
    faults = [fault for pattern, service in mapping.items() for fault in _rule_faults(pattern, service)]
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(HostRule(pattern, service) for pattern, service in mapping.items())


def _rule_faults(pattern: object, service: object) -> Iterable[str]:
    fault = _pattern_fault(pattern) if isinstance(pattern, str) else "a text"
    if fault:
        yield f"host pattern {pattern!r}: expected {fault}"
    if not (isinstance(service, str) and _SERVICE.fullmatch(service)):
        yield f"host pattern {pattern!r}: expected a service label such as 'ntfy' (a-z, 0-9, _ and -), got {service!r}"


def _pattern_fault(pattern: str) -> str | None:
    """What was expected of a pattern that cannot be used, or None."""
    if "://" in pattern:
        return "a host without a scheme"
    if ":" in pattern:
        return "a name, without a port and no IP address"
    return _wildcard_fault(pattern) or _name_fault(pattern.removeprefix("*.").replace("#", "0"))


def _wildcard_fault(pattern: str) -> str | None:
    suffix = pattern.removeprefix("*.")
    if suffix != pattern and "." not in suffix:
        return "at least two labels after '*.'"
    if "*" in suffix or (suffix != pattern and "#" in suffix):
        return "'*' only as the first label, and not together with '#'"
    if suffix.count("#") > 1:
        return "'#' at most once"
    return None


def _name_fault(host: str) -> str | None:
    if never_resolves(host):
        return "a name outside .invalid, which never resolves"
    fault = host_fault(host)
    return _EXPECTED[fault] if fault else None


_EXPECTED: Final[Mapping[Reason, str]] = {
    Reason.NO_HOST: "a host",
    Reason.BAD_HOST: "a host of letters, digits, '-' and '.'",
    Reason.HOST_NOT_LOWER_CASE: "lower case",
    Reason.TRAILING_DOT_HOST: "no dot at the end",
    Reason.IP_LITERAL: "a name, not an IP address",
}
