"""Looking at messages: how far they are, and what became of each recipient. No payload, no endpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from pushops.delivery.message import MessageState, RecipientState
from pushops.delivery.retry import End
from pushops.delivery.store import messages as store
from pushops.delivery.store.messages import MessageRow, ResultRow, Share
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import keychain
from pushops.sweeps.sql import PLAN_PAGES

MOST: Final = 1_000  # rows a page
PATIENCE: Final = timedelta(minutes=1)  # ten million recipients are counted within it
LATEST: Final = UUID(int=2**128 - 1)
# What results may be asked for: an end, or where a row without one is.
OUTCOMES: Final = tuple(dict.fromkeys([*map(str, End), *map(str, RecipientState)]))


@dataclass(frozen=True)
class Progress:
    """A message and its recipients by what became of them."""

    message: MessageRow
    shares: tuple[Share, ...]

    @property
    def ended(self) -> int:
        return sum(share.rows for share in self.shares if share.state == RecipientState.ENDED)

    @property
    def accepted(self) -> int:
        return sum(share.rows for share in self.shares if share.outcome == End.ACCEPTED)


@dataclass(frozen=True)
class Result:
    """One recipient. ``endpoint`` is the keyed tag that logs have too; ``wait`` what it waits, or last waited, for."""

    subscription_id: UUID
    endpoint: str
    user_id: str | None
    state: str
    outcome: str | None
    wait: str | None
    code: str | None
    status: int | None
    attempts: int
    ambiguous: int
    granted_ttl: int | None
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class ResultPage:
    """``next`` is what to pass as ``after`` for the page that follows, None at the end."""

    rows: tuple[Result, ...]
    next: str | None


def message(rt: Runtime, message_id: UUID) -> Progress:
    """A message with its progress; reads all its rows. Raises NotFoundError."""
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLAN_PAGES) as tx:
        found = store.by_id(tx, message_id)
        if found is None:
            raise _unknown(message_id)
        return Progress(found, tuple(store.progress(tx, message_id)))


def messages(
    rt: Runtime,
    *,
    campaign: str | None = None,
    state: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[MessageRow]:
    """The latest messages, newest first; ``before`` is the last id of the page before."""
    if state is not None and state not in set(MessageState):
        raise RefusedError(f"expected a state of {', '.join(MessageState)}, got {state!r}")
    with rt.db.transaction() as tx:
        return store.page(tx, campaign=campaign, state=state, before=before or LATEST, limit=_limit(limit))


def messages_like(rt: Runtime, prefix: str) -> list[UUID]:
    """At most two messages whose ids begin so; ``prefix`` has hexadecimal digits and hyphens."""
    digits = prefix.replace("-", "")
    with rt.db.transaction() as tx:
        return store.like(tx, UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))


def results(
    rt: Runtime, message_id: UUID, *, outcome: str | None = None, after: str | None = None, limit: int = MOST
) -> ResultPage:
    """A page of a message's recipients; ``outcome`` is one, or a state for those that have none yet.

    Raises NotFoundError, and RefusedError for an outcome that there is not.
    """
    most = _limit(limit)
    if outcome is not None and outcome not in OUTCOMES:
        raise RefusedError(f"expected an outcome of {', '.join(OUTCOMES)}, got {outcome!r}")
    cursor = b"" if after is None else _cursor(after)
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLAN_PAGES) as tx:
        if store.by_id(tx, message_id) is None:
            raise _unknown(message_id)
        rows = store.results(tx, message_id, outcome=outcome, after=cursor, limit=most + 1)
    page = tuple(_result(rt, row) for row in rows[:most])
    return ResultPage(page, base64url.encode(rows[most - 1].endpoint_hash) if len(rows) > most else None)


def all_results(rt: Runtime, message_id: UUID, *, outcome: str | None = None) -> Iterator[Result]:
    """Every recipient, a page at a time."""
    page = results(rt, message_id, outcome=outcome)
    yield from page.rows
    while page.next is not None:
        page = results(rt, message_id, outcome=outcome, after=page.next)
        yield from page.rows


def _result(rt: Runtime, row: ResultRow) -> Result:
    left_out = {"endpoint_hash", "next_attempt_at"}
    values = {name: value for name, value in vars(row).items() if name not in left_out}
    waits = None if row.state == RecipientState.ENDED else row.next_attempt_at
    return Result(endpoint=keychain(rt.settings).tag(row.endpoint_hash), next_attempt_at=waits, **values)


def _limit(limit: int) -> int:
    if not 1 <= limit <= MOST:
        raise RefusedError(f"expected a limit from 1 to {MOST}, got {limit}")
    return limit


def _cursor(text: str) -> bytes:
    try:
        return base64url.decode(text)
    except base64url.Base64Error:
        raise RefusedError("expected what the page before gave as next, got something else") from None


def _unknown(message_id: UUID) -> NotFoundError:
    return NotFoundError(f"expected the id of a message, got {message_id}: there is none")
