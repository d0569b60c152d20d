"""What an import is told and what it tells: options, refusals, counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from pushops.subscriptions.rejection import Rejected


@dataclass(frozen=True)
class Rules:
    """How rows are read. ``utc``: times without a zone are UTC, else they are refused.

    ``application_server_key`` is what all subscribed with whose row does not say; ``until`` is now, by PostgreSQL.
    """

    until: datetime
    utc: bool = False
    application_server_key: str | None = None


@dataclass(frozen=True)
class Refusal:
    """A row that was not taken. ``tag`` is the log's name of its endpoint, None where it had none to read."""

    line: int
    found: Rejected
    tag: str | None


@dataclass
class Imported:
    """What came of the rows so far; a dry run says what would.

    ``lines`` = inserted + updated + unchanged + duplicates + refused, once all is done. ``updated`` and ``unchanged``
    were known by their endpoint; ``duplicates`` gave way to another line of the same endpoint. ``foreign_keys`` counts
    rows by the fingerprint of a VAPID key that is not held here.
    """

    dry_run: bool
    lines: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    duplicates: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    foreign_keys: Counter[str] = field(default_factory=Counter)

    @property
    def stored(self) -> int:
        """How many endpoints of the file are looked after, or would be."""
        return self.inserted + self.updated + self.unchanged


Refuse: TypeAlias = Callable[[Refusal], None]
Told: TypeAlias = Callable[[str, int, int | None], None]  # what is done, how many of how many
