"""Scripts: which requests are answered otherwise than a push service in good health would, and how."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from pushops.errors import PushopsError
from pushops.sandbox.push.answers import Answer, check_name, named, spelled
from pushops.sandbox.push.vendors import Vendor

AS_USUAL: Final = "as-usual"


class Fault(StrEnum):
    """What happens to a connection instead of, or in the middle of, an answer."""

    HANG = "hang"  # no answer, ever
    RESET = "reset"  # TCP RST
    CLOSE = "close"  # an orderly end of the connection, without an answer
    TRUNCATE = "truncate"  # the headers promise more body than comes before the end
    GARBAGE = "garbage"  # bytes that are no HTTP
    GOAWAY = "goaway"  # HTTP/2: this request was not processed, go elsewhere; the connection ends
    RST_STREAM = "rst_stream"  # HTTP/2: only this request ends; on HTTP/1.1 a reset


class At(StrEnum):
    """When a fault strikes."""

    HEADERS = "headers"  # before any of the body is read
    BODY = "body"  # in the middle of the body
    END = "end"  # after all of it


class Handshake(StrEnum):
    """What a host's TLS does instead of the right thing."""

    STRANGER = "stranger"  # a certificate of an authority that nobody trusts
    EXPIRED = "expired"
    WRONG_NAME = "wrong_name"
    HTTP1 = "http1"  # not broken: HTTP/2 is not offered
    RESET = "reset"  # the connection dies in the handshake


@dataclass(frozen=True, slots=True)
class Script:
    """Which requests, and what happens to them. Of several that fit, the one set last counts.

    ``hosts``: patterns with a leading "*." or none for all. ``endpoints``: serials of subscribers. ``share``: of
    endpoints, or of requests with ``per`` "request"; chosen by a stable hash salted with ``salt``, from ``start`` on,
    so that scripts of one salt and different starts never meet. ``answers``: the nth request of an endpoint gets the
    nth, the last one for ever; a name of the library, an Answer, or "as-usual". ``times``: how many requests in all.
    ``delay`` and ``drip`` (between bytes): seconds. ``accept``: what it strikes has been accepted all the same.
    ``kept``: only requests that are not the first on their connection.
    """

    name: str
    hosts: tuple[str, ...] = ()
    endpoints: frozenset[int] | None = None
    share: float = 1.0
    start: float = 0.0
    salt: str = ""
    per: str = "endpoint"
    answers: tuple[str | Answer, ...] = ()
    times: int | None = None
    delay: float = 0.0
    drip: float = 0.0
    fault: Fault | None = None
    at: At = At.END
    accept: bool = False
    kept: bool = False
    code: int = 2  # of GOAWAY and RST_STREAM, RFC 9113 section 7; 2 is INTERNAL_ERROR, 7 REFUSED_STREAM
    handshake: Handshake | None = None

    def covers_host(self, host: str) -> bool:
        return not self.hosts or any(fits(pattern, host) for pattern in self.hosts)

    def covers(self, host: str, serial: int, request_no: int, *, kept: bool) -> bool:
        """Whether a request is meant, by its host, its subscriber, its number at the service and its connection."""
        if self.handshake is not None or (self.kept and not kept) or not self.covers_host(host):
            return False
        if self.endpoints is not None and serial not in self.endpoints:
            return False
        if self.share >= 1.0:
            return True
        point = place(self.salt or self.name, serial if self.per == "endpoint" else request_no)
        return self.start <= point < self.start + self.share

    def answer(self, nth: int, vendor: Vendor) -> Answer | None:
        """What the nth request (from 0) of an endpoint is told; None for what it would be told anyway."""
        if not self.answers:
            return None
        chosen = self.answers[min(nth, len(self.answers) - 1)]
        if isinstance(chosen, Answer):
            return chosen
        return None if chosen == AS_USUAL else named(chosen, vendor)


def place(salt: str, number: int) -> float:
    """Where a subscriber or a request stands in [0, 1): always the same for the same salt."""
    digest = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest, "big") / 2**64


def fits(pattern: str, host: str) -> bool:
    """Whether a host is the pattern, or ends in it after a "*"."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def parse(described: Mapping[str, Any], serial_of: Callable[[str], int]) -> Script:
    """A script from its JSON; PushopsError naming what is wrong. Endpoints are URLs there."""
    known = {field.name for field in fields(Script)} | {"host", "answer"}
    unknown = sorted(set(described) - known)
    if unknown or not described.get("name"):
        expected = ", ".join(sorted(known))
        raise PushopsError(f"expected a script of a name and any of {expected}; got {', '.join(unknown) or 'no name'}")
    values = dict(described)
    values["hosts"] = tuple(_listed(values.pop("host", values.get("hosts", ()))))
    values["answers"] = tuple(_answer(each) for each in _listed(values.pop("answer", values.get("answers", ()))))
    if values.get("endpoints") is not None:
        values["endpoints"] = frozenset(serial_of(each) for each in _listed(values["endpoints"]))
    for name, kind in (("fault", Fault), ("at", At), ("handshake", Handshake)):
        if values.get(name) is not None:
            values[name] = _member(kind, name, values[name])
    return Script(**values)


def _answer(described: object) -> str | Answer:
    if isinstance(described, str):
        return described if described == AS_USUAL else check_name(described)
    if isinstance(described, Mapping) and "status" in described:
        return spelled(described)
    raise PushopsError("expected an answer to be a name of the library or an object with a status")


def _member(kind: type[StrEnum], name: str, value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        raise PushopsError(f"expected {name} to be one of {', '.join(kind)}, got {value!r}") from None


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
