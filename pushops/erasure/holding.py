"""Legal hold: what a court or a dispute needs is kept, whatever retention or an erasure says, until it is released."""

from dataclasses import dataclass
from typing import Final

from pushops.db import Tx
from pushops.deadletters.filters import read_reason
from pushops.erasure.store import holding as store
from pushops.runtime import Runtime
from pushops.subscriptions.leaving import whose
from pushops.subscriptions.store import auditing
from pushops.subscriptions.work import Conn, in_transaction

HOLD: Final = "legal_hold"
RELEASE: Final = "legal_release"


@dataclass(frozen=True)
class Held:
    """``rows`` were held or released now; ``requests`` to be forgotten wait for it, or go on from here."""

    rows: int
    requests: int


def hold(
    rt: Runtime,
    *,
    user: str | None = None,
    endpoint: str | None = None,
    reason: str,
    actor: str,
    conn: Conn | None = None,
) -> Held:
    """Keep the subscriptions of a user or an endpoint, tombstones too. Held rows are sent to as before."""
    return _set(rt, True, user, endpoint, reason, actor, conn)


def release(
    rt: Runtime,
    *,
    user: str | None = None,
    endpoint: str | None = None,
    reason: str,
    actor: str,
    conn: Conn | None = None,
) -> Held:
    """Let retention have them again; a request to be forgotten goes on at the next look."""
    return _set(rt, False, user, endpoint, reason, actor, conn)


def _set(  # the two verbs' arguments
    rt: Runtime, held: bool, user: str | None, endpoint: str | None, reason: str, actor: str, conn: Conn | None
) -> Held:
    subject = whose(user, endpoint)
    why = read_reason(reason)
    verb = HOLD if held else RELEASE

    def work(tx: Tx) -> Held:
        rows = store.set_held(tx, subject, held=held)
        auditing.write(tx, verb, actor, [(row.endpoint_hash, row.user_id, {"reason": why}) for row in rows])
        requests = store.hold_requests(tx) if held else store.release_requests(tx)
        return Held(len(rows), requests)

    done = in_transaction(rt, conn, work)
    rt.events.emit("hold.legal", verb=verb, rows=done.rows, requests=done.requests, actor=actor)
    return done
