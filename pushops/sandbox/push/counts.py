"""What the service has seen: integers only, so that millions of requests cost little."""

import hashlib
from collections import Counter
from typing import Any, Final

MOST: Final = 2_000_000  # endpoints and messages that are told apart, each about 100 bytes
MOST_DOUBLES: Final = 10_000


class Counts:
    """Requests by what became of them; acceptances by endpoint and message, so that a double send shows here."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.scripts: Counter[str] = Counter()
        self.received: dict[int, int] = {}
        self.accepted: dict[int, int] = {}
        self.doubles: dict[str, tuple[int, str, int]] = {}

    def saw_body(self, serial: int) -> None:
        """A whole request was read, whatever is answered: what a peer that re-sends silently shows up in."""
        self.totals["received"] += 1
        self._raise(self.received, serial)

    def was_accepted(self, serial: int, message: str) -> None:
        self.totals["accepted"] += 1
        self._raise(self.accepted, serial)
        key = message_key(serial, message)
        if self._raise(self.accepted, key) > 1:
            self.totals["doubled"] += 1
            if len(self.doubles) < MOST_DOUBLES:
                self.doubles[f"{serial}/{message}"] = (serial, message, self.accepted[key])

    def answered(self, host: str, status: int) -> None:
        self.statuses[host, status] += 1

    def times_accepted(self, serial: int, message: str | None = None) -> int:
        return self.accepted.get(serial if message is None else message_key(serial, message), 0)

    def as_json(self) -> dict[str, Any]:
        by_host: dict[str, dict[str, int]] = {}
        for (host, status), number in sorted(self.statuses.items()):
            by_host.setdefault(host, {})[str(status)] = number
        statuses: Counter[str] = Counter()
        for (_, status), number in self.statuses.items():
            statuses[str(status)] += number
        totals = {name: self.totals[name] for name in ("begun", "received", "accepted", "doubled")}
        found = {**totals, **dict(self.totals), "statuses": dict(statuses), "by_host": by_host}
        return {**found, "scripts": dict(self.scripts)}

    def _raise(self, table: dict[int, int], key: int) -> int:
        number = table.get(key, 0) + 1
        if number > 1 or len(table) < MOST:
            table[key] = number
        else:
            self.totals["uncounted"] += 1
        return number


def message_key(serial: int, message: str) -> int:
    """One number for an endpoint and a message id; above 2^64, so that it never meets an endpoint's own."""
    digest = hashlib.blake2b(f"{serial}/{message}".encode(), digest_size=8).digest()
    return 1 << 64 | int.from_bytes(digest, "big")
