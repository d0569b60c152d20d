"""Asking to be forgotten: from the commit on nothing is sent, and nothing comes back on its own."""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.erasure.store import requests
from pushops.erasure.store.requests import Row
from pushops.erasure.words import Erasure
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.leaving import whose
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.subscriptions.store import auditing, ending, periods, suppressing
from pushops.subscriptions.work import Conn, in_transaction

LOOKS: Final = 10  # at a user's rows: each more than the second needs a rotation that was waited for


def erase(
    rt: Runtime,
    *,
    user: str | None = None,
    endpoint: str | None = None,
    actor: str = "application",
    conn: Conn | None = None,
) -> Erasure:
    """Forget a user or an endpoint. Rows end and endpoints are suppressed in this transaction; a sweep does the rest.

    Asked twice it is one request while that is open. Raises RefusedError unless exactly one of the two is given.
    """
    subject = whose(user, endpoint)

    def work(tx: Tx) -> Erasure:
        if isinstance(subject, bytes):
            return _erase_endpoint(tx, subject, actor)
        return _erase_user(rt, tx, subject, actor)

    done = in_transaction(rt, conn, work)
    rt.events.emit(
        "erasure.asked", request=str(done.request_id), rows=done.rows, ended=done.ended, held=done.held, actor=actor
    )
    return done


def count(rt: Runtime, *, user: str | None = None, endpoint: str | None = None) -> tuple[int, int]:
    """What asking would be about: subscriptions, and those of them that are held. Nothing changes."""
    subject = whose(user, endpoint)

    def work(tx: Tx) -> list[Row]:
        return requests.of_endpoint(tx, subject) if isinstance(subject, bytes) else requests.of_user(tx, subject)

    rows = in_transaction(rt, None, work)
    return len(rows), sum(row.legal_hold for row in rows)


def _erase_user(rt: Runtime, tx: Tx, user: str, actor: str) -> Erasure:
    hmac = keychain(rt.settings).user_hmac(user)
    request_id, joined = requests.open_(tx, hmac=hmac, user=user, endpoint_hash=None, actor=actor)
    done = take(tx, request_id, lambda: requests.of_user(tx, user), joined=joined)
    requests.name_former(tx, request_id, user)
    auditing.note(tx, "erase", actor, {"request": str(request_id)})
    return done


def _erase_endpoint(tx: Tx, endpoint_hash: bytes, actor: str) -> Erasure:
    request_id, joined = requests.open_(tx, hmac=None, user=None, endpoint_hash=endpoint_hash, actor=actor)
    requests.block(tx, endpoint_hash)
    requests.name(tx, request_id, {endpoint_hash: None})
    suppressing.add(tx, [endpoint_hash], request_id)
    done = take(tx, request_id, lambda: requests.of_endpoint(tx, endpoint_hash), joined=joined)
    auditing.note(tx, "erase", actor, {"request": str(request_id)})
    return done


def take(tx: Tx, request_id: UUID, look: Callable[[], list[Row]], *, joined: bool = True) -> Erasure:
    """End, suppress and name rows, until a look at them finds no other: one may have waited for a rotation."""
    rows: dict[UUID, Row] = {}
    ended = 0
    for _ in range(LOOKS):
        fresh = [row for row in look() if row.id not in rows]
        if not fresh:
            break
        rows |= {row.id: row for row in fresh}
        hashes = [row.endpoint_hash for row in fresh]
        suppressing.add(tx, hashes, request_id)
        ended += len(ending.end_endpoints(tx, hashes, Event.ERASED))
        periods.close(tx, hashes, END_REASON[Event.ERASED])
        requests.name(tx, request_id, {row.endpoint_hash: row.id for row in fresh})
    held = any(row.legal_hold for row in rows.values())
    if held:
        requests.hold(tx, request_id)
    return Erasure(request_id, len(rows), ended, held, joined)
