"""Seal keys in two versions, rows sealed with the old one, and whether every row can still be opened."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from pushops.rolling.resealing import RESEAL_AUTH
from pushops.rolling.turn import Turn
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.subscriptions.sealing import KeyRing, SealError
from pushops.sweeps.order import Order
from pushops.sweeps.store import RunRow
from tests.made import make_settings, random_key
from tests.sweepdb import drive

Pg = psycopg.Connection[Any]

ONE_TO_TWO: Final = Order(started_by="test", filter=Turn(1, 2).key())
KEYS: Final = {str(version): random_key() for version in (1, 2, 3)}


def with_keys(settings: Settings, *versions: int, current: int, **changes: Any) -> Settings:
    """The same settings with these seal keys."""
    assert settings.database_url is not None
    held = {str(version): KEYS[str(version)] for version in versions}
    made = make_settings(settings.database_url.get_secret_value(), seal_keys=held, seal_key_version=current)
    return settings.model_copy(update={"seal_keys": made.seal_keys, "seal_key_version": current, **changes})


@contextmanager
def holding(settings: Settings, *versions: int, current: int, **changes: Any) -> Iterator[Runtime]:
    """A runtime with these seal keys."""
    rt = open_runtime(with_keys(settings, *versions, current=current, **changes))
    try:
        yield rt
    finally:
        rt.close()


def ring_of(rt: Runtime) -> KeyRing:
    return keychain(rt.settings).ring


def add_sealed(pg: Pg, ring: KeyRing, count: int, version: int = 1) -> list[bytes]:
    """Rows whose auth secret is sealed with a version; their endpoint hashes. The secret is the hash's beginning."""
    found = []
    query = (
        "COPY pushops.push_subscription (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version,"
        " vapid_key_id) FROM STDIN"
    )
    with pg.cursor().copy(query) as copy:
        for _ in range(count):
            endpoint = f"https://fcm.googleapis.com/fcm/send/{os.urandom(12).hex()}"
            digest = hashlib.sha256(endpoint.encode()).digest()
            blob = ring.seal(AUTH, digest, digest[:16], version=version).blob
            copy.write_row((digest, endpoint, "fcm", "B" * 87, blob, version, "test"))
            found.append(digest)
    return found


def roll(rt: Runtime, turn: Turn | None = None) -> RunRow:
    """The whole run in this thread."""
    order = ONE_TO_TWO if turn is None else Order(started_by="test", filter=turn.key())
    return drive(rt, RESEAL_AUTH, order)


def versions(pg: Pg) -> Counter[int]:
    """How many rows have which version."""
    query = "SELECT auth_key_version FROM pushops.push_subscription WHERE scrubbed_at IS NULL"
    return Counter(row[0] for row in pg.execute(query))


def unreadable(pg: Pg, ring: KeyRing) -> int:
    """How many rows do not open to 16 bytes, in one look at the table."""
    query = """SELECT endpoint_hash, auth_key_version, auth_sealed FROM pushops.push_subscription
                WHERE scrubbed_at IS NULL"""
    return sum(not _opens(ring, *row) for row in pg.execute(query))


def _opens(ring: KeyRing, digest: bytes, version: int, sealed: bytes) -> bool:
    try:
        return len(ring.open(AUTH, digest, version, sealed)) == 16
    except SealError:
        return False
