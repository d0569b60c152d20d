"""The push service itself, without any network: a request comes in, an answer or a fault goes out."""

import json
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final

from pushops.sandbox.push.answers import Answer, named, refusal
from pushops.sandbox.push.browsers import Browsers
from pushops.sandbox.push.counts import Counts
from pushops.sandbox.push.inbox import Inbox, Message, new_id
from pushops.sandbox.push.opening import open_message
from pushops.sandbox.push.rules import LONGEST_TTL, PROBLEMS, problem, read_ttl
from pushops.sandbox.push.script import Fault, Handshake, Script
from pushops.sandbox.push.subscribers import BROWSERS, Subscriber, Subscribers
from pushops.sandbox.push.vapid import Verifier
from pushops.sandbox.push.vendors import Vendor, vendor_of

_ID_FIELDS: Final = ("message_id", "id")
_UNKNOWN: Final = 0  # the serial of what is no endpoint of ours
_MISDIRECTED: Final = Answer(421)
_LOCATIONS: Final = ("/m/", "/0:")


@dataclass(slots=True)
class Request:
    """A request as far as it was read; names of headers in lower case. ``kept``: not the first on its connection."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    kept: bool = False
    body: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Exchange:
    """A request and what is planned for it. ``struck``: a fault came before its end, and the rest is not looked at."""

    request: Request
    vendor: Vendor | None
    subscriber: Subscriber | None
    script: Script | None = None
    told: Answer | None = None
    struck: bool = False

    @property
    def serial(self) -> int:
        return self.subscriber.serial if self.subscriber else _UNKNOWN

    @property
    def fault(self) -> Fault | None:
        return self.script.fault if self.script else None


class Service:
    """All that the service knows. ``decrypt`` can be turned off where it costs too much."""

    def __init__(self, secret: bytes, *, decrypt: bool = True) -> None:
        self.subscribers = Subscribers(secret)
        self.decrypt = decrypt
        self.counts = Counts()
        self.inbox = Inbox()
        self.gone: set[int] = set()
        self.browsers = Browsers(self.subscribers, self.inbox)
        self.scripts: dict[str, Script] = {}
        self._verifier = Verifier()
        self._used: Counter[str] = Counter()
        self._turns: Counter[tuple[str, int]] = Counter()
        self.clock_ahead = 0.0
        self._date = (0, "")

    def now(self) -> float:
        """Seconds of the epoch by the service's own clock, which an outage may set ahead of the sender's."""
        return time.time() + self.clock_ahead

    def date(self) -> str:
        """The Date header, which senders compare their clocks with; spelled out once a second."""
        second = int(self.now())
        if second != self._date[0]:
            self._date = second, formatdate(second, usegmt=True)
        return self._date[1]

    def set_script(self, script: Script) -> None:
        """Add a script, in front of the others; one of the same name is replaced and begins anew."""
        self.clear_script(script.name)
        self.scripts[script.name] = script

    def clear_script(self, name: str) -> bool:
        self._used.pop(name, None)
        for key in [key for key in self._turns if key[0] == name]:
            del self._turns[key]
        return self.scripts.pop(name, None) is not None

    def handshake(self, host: str) -> Handshake | None:
        """What TLS does for a host."""
        for script in reversed(self.scripts.values()):
            if script.handshake is not None and script.covers_host(host):
                return script.handshake
        return None

    def waiting(self, serial: int) -> list[Message]:
        return self.inbox.of(serial, time.time())

    def begin(self, request: Request) -> Exchange:
        """Plan for a request whose headers have been read."""
        self.counts.totals["begun"] += 1
        vendor = vendor_of(request.host)
        found = self.subscribers.find(request.host, request.path) if vendor and request.method == "POST" else None
        exchange = Exchange(request, vendor, found)
        if vendor is not None and request.method == "POST" and self.scripts:
            self._plan(exchange, vendor)
        return exchange

    def finish(self, exchange: Exchange) -> Answer:
        """Answer a request that was read to its end; what a fault strikes is accepted only if its script says so."""
        if exchange.request.method == "POST":
            self.counts.saw_body(exchange.serial)
        answer = self._answer(exchange)
        self.counts.answered(exchange.request.host, answer.status)
        return answer

    def _plan(self, exchange: Exchange, vendor: Vendor) -> None:
        request_no = self.counts.totals["begun"]
        for script in reversed(self.scripts.values()):
            spent = script.times is not None and self._used[script.name] >= script.times
            kept = exchange.request.kept
            if not spent and script.covers(exchange.request.host, exchange.serial, request_no, kept=kept):
                self._used[script.name] += 1
                self.counts.scripts[script.name] += 1
                exchange.script = script
                exchange.told = script.answer(self._turn(script, exchange.serial), vendor)
                return

    def _turn(self, script: Script, serial: int) -> int:
        if len(script.answers) < 2:  # noqa: PLR2004 - nothing to take turns with
            return 0
        self._turns[script.name, serial] += 1
        return self._turns[script.name, serial] - 1

    def _answer(self, exchange: Exchange) -> Answer:
        script, told = exchange.script, exchange.told
        if script is None or (told is None and (script.fault is None or script.accept)):
            return self._usual(exchange)
        if told is None:
            return Answer(0)
        said = {name.lower() for name, _ in told.headers}
        if script.accept or (200 <= told.status < 300 and "x-wns-status" not in said):  # noqa: PLR2004 - HTTP
            usual = self._usual(exchange)
            return Answer(told.status, told.headers or usual.headers, told.body)
        return told

    def _usual(self, exchange: Exchange) -> Answer:
        request, vendor = exchange.request, exchange.vendor
        if vendor is None:
            return _MISDIRECTED
        if request.method == "DELETE":
            return self._cancel(request.path, vendor)
        if request.method != "POST":
            return named("apple-405") if vendor is Vendor.APPLE else named("wns-405")
        if exchange.subscriber is None:
            return named("*-404", vendor)
        return self._post(request, vendor, exchange.subscriber)

    def _post(self, request: Request, vendor: Vendor, subscriber: Subscriber) -> Answer:
        if self._is_gone(subscriber):
            return named("*-410", vendor)
        authorization = request.headers.get("authorization")
        origin = f"https://{request.host}"
        flaw = self._verifier.check(authorization, origin, vendor, subscriber.fingerprint, self.now())
        if flaw is not None:
            self.counts.totals[f"vapid_{flaw}"] += 1
            return refusal(vendor, flaw)
        found = problem(vendor, request.headers, len(request.body))
        if found is not None:
            self.counts.totals[f"problem_{found}"] += 1
            return named(PROBLEMS[vendor][found])
        return self._accept(request, vendor, subscriber)

    def _is_gone(self, subscriber: Subscriber) -> bool:
        if subscriber.serial in self.gone:
            return True
        return subscriber.key == BROWSERS and not self.browsers.knows(subscriber.serial)

    def _accept(self, request: Request, vendor: Vendor, subscriber: Subscriber) -> Answer:
        ttl = min(read_ttl(request.headers) or 0, LONGEST_TTL[vendor])
        opened = self._open(bytes(request.body), subscriber)
        topic = request.headers.get("topic")
        data = bytes(request.body) if opened is None else opened
        urgency = request.headers.get("urgency", "normal")
        message = Message(new_id(), subscriber.serial, data, opened is None, topic, urgency, ttl, time.time() + ttl)
        self.counts.was_accepted(subscriber.serial, topic or "" if opened is None else message_id(opened))
        if subscriber.key == BROWSERS:
            self.browsers.deliver(message)
        elif ttl > 0:
            self.inbox.put(message)
        return Answer(201, headers_of(vendor, request.host, message))

    def _open(self, body: bytes, subscriber: Subscriber) -> bytes | None:
        """The plaintext; None where the private half is elsewhere, decrypting is off, or it does not decrypt."""
        if not self.decrypt or subscriber.key == BROWSERS or not body:
            return None
        private = self.subscribers.private_key(subscriber.key)
        opened = open_message(body, private, self.subscribers.auth(subscriber.core))
        if opened is None:
            self.counts.totals["undecryptable"] += 1
        return opened

    def _cancel(self, path: str, vendor: Vendor) -> Answer:
        """RFC 8030 section 6.2: the sender may take back what still waits."""
        start = next((start for start in _LOCATIONS if path.startswith(start)), None)
        taken = self.inbox.take(path.removeprefix(start)) if start else None
        return Answer(204) if taken else named("*-404", vendor)


def message_id(plaintext: bytes) -> str:
    """The id that a payload carries; the payload itself where it carries none."""
    try:
        found = json.loads(plaintext)
    except ValueError:
        found = None
    if isinstance(found, dict):
        for name in _ID_FIELDS:
            if name in found:
                return str(found[name])
    return plaintext.hex()


def headers_of(vendor: Vendor, host: str, message: Message) -> tuple[tuple[str, str], ...]:
    """What comes with a 201, vendor by vendor."""
    match vendor:
        case Vendor.FCM:
            return (("Location", f"https://{host}/0:{message.id}"),)
        case Vendor.MOZILLA:
            return (("Location", f"https://{host}/m/{message.id}"), ("TTL", str(message.ttl)))
        case Vendor.APPLE:
            return (("apns-id", str(uuid.uuid4()).upper()),)
        case Vendor.WNS:
            received = (("X-WNS-Status", "received"), ("X-WNS-NotificationStatus", "received"))
            return (
                *received,
                ("X-WNS-DeviceConnectionStatus", "connected"),
                ("X-WNS-Msg-ID", message.id.encode().hex()[:16].upper()),
            )
