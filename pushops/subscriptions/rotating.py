"""pushsubscriptionchange: the browser has a new endpoint in the place of an old one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.subscriptions.attributes import read_attributes
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.leaving import announce_ended, hash_of
from pushops.subscriptions.lifecycle import END_REASON, UNDOABLE, Event
from pushops.subscriptions.registering import LEFT, Prepared, Saved, Written, announce, prepare, refuse, write
from pushops.subscriptions.rejection import RejectionError
from pushops.subscriptions.store import auditing, ending, periods, rotation, suppressing
from pushops.subscriptions.store.ending import EndedRow
from pushops.subscriptions.store.periods import Inheritance
from pushops.subscriptions.store.registration import Ownership, Registration
from pushops.subscriptions.store.rotation import Known, Pair
from pushops.subscriptions.suppressing import ERASED
from pushops.subscriptions.work import Conn, in_transaction

_ROTATED: Final = END_REASON[Event.ROTATED_AWAY]
ERASED_OLD: Final = replace(ERASED, field="old_endpoint")


def rotate(
    rt: Runtime,
    old_endpoint: str,
    new_subscription: object,
    *,
    user_id: object = None,
    origin: object = None,
    application_server_key: object = None,
    tags: Iterable[object] | None = None,
    user_agent: object = None,
    locale: object = None,
    actor: str = "application",
    conn: Conn | None = None,
) -> Saved:
    """Save the new subscription in the old one's place: it takes the user and the original date, the old one ends.

    A new endpoint that has an owner of its own keeps it. An unknown old endpoint, or the same, makes it a plain save
    that keeps the owner, and so does a repetition. Raises SubscriptionRefused, also where a person had ended either one
    (answer `unsubscribe`), or was erased: then the new one is on the list of the erased as well.
    """
    old = hash_of(old_endpoint)
    try:
        attributes = read_attributes(user_id, origin, tags, user_agent, locale)
        prepared = prepare(keychain(rt.settings), new_subscription, application_server_key, attributes)
        ownership = Ownership(keep_owner=True, inherited=attributes.user_id is None)
        written, ended = in_transaction(rt, conn, lambda tx: _rotate(rt, tx, old, prepared, ownership, actor))
    except RejectionError as error:
        if error.rejected == ERASED_OLD:
            in_transaction(rt, conn, lambda tx: suppressing.hand_on(tx, old, prepared.row.endpoint_hash))
        raise refuse(rt, new_subscription, error.rejected) from None
    announce_ended(rt, ended, "rotate", Event.ROTATED_AWAY)
    announce(rt, prepared, written)
    return written.saved


def _rotate(
    rt: Runtime, tx: Tx, old: bytes, prepared: Prepared, ownership: Ownership, actor: str
) -> tuple[Written, Sequence[EndedRow]]:
    pair = rotation.lock_pair(tx, old, prepared.row.endpoint_hash)
    if suppressing.find(tx, [old]):
        raise RejectionError(ERASED_OLD)
    _refuse_left(pair)
    found = pair.old
    if found is None or found == pair.new or _is_repetition(pair):
        return write(rt, tx, prepared, replace(ownership, inherited=False), actor), ()
    ended = ending.end_endpoints(tx, [old], Event.ROTATED_AWAY)
    closed = periods.close(tx, [old], _ROTATED)
    auditing.write(tx, "rotate", actor, [(old, row.user_id, {"reason": _ROTATED, "was": row.was}) for row in ended])
    heir = replace(prepared, row=_heir(prepared.row, found, pair.new))
    return write(rt, tx, heir, ownership, actor, _inheritance(closed, found)), ended


def _refuse_left(pair: Pair) -> None:
    """A person left; that their browser renewed what it still held is no new consent."""
    for field, row in (("old_endpoint", pair.old), ("endpoint", pair.new)):
        if row is not None and row.end_reason == END_REASON[Event.UNSUBSCRIBED]:
            raise RejectionError(replace(LEFT, field=field))


def _is_repetition(pair: Pair) -> bool:
    """The new row got all it had to get the first time; its owner may have logged out since."""
    return pair.new is not None and pair.old is not None and pair.old.end_reason == _ROTATED


def _heir(row: Registration, found: Known, there: Known | None) -> Registration:
    """Nobody inherits what another person was or chose, be it one who is named or one who has the new row."""
    owner = row.user_id or _holder(there)
    if None not in {owner, found.user_id} and owner != found.user_id:
        return row
    return replace(
        row,
        user_id=row.user_id or found.user_id,
        created_at=found.created_at,
        tags=row.tags or tuple(found.tags),
        user_agent=row.user_agent or found.user_agent,
        locale=row.locale or found.locale,
        origin=row.origin or found.origin,
    )


def _holder(there: Known | None) -> str | None:
    """Who keeps the new row against an heir."""
    if there is None or not (there.end_reason is None or there.end_reason in UNDOABLE):
        return None
    return there.user_id


def _inheritance(closed: Sequence[periods.Closed], found: Known) -> Inheritance:
    """The trail goes on where it was; a second heir of one endpoint only reconnects."""
    for period in closed:
        return Inheritance(period.user_id, period.began_at, period.reconnection)
    return Inheritance(found.user_id, None, reconnection=True)
