"""Ends by a person's word: unsubscribing, and logging out."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from pushops.db import Tx
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.attributes import read_name
from pushops.subscriptions.errors import refusal
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.lifecycle import END_REASON, Event
from pushops.subscriptions.rejection import RejectionError, describe
from pushops.subscriptions.store import auditing, detaching, ending, periods
from pushops.subscriptions.store.detaching import Owned
from pushops.subscriptions.store.ending import EndedRow
from pushops.subscriptions.work import Conn, in_transaction

CHUNK: Final = 500  # endpoints per transaction
LOOKS: Final = 10  # at a user's rows: each more than the second needs a rotation that had begun and was waited for

Taken = TypeVar("Taken")


def unsubscribe(
    rt: Runtime,
    *,
    endpoint: str | None = None,
    endpoints: Iterable[str] | None = None,
    user: str | None = None,
    actor: str = "application",
    conn: Conn | None = None,
) -> int:
    """Revoke one endpoint, a list of them, or all of a user's; how many rows that ended. Unknown ones are no error.

    Rows that evidence, ageing or a rotation had ended count too: from now on it was a person, and neither undo nor a
    repeated rotation brings anybody back.
    """
    if [endpoint, endpoints, user].count(None) != 2:  # noqa: PLR2004  (all but one)
        raise RefusedError("expected one of endpoint, endpoints and user")
    if user is not None:
        known = known_user(user)
        return _unsubscribe(rt, conn, actor, lambda tx: _all(lambda: ending.end_user(tx, known, Event.UNSUBSCRIBED)))
    hashes = iter(hash_of(each) for each in ([endpoint] if endpoints is None else endpoints))
    ended = 0
    while chunk := list(islice(hashes, CHUNK)):
        ended += _unsubscribe_endpoints(rt, conn, actor, chunk)
    return ended


def whose(user: str | None, endpoint: str | None) -> str | bytes:
    """The user, or the endpoint's hash. Raises RefusedError unless one of the two is given, and is one."""
    if (user is None) == (endpoint is None):
        raise RefusedError("expected one of user and endpoint")
    return hash_of(endpoint) if user is None else known_user(user)


def detach(rt: Runtime, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> int:
    """End the link of an endpoint to its user, as logging out does; the row goes on, anonymous. Rows detached.

    A row that evidence, ageing or a rotation had ended counts too: nothing brings it back as theirs.
    """
    known = hash_of(endpoint)
    return _detach(rt, conn, actor, "detach", lambda tx: detaching.detach_endpoint(tx, known))


def detach_all(rt: Runtime, user: str, *, actor: str = "application", conn: Conn | None = None) -> int:
    """End the link of all of a user's endpoints, ended ones included. Rows detached."""
    known = known_user(user)
    return _detach(rt, conn, actor, "detach_all", lambda tx: _all(lambda: detaching.detach_user(tx, known)))


def hash_of(endpoint: object) -> bytes:
    """An endpoint's hash whatever text it is; raises RefusedError for anything but text."""
    if not isinstance(endpoint, str):
        raise RefusedError(f"expected endpoint to be a string, got {describe(endpoint)}")
    return endpoint_hash(endpoint)


def known_user(user: object) -> str:
    """A user id that a row could have; raises SubscriptionRefused."""
    try:
        return read_name("user_id", user) or ""
    except RejectionError as error:
        raise refusal(error.rejected) from None


def _all(take: Callable[[], list[Taken]]) -> list[Taken]:
    """Take until nothing is left: where a look waited for a rotation, only the next one sees the heir."""
    taken: list[Taken] = []
    for _ in range(LOOKS):
        found = take()
        if not found:
            break
        taken += found
    return taken


def _unsubscribe_endpoints(rt: Runtime, conn: Conn | None, actor: str, hashes: Sequence[bytes]) -> int:
    return _unsubscribe(rt, conn, actor, lambda tx: ending.end_endpoints(tx, hashes, Event.UNSUBSCRIBED))


def _unsubscribe(rt: Runtime, conn: Conn | None, actor: str, end: Callable[[Tx], list[EndedRow]]) -> int:
    def work(tx: Tx) -> list[EndedRow]:
        rows = end(tx)
        close_ended(tx, rows, Event.UNSUBSCRIBED, "unsubscribe", actor)
        return rows

    ended = in_transaction(rt, conn, work)
    announce_ended(rt, ended, "unsubscribe", Event.UNSUBSCRIBED)
    return len(ended)


def close_ended(tx: Tx, rows: Sequence[EndedRow], event: Event, verb: str, actor: str) -> None:
    """The consent trail's and the audit's part of an end."""
    reason = END_REASON[event]
    periods.close(tx, [row.endpoint_hash for row in rows], reason)
    auditing.write(
        tx, verb, actor, [(row.endpoint_hash, row.user_id, {"reason": reason, "was": row.was}) for row in rows]
    )


def announce_ended(rt: Runtime, rows: Sequence[EndedRow], verb: str, event: Event) -> None:
    chain = keychain(rt.settings)
    for row in rows:
        tag = chain.tag(row.endpoint_hash)
        rt.events.emit("subscription.ended", verb=verb, endpoint=tag, reason=END_REASON[event], rows=1)


def _detach(rt: Runtime, conn: Conn | None, actor: str, verb: str, end: Callable[[Tx], list[Owned]]) -> int:
    def work(tx: Tx) -> int:
        owned = end(tx)
        hashes = [row.endpoint_hash for row in owned]
        periods.close(tx, hashes, "detached")
        periods.open_missing(tx, hashes, rt.settings.reconnection_window)
        auditing.write(tx, verb, actor, [(row.endpoint_hash, row.user_id, {}) for row in owned])
        return len(owned)

    rows = in_transaction(rt, conn, work)
    rt.events.emit("subscription.detached", verb=verb, rows=rows)
    return rows
