"""Looking at letters: a page, one with its attempts, all of them. No endpoint, no payload."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, TypedDict
from uuid import UUID

from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import ReplayState
from pushops.deadletters.store import reading as store
from pushops.deadletters.store.reading import Attempt, Counted, Facts, LetterRow
from pushops.deadletters.triage import PATIENCE, PLANNER
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain

MOST: Final = 1_000  # rows a page
ALL: Final = "all"
FIRST: Final = UUID(int=0)
FACTS: Final = tuple(field.name for field in fields(Facts))
COUNTING: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class DeadLetter(Facts):
    """A letter. ``endpoint`` is the keyed tag that logs have too; ``has_payload``: its name is not forgotten."""

    endpoint: str


class Words(TypedDict, total=False):
    """Which letters are meant: all that every word holds for; times as such or in ISO 8601."""

    error_class: str | None
    code: str | None
    host: str | None
    campaign: str | None
    since: datetime | str | None
    until: datetime | str | None
    text: str | None


@dataclass(frozen=True)
class LetterPage:
    """``next`` is the ``after`` of the page that follows, None at the end."""

    rows: tuple[DeadLetter, ...]
    next: UUID | None


@dataclass(frozen=True)
class Story:
    """A letter and every attempt at it, live ones first."""

    letter: DeadLetter
    attempts: tuple[Attempt, ...]


def list_letters(
    rt: Runtime,
    meant: Filter | None = None,
    *,
    state: str = ReplayState.PARKED,
    after: UUID | None = None,
    limit: int = 100,
) -> LetterPage:
    """A page in the order of parking; ``state`` may be ``all``. Raises RefusedError."""
    if not 1 <= limit <= MOST:
        raise RefusedError(f"expected a limit from 1 to {MOST}, got {limit}")
    found = _page(rt, meant or Filter(), _state(state), after or FIRST, limit + 1)
    return LetterPage(tuple(found[:limit]), found[limit - 1].dlq_id if len(found) > limit else None)


def all_letters(rt: Runtime, meant: Filter | None = None, *, state: str = ReplayState.PARKED) -> Iterator[DeadLetter]:
    """Every letter that is meant, a page at a time: a reader may take its time without holding vacuum back."""
    after: UUID | None = FIRST
    while after is not None:
        page = list_letters(rt, meant, state=state, after=after, limit=MOST)
        yield from page.rows
        after = page.next


def show_letter(rt: Runtime, dlq_id: UUID) -> Story:
    """One letter with its attempts; raises NotFoundError."""
    with rt.db.transaction() as tx:
        found = store.by_id(tx, dlq_id)
        if found is None:
            raise NotFoundError(f"expected the id of a dead letter, got {dlq_id}: there is none")
        return Story(_letter(rt, found), tuple(store.attempts(tx, found.replay_key)))


def letters_like(rt: Runtime, prefix: str) -> list[UUID]:
    """At most two letters whose ids begin so; ``prefix`` has hexadecimal digits and hyphens."""
    digits = prefix.replace("-", "")
    with rt.db.transaction() as tx:
        return store.like(tx, UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))


def count_letters(rt: Runtime, meant: Filter) -> Counted:
    """How many are parked, and how many of those that are meant a drain holds now."""
    with rt.db.transaction(statement_timeout=COUNTING, planner=PLANNER) as tx:
        return store.count(tx, meant)


def count_in_state(rt: Runtime, meant: Filter, state: str) -> int:
    with rt.db.transaction(statement_timeout=COUNTING, planner=PLANNER) as tx:
        return store.count_in_state(tx, meant, _state(state))


def _page(rt: Runtime, meant: Filter, state: str | None, after: UUID, limit: int) -> list[DeadLetter]:
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLANNER) as tx:
        rows = store.page(tx, meant, state=state, after=after, limit=limit)
    return [_letter(rt, row) for row in rows]


def _state(word: str) -> str | None:
    if word == ALL:
        return None
    if word not in set(ReplayState):
        raise RefusedError(f"expected a state of {', '.join(ReplayState)} or {ALL}, got {word[:30]!r}")
    return word


def _letter(rt: Runtime, row: LetterRow) -> DeadLetter:
    values = {name: getattr(row, name) for name in FACTS}
    return DeadLetter(endpoint=keychain(rt.settings).tag(row.endpoint_hash), **values)
