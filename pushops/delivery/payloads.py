"""Payloads lie sealed in an object store, one object for each message, under the day that it was made.

What is sealed is bound to its message's id, so that an object in the place of another does not open.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final
from uuid import UUID

from pushops.delivery import objects
from pushops.delivery.errors import PayloadMissingError, PayloadStoreError
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.sealing import Sealed, SealError

__all__ = ["PayloadMissingError", "PayloadStoreError", "fetch", "forget", "is_ours", "remove", "store"]

PURPOSE: Final = "payload"
CACHE_BYTES: Final = 8 << 20  # two thousand payloads of the largest size: a worker sends few messages at once


def store(rt: Runtime, message_id: UUID, made_at: datetime, payload: bytes) -> tuple[str, int]:
    """Seal a payload and put it away; its reference and the version of the key. Raises PayloadStoreError.

    It is on disk, or with the object store, when this returns: the message's row comes after it.
    """
    sealed: Sealed = keychain(rt.settings).ring.seal(PURPOSE, message_id.bytes, payload)
    ref = f"{made_at:%Y/%m/%d}/{message_id}"
    objects.put(rt.settings, ref, sealed.blob)
    return ref, sealed.version


def fetch(rt: Runtime, message_id: UUID, ref: str, key_version: int) -> bytes:
    """The payload of a message, from this process's memory where it was fetched before.

    Raises PayloadMissingError, PayloadStoreError, UnknownSealKeyError and TamperedSealError.
    """
    where = (os.getpid(), rt.settings.payload_store, ref)
    found = _cache.get(where)
    if found is None:
        blob = objects.get(rt.settings, ref)
        found = keychain(rt.settings).ring.open(PURPOSE, message_id.bytes, key_version, blob)
        _cache.put(where, found)
    return found


def forget(rt: Runtime, ref: str) -> None:
    """Remove an object that no row names; one that is not there, or a store that refuses, is harmless."""
    with suppress(PayloadStoreError):
        objects.remove(rt.settings, [ref])


def remove(rt: Runtime, refs: Sequence[str]) -> None:
    """Remove the objects of messages that are over; all are gone when this returns, whoever removed them.

    Raises PayloadStoreError. Other processes may remember a payload for longer; what is over is sent by nobody, since
    everyone who sends looks at the expiry first.
    """
    objects.remove(rt.settings, refs)


def is_ours(rt: Runtime, message_id: UUID, ref: str) -> bool:
    """Whether an object opens as the payload of this message under a key of ours; else it is somebody else's.

    Raises PayloadMissingError and PayloadStoreError.
    """
    ring = keychain(rt.settings).ring
    blob = objects.get(rt.settings, ref)
    for version in ring.versions:
        with suppress(SealError):
            ring.open(PURPOSE, message_id.bytes, version, blob)
            return True
    return False


class _Cache:
    """The payloads used last, bounded by their bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._held: OrderedDict[tuple[int, str | None, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, where: tuple[int, str | None, str]) -> bytes | None:
        with self._lock:
            found = self._held.get(where)
            if found is not None:
                self._held.move_to_end(where)
            return found

    def put(self, where: tuple[int, str | None, str], payload: bytes) -> None:
        with self._lock:
            before = self._held.pop(where, b"")
            self._held[where] = payload
            self._size += len(payload) - len(before)
            while self._size > self._limit:
                _, oldest = self._held.popitem(last=False)
                self._size -= len(oldest)


_cache: Final = _Cache(CACHE_BYTES)
