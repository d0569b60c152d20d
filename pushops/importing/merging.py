"""Staged rows become subscriptions, page by page in hash order: each page is one short transaction."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.importing.store import merging as store
from pushops.importing.store.merging import Alike, Gone, Span
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import AUTH, Keychain, keychain
from pushops.subscriptions.sealing import KeyRing, SealError
from pushops.subscriptions.store import auditing, periods
from pushops.subscriptions.store.registration import Ownership, Registered
from pushops.subscriptions.work import in_transaction

PAGE: Final = 2_000  # rows: some tens of milliseconds, so that visitors never wait on it
# Plans are made for each page: one that was kept from the first pages took the table for empty.
PLANNER: Final = {"plan_cache_mode": "force_custom_plan"}


@dataclass(frozen=True)
class Merged:
    """A page's outcome: ``rows`` were staged, of ``endpoints`` different ones; ``left`` were refused."""

    rows: int
    endpoints: int
    inserted: int
    updated: int
    unchanged: int
    left: list[Gone]


def merge(rt: Runtime, import_id: UUID, actor: str, *, revive: bool, dry_run: bool) -> Iterator[Merged]:
    """Every page's outcome, once it is committed."""
    chain = keychain(rt.settings)
    ownership = Ownership(keep_owner=True, revive=revive)
    after = b""
    while span := _next(rt, import_id, after):
        after = span.upto
        work = partial(_merge, rt, span=span, chain=chain, ownership=ownership, actor=actor, dry_run=dry_run)
        yield in_transaction(rt, None, work, planner=PLANNER)


def _next(rt: Runtime, import_id: UUID, after: bytes) -> Span | None:
    return in_transaction(rt, None, lambda tx: store.page(tx, import_id, after, PAGE), planner=PLANNER)


def _merge(
    rt: Runtime, tx: Tx, *, span: Span, chain: Keychain, ownership: Ownership, actor: str, dry_run: bool
) -> Merged:
    size = store.size(tx, span)
    same = [found.endpoint_hash for found in store.alike(tx, span, chain.vapid_id) if _equal(chain.ring, found)]
    if dry_run:
        left = store.left(tx, span, ownership)
        known = store.known(tx, span)
        return Merged(size.rows, size.endpoints, size.endpoints - known, known - len(same) - len(left), len(same), left)
    written = store.write(tx, span, same, ownership, chain.vapid_id)
    _follow(rt, tx, written, actor)
    inserted = sum(row.registration_no == 1 for row in written)
    complete = len(written) + len(same) == size.endpoints
    left = [] if complete else store.left(tx, span, ownership)
    return Merged(size.rows, size.endpoints, inserted, len(written) - inserted, len(same), left)


def _equal(ring: KeyRing, found: Alike) -> bool:
    """Whether both hold the same secret; what does not open is written again."""
    bound_to = found.endpoint_hash
    try:
        stored = ring.open(AUTH, bound_to, found.auth_key_version, found.auth_sealed)
    except SealError:
        return False
    return stored == ring.open(AUTH, bound_to, found.given_version, found.given)


def _follow(rt: Runtime, tx: Tx, written: list[Registered], actor: str) -> None:
    """The consent trail and the audit of what was stored."""
    hashes = [row.endpoint_hash for row in written]
    if len(written) != sum(row.registration_no == 1 for row in written):
        periods.close(tx, hashes, "owner_changed")
    periods.open_missing(tx, hashes, rt.settings.reconnection_window)
    details = [
        (row.endpoint_hash, row.user_id, {"state": row.state, "registration_no": row.registration_no})
        for row in written
    ]
    auditing.write(tx, "import", actor, details)
