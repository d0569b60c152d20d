"""An import's staging for as long as it is needed, and no longer: dropped at its end, and by others where it died."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.db.patience import persist
from pushops.errors import RefusedError
from pushops.importing.store import staging as store
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain

LEASE: Final = timedelta(minutes=10)  # an import says that it lives after every chunk and page
RENEWED: Final = 20.0  # seconds, at most so often
INDEXING: Final = timedelta(minutes=30)  # an index of a hundred million rows


@dataclass
class Staging:
    """``rows`` is what was copied. Kept by PostgreSQL without a log: a crash of the server empties it."""

    rt: Runtime
    import_id: UUID
    rows: int = 0
    renewed: float = field(default_factory=time.monotonic)

    def add(self, lines: bytes, rows: int) -> None:
        """Committed without waiting: what a crash takes of it, it takes as a whole."""
        if rows:
            with self.rt.db.transaction(asynchronous=True) as tx:
                store.copy(tx, self.import_id, lines)
        self.rows += rows
        self.keep()

    def index(self) -> None:
        self.renew()
        with self.rt.db.transaction(statement_timeout=INDEXING) as tx:
            store.index(tx, self.import_id)
        with self.rt.db.borrowed() as conn:
            store.vacuum(conn, self.rt.db.schema, self.import_id)

    def intact(self) -> bool:
        with self.rt.db.transaction() as tx:
            return store.intact(tx, self.import_id)

    def keep(self) -> None:
        """Renew the lease now and then."""
        if time.monotonic() - self.renewed >= RENEWED:
            self.renew()

    def renew(self) -> None:
        """Raises RefusedError where the staging was taken for dead and removed."""
        with self.rt.db.transaction(asynchronous=True) as tx:
            held = store.renew(tx, self.import_id, LEASE)
        if not held:
            raise RefusedError("expected this import's staging, got none: it stood still too long; import again")
        self.renewed = time.monotonic()


@contextmanager
def staging(rt: Runtime, actor: str) -> Iterator[Staging]:
    """Room in the database for one import's rows; what dead imports left is removed first."""
    tidy(rt)
    with rt.db.transaction() as tx:
        import_id = store.begin(tx, actor, LEASE)
    try:
        persist(rt.db, lambda tx: store.create(tx, import_id))
        with rt.db.transaction() as tx:
            store.mark(tx, import_id, keychain(rt.settings).ring.current)
        yield Staging(rt, import_id)
    finally:
        _drop(rt, import_id)


def tidy(rt: Runtime) -> int:
    """Remove what imports left whose process died; how many there were."""
    with rt.db.transaction() as tx:
        dead = store.dead(tx)
    for import_id in dead:
        _drop(rt, import_id)
    if dead:
        rt.events.emit("import.tidied", imports=len(dead))
    return len(dead)


def _drop(rt: Runtime, import_id: UUID) -> None:
    """Dropping locks the parent for an instant, as making does: somebody may be reading it."""
    persist(rt.db, lambda tx: store.drop(tx, import_id))
