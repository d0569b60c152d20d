"""The heartbeat: a browser shows that it still holds its subscription, and hears whether to go on."""

from contextlib import suppress
from dataclasses import dataclass

import redis

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import Keychain, keychain
from pushops.subscriptions.leaving import hash_of
from pushops.subscriptions.lifecycle import END_REASON, Event, State
from pushops.subscriptions.registering import advice_for
from pushops.subscriptions.rejection import Advice
from pushops.subscriptions.store import auditing, suppressing, touching
from pushops.subscriptions.store.touching import Contact
from pushops.subscriptions.work import Conn, in_transaction


@dataclass(frozen=True)
class Touched:
    """``state`` is None for an endpoint that is not known here; ``written`` whether ``last_seen_at`` moved."""

    state: State | None
    advice: Advice
    written: bool


def touch(rt: Runtime, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> Touched:
    """Note that a browser holds this endpoint, at most once an hour; a stale row comes back at once.

    The advice is fresh at every call. Without Redis every call writes.
    """
    known = hash_of(endpoint)
    key = seen_key(rt.settings, keychain(rt.settings), known)
    recent = _is_recent(rt, key)
    contact, written, suppressed = in_transaction(rt, conn, lambda tx: _touch(tx, known, actor, recent=recent))
    if written:
        _mark(rt, key)
    state = None if contact is None else State(contact.state)
    advice = Advice.UNSUBSCRIBE if suppressed else advise(keychain(rt.settings), contact)
    return Touched(state, advice, written)


def seen_key(settings: Settings, chain: Keychain, endpoint_hash: bytes) -> str:
    """Where Redis remembers that an endpoint was seen lately."""
    return f"{settings.db_schema}:seen:{chain.tag(endpoint_hash)}"


def advise(chain: Keychain, contact: Contact | None) -> Advice:
    """What a browser should do that holds this endpoint: a person's end is final, any other wants a fresh start."""
    if contact is None:
        return Advice.RESUBSCRIBE
    if contact.ended:
        left = contact.end_reason == END_REASON[Event.UNSUBSCRIBED]
        return Advice.UNSUBSCRIBE if left else Advice.RESUBSCRIBE
    return advice_for(contact.send_block, expired=contact.expired, served=chain.serves(contact.vapid_key_id))


def _touch(tx: Tx, known: bytes, actor: str, *, recent: bool) -> tuple[Contact | None, bool, bool]:
    """The row as it is, whether it was written, and whether its endpoint was erased."""
    before = touching.look(tx, known)
    if before is None or before.ended:
        return before, False, bool(suppressing.find(tx, [known]))
    if recent and before.state != State.STALE:
        return before, False, False
    after = touching.seen(tx, known)
    if after is None:  # it ended between the two statements
        return touching.look(tx, known), False, bool(suppressing.find(tx, [known]))
    auditing.write(tx, "touch", actor, [(known, after.user_id, {"state": after.state})])
    return after, True, False


def _is_recent(rt: Runtime, key: str) -> bool:
    """False also where Redis fails: what it forgot only costs a write."""
    try:
        return rt.redis is not None and bool(rt.redis.exists(key))
    except (redis.RedisError, OSError):
        return False


def _mark(rt: Runtime, key: str) -> None:
    if rt.redis is not None:
        with suppress(redis.RedisError, OSError):
            rt.redis.set(key, 1, px=rt.settings.last_seen_throttle)
