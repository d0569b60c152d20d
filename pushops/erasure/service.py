"""The verbs that others may call."""

from typing import Final
from uuid import UUID

from pushops.erasure.asking import count, erase
from pushops.erasure.deadlines import Standing, standing
from pushops.erasure.holding import Held, hold, release
from pushops.erasure.store import requests
from pushops.erasure.sweeping import APPLY_ERASURES
from pushops.erasure.words import OTHER_SPOOLS, Erasure, Request
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.sweeps.dispatch import Bell, Dispatched, dispatch
from pushops.sweeps.order import Order

__all__ = [
    "APPLY_ERASURES",
    "OTHER_SPOOLS",
    "Erasure",
    "Held",
    "Request",
    "Standing",
    "count",
    "erase",
    "go_on",
    "hold",
    "list_requests",
    "release",
    "requests_like",
    "show_request",
    "standing",
]

MOST: Final = 1_000


def go_on(rt: Runtime, bell: Bell | None, *, actor: str = "beat") -> Dispatched | None:
    """Open the sweep's run, or join it, where a request is open that nobody holds."""
    with rt.db.transaction() as tx:
        due = requests.any_due(tx)
    return dispatch(rt, APPLY_ERASURES, bell, Order(started_by=actor)) if due else None


def list_requests(rt: Runtime, *, done: bool = True, limit: int = 100) -> list[Request]:
    """The latest first; without ``done`` only those that are open."""
    if not 1 <= limit <= MOST:
        raise RefusedError(f"expected a limit from 1 to {MOST}, got {limit}")
    with rt.db.transaction() as tx:
        return list(requests.page(tx, done=done, limit=limit))


def show_request(rt: Runtime, request_id: UUID) -> Request:
    """One request, or the receipt that is left of it; raises NotFoundError."""
    with rt.db.transaction() as tx:
        found = requests.show(tx, request_id)
    if found is None:
        raise NotFoundError("expected an erasure that was asked for here, found none")
    return found


def requests_like(rt: Runtime, prefix: str) -> list[UUID]:
    """Two at most of those whose id begins so."""
    digits = prefix.replace("-", "")
    with rt.db.transaction() as tx:
        return requests.like(tx, UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))
