"""Subscriptions from JSON lines: read in chunks, stored or only checked, every refusal kept with its line."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any, Final, TypeAlias

from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.registering import Candidate, Saved
from pushops.subscriptions.rejection import Rejected, describe, rejected, text_of

CHUNK: Final = 500
EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)  # before the web; what is older was meant as something else
LONGEST: Final = 64 * 1024  # bytes of a line; a subscription has under five thousand

# The browser's object, on its own or under "subscription"; and what the other store knew, under either name.
_NAMES: Final = {
    "user_id": ("user", "user_id"),
    "origin": ("origin",),
    "application_server_key": ("applicationServerKey", "application_server_key"),
    "user_agent": ("user_agent",),
    "locale": ("locale",),
}

Line: TypeAlias = tuple[int, Candidate | Rejected]
Told: TypeAlias = Callable[["Imported"], None]
Refuse: TypeAlias = Callable[[int, Rejected], None]


@dataclass
class Imported:
    """What came of the lines read so far; ``updated`` were known by their endpoint already."""

    dry_run: bool
    lines: int = 0
    inserted: int = 0
    updated: int = 0
    accepted: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def import_lines(
    rt: Runtime, file: IO[bytes], refuse: Refuse, told: Told, *, actor: str, dry_run: bool, revive: bool
) -> Imported:
    """Store what the lines hold; ``refuse`` hears of every line that was not, ``told`` of the count so far.

    Importing the same lines again changes nothing but times. What a person unsubscribed is refused unless ``revive``.
    A dry run checks everything but the database, and so does not know who unsubscribed.
    """
    done = Imported(dry_run)
    lines = read_lines(file)
    with rt.events.span("subscription.imported", dry_run=dry_run) as span:
        while chunk := list(islice(lines, CHUNK)):
            _import_chunk(rt, chunk, done, refuse, actor, revive=revive)
            told(done)
        span["rows"], span["refused"] = done.accepted, done.refused
        span["inserted"], span["updated"] = done.inserted, done.updated
    return done


def read_lines(file: IO[bytes]) -> Iterator[Line]:
    """Numbered from 1; blank lines are passed over, over-long ones are refused without being held in memory."""
    number = 0
    while raw := file.readline(LONGEST):
        number += 1
        whole = raw.endswith(b"\n") or len(raw) < LONGEST
        while not whole:
            whole = (rest := file.readline(LONGEST)).endswith(b"\n") or not rest
            raw = b""
        if not raw:
            yield number, rejected("line", "line_too_long", f"at most {LONGEST} bytes", "more")
        elif raw.strip():
            yield number, read_candidate(raw)


def read_candidate(raw: bytes) -> Candidate | Rejected:
    """What a line says, still unchecked but for its shape. Total."""
    try:
        found = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return rejected("line", "not_json", "a JSON object", f"{len(raw)} bytes that are none")
    if not isinstance(found, dict):
        return rejected("line", "not_an_object", "a JSON object", describe(found))
    tags = found.get("tags")
    if tags is not None and not isinstance(tags, list):
        return rejected("tags", "bad_tags", "a list of strings", describe(tags))
    created_at = _time(found.get("created_at"))
    if isinstance(created_at, Rejected):
        return created_at
    known: dict[str, Any] = {name: _first(found, names) for name, names in _NAMES.items()}
    return Candidate(found.get("subscription", found), tags=tags, created_at=created_at, **known)


def _first(found: dict[str, Any], names: Sequence[str]) -> object:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _time(value: object) -> datetime | Rejected | None:
    if value is None:
        return None
    try:
        when = datetime.fromisoformat(text_of(value) or "")
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        return rejected("created_at", "bad_time", "an ISO 8601 time with a zone", describe(value))
    if not EARLIEST <= when <= datetime.now(UTC):
        return rejected("created_at", "bad_time", f"a time between {EARLIEST.year} and now", f"one in {when.year}")
    return when


def _import_chunk(rt: Runtime, chunk: list[Line], done: Imported, refuse: Refuse, actor: str, *, revive: bool) -> None:
    candidates = [item for _, item in chunk if isinstance(item, Candidate)]
    outcomes: Iterator[Saved | Rejected | None] = (
        service.check_many(rt, candidates)
        if done.dry_run
        else service.save_many(rt, candidates, revive=revive, actor=actor)
    )
    for number, item in chunk:
        outcome = item if isinstance(item, Rejected) else next(outcomes)
        done.lines += 1
        if isinstance(outcome, Rejected):
            done.refused += 1
            done.reasons[outcome.reason] += 1
            refuse(number, outcome)
        else:
            done.accepted += 1
            done.inserted += outcome is not None and outcome.inserted
            done.updated += outcome is not None and not outcome.inserted
