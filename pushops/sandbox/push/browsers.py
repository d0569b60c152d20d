"""Browsers that are connected over Mozilla's WebSocket protocol, their channels and what waits for them."""

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pushops.sandbox.push.inbox import Inbox, Message
from pushops.sandbox.push.subscribers import BROWSERS, UNBOUND, Subscribers, fingerprint
from pushops.sandbox.push.vendors import MOZILLA_HOST, Vendor, decode, encode, path_of

Send = Callable[[dict[str, Any]], None]
OK: Final = 200


@dataclass(slots=True)
class Browser:
    """A user agent: its id, its channels (id to serial), and how to reach it while it is connected."""

    uaid: str
    channels: dict[str, int] = field(default_factory=dict)
    send: Send | None = None


class Browsers:
    """Forgotten with the process: a browser that comes with a forgotten id gets a new one and starts over."""

    def __init__(self, subscribers: Subscribers, inbox: Inbox) -> None:
        self.endpoint_host = MOZILLA_HOST
        self._subscribers = subscribers
        self._inbox = inbox
        self._known: dict[str, Browser] = {}
        self._channels: dict[int, tuple[Browser, str]] = {}

    def hello(self, uaid: str | None, send: Send) -> Browser:
        """A browser that is connected now; what waits for it goes out at once after the greeting."""
        browser = self._known.get(uaid or "") or Browser(uuid.uuid4().hex)
        self._known[browser.uaid] = browser
        browser.send = send
        return browser

    def leave(self, browser: Browser, send: Send) -> None:
        """Its connection is gone, unless it has a newer one."""
        if browser.send is send:
            browser.send = None

    def register(self, browser: Browser, channel: str, key: str | None) -> str:
        """An endpoint for a channel, bound to the VAPID public key it came with. ValueError for a key that is none."""
        bound = UNBOUND if key is None else fingerprint(decode(key.rstrip("=")))
        serial = secrets.randbits(63)
        self.unregister(browser, channel)
        browser.channels[channel] = serial
        self._channels[serial] = (browser, channel)
        core = self._subscribers.core(serial, BROWSERS, bound)
        return f"https://{self.endpoint_host}{path_of(Vendor.MOZILLA, core)}"

    def unregister(self, browser: Browser, channel: str) -> None:
        serial = browser.channels.pop(channel, None)
        if serial is not None:
            del self._channels[serial]

    def knows(self, serial: int) -> bool:
        return serial in self._channels

    def deliver(self, message: Message) -> None:
        """Send a message to its browser; it is kept until the browser has acknowledged it, or for its TTL."""
        browser, channel = self._channels[message.serial]
        if message.ttl > 0:
            self._inbox.put(message)
        if browser.send is not None:
            browser.send(notification(channel, message))

    def send_waiting(self, browser: Browser, now: float) -> None:
        for channel, serial in list(browser.channels.items()):
            for message in self._inbox.of(serial, now):
                if browser.send is not None:
                    browser.send(notification(channel, message))

    def acknowledge(self, browser: Browser, channel: str, version: str) -> bool:
        """Forget a delivered message; False for what this browser was never sent."""
        return channel in browser.channels and self._inbox.take(version) is not None


def notification(channel: str, message: Message) -> dict[str, Any]:
    """A message in autopush's words; a message without a body has neither data nor headers."""
    found: dict[str, Any] = {"messageType": "notification", "channelID": channel, "version": message.id}
    if message.data:
        found |= {"data": encode(message.data), "headers": {"encoding": "aes128gcm"}}
    return found
