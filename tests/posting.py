"""A transport that trusts the tests' own authority and reaches the vendors' hosts at a test's own servers."""

from collections.abc import Iterable, Iterator
from typing import Any

from pushops.delivery.answer import Answer
from pushops.delivery.transport import Request, Transport, TransportRules
from pushops.subscriptions.endpoint import IntakeRules
from tests.hostile_servers import HOST, Peer, authority

HEADERS = {"TTL": "60", "Content-Type": "application/octet-stream", "Content-Encoding": "aes128gcm"}
IN_FLIGHT = 100


def transport(peer: Peer | None = None, intake: IntakeRules | None = None, **rules: Any) -> Transport:
    """``rules`` are ``TransportRules``'; the peer stands for ``HOST``."""
    if peer is not None:
        rules = {"connect_to": {HOST: peer.target}} | rules
    return Transport(TransportRules(**{"ca_file": str(authority().ca_file)} | rules), intake or IntakeRules())


def requests(count: int, host: str = HOST, path: str = "/fcm/send/", prefix: str = "") -> Iterator[Request[int]]:
    """Each with a body of its own."""
    for number in range(count):
        yield Request(f"https://{host}{path}{number}", host, HEADERS, f"{prefix}body {number}".encode(), number)


def request(url: str, host: str = HOST) -> Request[str]:
    return Request(url, host, HEADERS, b"body", url)


def posted(over: Transport, what: Iterable[Request[Any]], in_flight: int = IN_FLIGHT) -> list[Answer]:
    """The answers in the order of the requests."""
    kept = list(what)
    found = {id(request): answer for request, answer in over.exchange(iter(kept), in_flight=in_flight) if answer}
    return [found[id(request)] for request in kept]


def answer_of(peer: Peer, **rules: Any) -> Answer:
    """To one request over a fresh transport."""
    with transport(peer, **rules) as over:
        return posted(over, requests(1))[0]
