"""Showing one subscription, listing many, counting how they come and go."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final, assert_never
from uuid import UUID

from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.leaving import hash_of
from pushops.subscriptions.lifecycle import State
from pushops.subscriptions.store import churn, reading
from pushops.subscriptions.store.churn import Kind
from pushops.subscriptions.store.reading import Filter, Subscription
from pushops.subscriptions.work import Conn, in_transaction

MOST: Final = 1000  # rows a page
_FIRST: Final = UUID(int=0)


@dataclass(frozen=True)
class Page:
    """``next`` is what to pass as ``after`` for the page that follows, None at the end."""

    rows: tuple[Subscription, ...]
    next: UUID | None


@dataclass
class Day:
    """One UTC day of one push service. What went on under a rotated endpoint neither started nor ended.

    ``purged``: rows that ended on that day, by reason, that hard deletion has since folded into counters.
    """

    day: date
    push_service: str
    started: int = 0
    reconnected: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    purged: Counter[str] = field(default_factory=Counter)


def show(
    rt: Runtime, *, endpoint: str | None = None, subscription_id: UUID | None = None, conn: Conn | None = None
) -> Subscription:
    """One row by endpoint or id, without its credentials; raises NotFoundError."""
    if (endpoint is None) == (subscription_id is None):
        raise RefusedError("expected one of endpoint and subscription_id")
    if subscription_id is not None:
        known = subscription_id
        found = in_transaction(rt, conn, lambda tx: reading.by_id(tx, known))
    else:
        digest = hash_of(endpoint)
        found = in_transaction(rt, conn, lambda tx: reading.by_hash(tx, digest))
    if found is None:
        raise NotFoundError("expected a subscription that is stored here, found none")
    return found


def list_subscriptions(
    rt: Runtime,
    *,
    user: str | None = None,
    state: str | None = None,
    service: str | None = None,
    origin: str | None = None,
    after: UUID | None = None,
    limit: int = 100,
    conn: Conn | None = None,
) -> Page:
    """A page of rows in the order of their ids, which is that of their making; ``limit`` is 1 to 1,000."""
    if not 1 <= limit <= MOST:
        raise RefusedError(f"expected a limit from 1 to {MOST}, got {limit}")
    if state is not None and state not in set(State):
        raise RefusedError(f"expected a state of {', '.join(State)}, got {state!r}")
    which = Filter(user, state, service, origin)
    rows = in_transaction(rt, conn, lambda tx: reading.page(tx, which, after or _FIRST, limit + 1))
    more = len(rows) > limit
    return Page(tuple(rows[:limit]), rows[limit - 1].id if more else None)


def stats(rt: Runtime, since: datetime, until: datetime, *, conn: Conn | None = None) -> list[Day]:
    """How subscriptions started and ended from ``since`` to before ``until``, by day and service."""
    if since.tzinfo is None or until.tzinfo is None:
        raise RefusedError("expected since and until with a time zone, got a time without")
    return _folded(in_transaction(rt, conn, lambda tx: churn.count(tx, since, until)))


def _folded(counts: Sequence[churn.Count]) -> list[Day]:
    days: dict[tuple[date, str], Day] = {}
    for count in counts:
        day = days.setdefault((count.day, count.push_service), Day(count.day, count.push_service))
        match count.kind:
            case Kind.STARTED:
                day.started += count.rows
            case Kind.RECONNECTED:
                day.reconnected += count.rows
            case Kind.ENDED:
                day.ended[count.reason] += count.rows
            case Kind.PURGED:
                day.purged[count.reason] += count.rows
            case _:
                assert_never(count.kind)
    return list(days.values())
