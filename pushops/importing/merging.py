"""Staged rows become subscriptions, page by page in hash order: each page is one short transaction."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, starmap
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import DataError
from pushops.importing.brake import Brake
from pushops.importing.store import merging as store
from pushops.importing.store.merging import Alike, Gone, Span
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import AUTH, Keychain, keychain
from pushops.subscriptions.sealing import KeyRing, SealError
from pushops.subscriptions.store.registration import Ownership
from pushops.subscriptions.suppressing import SuppressedError
from pushops.subscriptions.work import in_transaction

LANES: Final = 2  # pages at once, of different endpoints: as many connections
PAGE: Final = 2_000  # rows: some tens of milliseconds, so that visitors never wait on it
# Plans are made for each page: one that was kept from the first pages took the table for empty. Commits do not wait for
# the disk: what a crash takes is imported again, and the import's end waits for all.
PLANNER: Final = {"plan_cache_mode": "force_custom_plan", "synchronous_commit": "off"}

_HASHES: Final = 1 << 256


@dataclass(frozen=True)
class Merged:
    """A page's outcome: ``rows`` were staged, of ``endpoints`` different ones; ``left`` and ``erased`` are refused."""

    rows: int
    endpoints: int
    inserted: int
    updated: int
    unchanged: int
    left: Sequence[Gone] = ()
    erased: Sequence[Gone] = ()


def merge(rt: Runtime, import_id: UUID, rows: int, actor: str, *, revive: bool, dry_run: bool) -> Iterator[Merged]:
    """Every page's outcome, once it is committed; ``rows`` is how many are staged. Raises RefusedError where held."""
    brake, ownership = Brake(rt), Ownership(keep_owner=True, revive=revive)
    page = Page(rt, keychain(rt.settings), ownership, actor, dry_run)
    waiting: deque[Future[Merged]] = deque()
    with ThreadPoolExecutor(LANES, "import") as lanes:
        for span in spans(import_id, rows):
            brake.wait()
            waiting.append(lanes.submit(page.merge, span))
            if len(waiting) > LANES:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def spans(import_id: UUID, rows: int) -> Iterator[Span]:
    """As many as make pages of about PAGE rows: hashes are spread evenly."""
    pages = -(-rows // PAGE)
    bounds = [(_HASHES * number // pages).to_bytes(32) for number in range(1, pages)]
    return starmap(partial(Span, import_id), pairwise([b"", *bounds, b"\xff" * 32]))


@dataclass(frozen=True)
class Page:
    """What all pages of an import share."""

    rt: Runtime
    chain: Keychain
    ownership: Ownership
    actor: str
    dry_run: bool

    def merge(self, span: Span) -> Merged:
        """One transaction; again where somebody registered or was erased between the look and the effect."""
        if self.dry_run:
            return self._once(span, self._count)
        with suppress(DataError, SuppressedError):
            return self._once(span, self._add)
        while True:
            with suppress(SuppressedError):
                return self._once(span, self._store)

    def _once(self, span: Span, work: Callable[[Tx, Span], Merged]) -> Merged:
        return in_transaction(self.rt, None, lambda tx: work(tx, span), planner=PLANNER)

    def _add(self, tx: Tx, span: Span) -> Merged:
        size = store.size(tx, span)
        if not size.new:
            return self._store(tx, span)
        written = store.add(tx, span, self.chain.vapid_id, self.rt.settings.reconnection_window)
        _look_again(tx, span, 0)
        return Merged(size.rows, size.endpoints, written.rows, 0, 0)

    def _store(self, tx: Tx, span: Span) -> Merged:
        erased = store.erased(tx, span)
        gone = [found.endpoint_hash for found in erased]
        size = store.size(tx, span, gone)
        same = self._same(tx, span) if size.known else []
        but = [*gone, *same]
        if len(but) == size.endpoints:
            return Merged(size.rows, size.endpoints, 0, 0, len(same), [], erased)
        written = store.write(tx, span, but, self.ownership, self.chain.vapid_id, self.actor)
        if written.inserted < written.rows:
            store.close_periods(tx, span)
        store.open_periods(tx, span, self.rt.settings.reconnection_window)
        _look_again(tx, span, len(erased))
        complete = written.rows + len(but) == size.endpoints
        left = [] if complete else store.left(tx, span, but, self.ownership)
        updated = written.rows - written.inserted
        return Merged(size.rows, size.endpoints, written.inserted, updated, len(same), left, erased)

    def _count(self, tx: Tx, span: Span) -> Merged:
        erased = store.erased(tx, span)
        gone = [found.endpoint_hash for found in erased]
        size, same = store.size(tx, span, gone), self._same(tx, span)
        left = store.left(tx, span, gone, self.ownership)
        new, updated = size.endpoints - len(gone) - size.known, size.known - len(same) - len(left)
        return Merged(size.rows, size.endpoints, new, updated, len(same), left, erased)

    def _same(self, tx: Tx, span: Span) -> list[bytes]:
        """The endpoints of the page that storing it would not change."""
        ring = self.chain.ring
        return [found.endpoint_hash for found in store.alike(tx, span, self.chain.vapid_id) if _equal(ring, found)]


def _look_again(tx: Tx, span: Span, erased: int) -> None:
    """Raise SuppressedError where more endpoints are erased by now: an erasure waits for who writes its rows."""
    found = store.erased(tx, span)
    if len(found) > erased:
        raise SuppressedError({each.endpoint_hash for each in found})


def _equal(ring: KeyRing, found: Alike) -> bool:
    """Whether both hold the same secret; what does not open is written again."""
    bound_to = found.endpoint_hash
    try:
        stored = ring.open(AUTH, bound_to, found.auth_key_version, found.auth_sealed)
    except SealError:
        return False
    return stored == ring.open(AUTH, bound_to, found.given_version, found.given)
