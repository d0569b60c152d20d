"""An erased endpoint's way back: only its client's word that it unsubscribed, or its person's new opt-in."""

from collections.abc import Sequence
from typing import Final

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.leaving import hash_of
from pushops.subscriptions.rejection import Advice, Reason, Rejected, RejectionError
from pushops.subscriptions.store import auditing
from pushops.subscriptions.store import suppressing as store
from pushops.subscriptions.work import Conn, in_transaction

# Erased: nothing is stored, and the browser is to end what it still holds.
ERASED: Final = Rejected(
    "endpoint", Reason.ERASED, "an endpoint that was not erased", "one that was", Advice.UNSUBSCRIBE
)


class SuppressedError(Exception):
    """Some of the rows that were just written are suppressed: all is rolled back. Leaves no module of ours."""

    def __init__(self, hashes: set[bytes]) -> None:
        super().__init__(len(hashes))
        self.hashes = hashes


def check(tx: Tx, hashes: Sequence[bytes]) -> None:
    """Raise SuppressedError. To be asked after the rows were written: an erasure waits for who writes its rows."""
    if found := store.find(tx, hashes):
        raise SuppressedError(found)


def refuse_suppressed(tx: Tx, endpoint_hash: bytes) -> None:
    """The same for one row; raises RejectionError."""
    if store.find(tx, [endpoint_hash]):
        raise RejectionError(ERASED)


def confirm_unsubscribed(rt: Runtime, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> bool:
    """The client of an erased endpoint has unsubscribed it: it is on no list any more. Whether it was on one.

    A browser that subscribes again has another endpoint; that this one comes back is its person's new choice.
    """
    known = hash_of(endpoint)

    def work(tx: Tx) -> bool:
        lifted = store.lift(tx, known)
        if lifted:
            auditing.note(tx, "suppression_lifted", actor, {"by": "the client's confirmation"})
        return lifted

    lifted = in_transaction(rt, conn, work)
    if lifted:
        rt.events.emit("erasure.lifted", endpoint=keychain(rt.settings).tag(known), verb="confirm")
    return lifted
