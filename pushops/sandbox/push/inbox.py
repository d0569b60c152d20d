"""Messages that wait for their subscriber: bounded, each until its TTL ends, one per topic."""

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from pushops.sandbox.push.vendors import encode

MOST: Final = 20_000


@dataclass(frozen=True, slots=True)
class Message:
    """One message as the service keeps it; ``data`` is what was decrypted, or the body where nothing is decrypted."""

    id: str
    serial: int
    data: bytes
    encrypted: bool
    topic: str | None
    urgency: str
    ttl: int
    expires: float

    def as_json(self) -> dict[str, Any]:
        text = None if self.encrypted else self.data.decode(errors="replace")
        found = {"id": self.id, "text": text, "data": encode(self.data), "encrypted": self.encrypted}
        return {**found, "topic": self.topic, "urgency": self.urgency, "ttl": self.ttl}


class Inbox:
    """Of all subscribers together the newest 20,000 messages."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Message] = OrderedDict()
        self._of: dict[int, list[str]] = {}
        self._topics: dict[tuple[int, str], str] = {}

    def put(self, message: Message) -> str | None:
        """Keep a message; returns the id of the one that its topic replaced (RFC 8030 section 5.4)."""
        replaced = None
        if message.topic is not None:
            replaced = self._topics.get((message.serial, message.topic))
            if replaced is not None:
                self.take(replaced)
            self._topics[message.serial, message.topic] = message.id
        self._kept[message.id] = message
        self._of.setdefault(message.serial, []).append(message.id)
        if len(self._kept) > MOST:
            self.take(next(iter(self._kept)))
        return replaced

    def take(self, message_id: str) -> Message | None:
        """Remove a message, because it was cancelled, delivered or replaced; None if it is not there any more."""
        message = self._kept.pop(message_id, None)
        if message is None:
            return None
        remaining = self._of[message.serial]
        remaining.remove(message_id)
        if not remaining:
            del self._of[message.serial]
        if message.topic is not None and self._topics.get((message.serial, message.topic)) == message_id:
            del self._topics[message.serial, message.topic]
        return message

    def of(self, serial: int, now: float) -> list[Message]:
        """What waits for a subscriber, oldest first, without what has outlived its TTL."""
        found = [self._kept[message_id] for message_id in self._of.get(serial, ())]
        for message in found:
            if message.expires <= now:
                self.take(message.id)
        return [message for message in found if message.expires > now]

    def __len__(self) -> int:
        return len(self._kept)


def new_id() -> str:
    return secrets.token_urlsafe(15)
