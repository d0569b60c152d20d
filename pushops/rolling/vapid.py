"""Rotating VAPID keys: a subscription stays bound to the key that it was made under, so browsers must come anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pushops.errors import RefusedError
from pushops.rolling import store
from pushops.rolling.store import VapidUse
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.store import auditing

COUNT_TIMEOUT: Final = timedelta(minutes=1)  # one look at every row that is not ended
SEEN_WITHIN: Final = timedelta(days=30)  # who was seen lately will be again: these come by themselves


@dataclass(frozen=True)
class VapidKeyUse:
    """A VAPID key and the subscriptions under it that are not ended; ``id`` None where none is noted.

    ``assumed`` of them did not say which key they used; ``seen`` were in touch within 30 days.
    """

    id: str | None
    held: bool
    current: bool
    public_key: str | None
    rows: int
    live: int
    assumed: int
    seen: int


@dataclass(frozen=True)
class Plan:
    """What moving everybody to the key ``target`` takes: who must subscribe again, and who of them was seen lately."""

    target: str | None
    keys: Sequence[VapidKeyUse]
    must_resubscribe: int
    seen: int


def plan(rt: Runtime, target: str | None = None) -> Plan:
    """Counts by key; ``target`` is the current key where none is named. Raises RefusedError for an unknown one."""
    chain = keychain(rt.settings)
    if target is not None and target not in chain.vapid:
        raise RefusedError(f"expected the id of a VAPID key that is held ({', '.join(chain.vapid)}), got {target!r}")
    target = target or chain.vapid_id
    with rt.db.transaction(statement_timeout=COUNT_TIMEOUT) as tx:
        counted = {use.vapid_key_id: use for use in store.vapid_use(tx, SEEN_WITHIN)}
    known = [*chain.vapid, *sorted((key for key in counted if key not in chain.vapid), key=str)]
    keys = [_use(rt, key_id, counted.get(key_id)) for key_id in known]
    others = [use for use in keys if use.id != target]
    return Plan(target, keys, sum(use.rows for use in others), sum(use.seen for use in others))


def _use(rt: Runtime, key_id: str | None, counted: VapidUse | None) -> VapidKeyUse:
    chain = keychain(rt.settings)
    held = chain.vapid.get(key_id) if key_id is not None else None
    return VapidKeyUse(
        id=key_id,
        held=held is not None,
        current=held is not None and key_id == chain.vapid_id,
        public_key=held.public_text if held else None,
        rows=counted.rows if counted else 0,
        live=counted.live if counted else 0,
        assumed=counted.assumed if counted else 0,
        seen=counted.seen if counted else 0,
    )


def retire(rt: Runtime, key_id: str, *, actor: str, force: bool = False) -> VapidKeyUse:
    """Say what goes with a key, and note who asked. Raises RefusedError where it is current, or in use and unforced."""
    use = next((use for use in plan(rt).keys if use.id == key_id), None)
    if use is None:
        raise RefusedError(f"expected the id of a VAPID key that is held or in use, got {key_id!r}")
    if use.current:
        raise RefusedError(
            f"expected a VAPID key that new subscriptions do not get, got the current one {key_id!r}:"
            " set PUSHOPS_VAPID_KEY_ID to another first"
        )
    if use.rows and not force:
        raise RefusedError(
            f"expected no subscription under VAPID key {key_id!r}, got {use.rows:,} ({use.seen:,} seen within 30 days):"
            " none of them can be sent to without it, and each browser must subscribe again; --force means it"
        )
    with rt.db.transaction() as tx:
        auditing.note(tx, "vapid_retire", actor, {"key": key_id, "rows": use.rows, "force": force})
    return use
