"""One row of the table: which answers it takes, how specific it is, and what it says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pushops.delivery.answer import Fault
from pushops.delivery.classify.verdict import Verdict

ANY: Final = "any"
OTHER: Final = "other"  # a service that no row names
HIGHEST: Final = 999  # statuses above count as this, and below zero as zero


@dataclass(frozen=True, slots=True)
class HeaderPattern:
    """A header that is there, contains a text, or is a text; all in lower case."""

    name: str
    value: str | None = None
    whole: bool = False

    def fits(self, value: str) -> bool:
        if self.value is None:
            return True
        return value == self.value if self.whole else self.value in value

    @property
    def weight(self) -> int:
        """The longer pattern is the more specific one; a whole value is more than any part of it."""
        return len(self.name) + len(self.value or "") + (1000 if self.whole else 0)


@dataclass(frozen=True, slots=True)
class Known:
    """Reasons that change nothing but are no news."""

    errnos: frozenset[int | None] = frozenset()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """``subjects``: statuses and faults. Errno, reason, text and header are any of their values, and empty for none."""

    id: str
    services: frozenset[str]
    subjects: frozenset[int | Fault]
    exact: bool
    host: str | None
    errno: frozenset[int | None]
    reason: frozenset[str]
    reason_names: tuple[str, ...]  # as the vendor writes them
    text: tuple[str, ...]
    header: tuple[HeaderPattern, ...]
    known: Known
    verdict: Verdict
    ours: bool = True

    @cached_property
    def rank(self) -> tuple[bool, int, bool, bool]:
        """How specific: a host, what it looks for in the answer, a named service, an exact status; the higher wins.

        Errno and reason weigh more than any header, a header more than any text.
        """
        looks_for = 4 * (bool(self.errno) + bool(self.reason)) + 2 * bool(self.header) + bool(self.text)
        return self.host is not None, looks_for, ANY not in self.services, self.exact

    @cached_property
    def is_bare(self) -> bool:
        """Whether it takes every answer of its status."""
        return self.host is None and not (self.errno or self.reason or self.text or self.header)

    def takes_host(self, host: str) -> bool:
        if self.host is None:
            return True
        suffix = self.host.removeprefix("*.")
        return host == suffix if suffix == self.host else host == suffix or host.endswith(f".{suffix}")


def why_more_specific(winner: Row, loser: Row) -> str:
    """Which of the rules of ``rank`` decided."""
    names: Mapping[int, str] = {
        0: "names the host",
        1: "looks at more of the answer",
        2: "names the service",
        3: "names the status itself",
    }
    for index, (ours, theirs) in enumerate(zip(winner.rank, loser.rank, strict=True)):
        if ours != theirs:
            return names[index]
    return "has the longer text"
