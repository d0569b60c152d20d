"""Payloads lie sealed in an object store, one object for each message, under the day that it was made.

S3, GCS, Azure or a folder through obstore. What is sealed is bound to its message's id, so that an object in the place
of another does not open.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.request import url2pathname
from uuid import UUID

from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from pushops.delivery.errors import PayloadMissingError, PayloadStoreError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.sealing import Sealed

__all__ = ["PayloadMissingError", "PayloadStoreError", "fetch", "forget", "store"]

PURPOSE: Final = "payload"
CACHE_BYTES: Final = 8 << 20  # two thousand payloads of the largest size: a worker sends few messages at once
PRIVATE: Final = 0o700
_FILE: Final = "file://"


def store(rt: Runtime, message_id: UUID, made_at: datetime, payload: bytes) -> tuple[str, int]:
    """Seal a payload and put it away; its reference and the version of the key. Raises PayloadStoreError.

    It is on disk, or with the object store, when this returns: the message's row comes after it.
    """
    sealed: Sealed = keychain(rt.settings).ring.seal(PURPOSE, message_id.bytes, payload)
    ref = f"{made_at:%Y/%m/%d}/{message_id}"
    objects = _objects(rt.settings)
    with _told("put"):
        objects.put(ref, sealed.blob)
    if isinstance(objects, LocalStore):
        _flush(_folder(rt.settings) / ref)
    return ref, sealed.version


def fetch(rt: Runtime, message_id: UUID, ref: str, key_version: int) -> bytes:
    """The payload of a message, from this process's memory where it was fetched before.

    Raises PayloadMissingError, PayloadStoreError, UnknownSealKeyError and TamperedSealError.
    """
    where = (os.getpid(), rt.settings.payload_store, ref)
    found = _cache.get(where)
    if found is None:
        with _told("get"):
            blob = bytes(_objects(rt.settings).get(ref).bytes())
        found = keychain(rt.settings).ring.open(PURPOSE, message_id.bytes, key_version, blob)
        _cache.put(where, found)
    return found


def forget(rt: Runtime, ref: str) -> None:
    """Remove an object that no row names; one that is not there, or a store that refuses, is harmless."""
    with suppress(PayloadMissingError, PayloadStoreError), _told("delete"):
        _objects(rt.settings).delete(ref)


@contextmanager
def _told(verb: str) -> Iterator[None]:
    """The store's errors as ours: their texts hold paths, URLs and sometimes headers."""
    try:
        yield
    except FileNotFoundError:
        raise PayloadMissingError("expected a payload in the payload store, found none") from None
    except (BaseError, OSError) as error:
        raise PayloadStoreError(f"expected the payload store to {verb} an object, got {type(error).__name__}") from None


def _objects(settings: Settings) -> ObjectStore:
    """The store of this process: its threads do not come through a fork."""
    return _open(os.getpid(), settings.payload_store)


@lru_cache(maxsize=8)
def _open(_pid: int, url: str | None) -> ObjectStore:
    with _told("open"):
        if url is None or url.startswith(_FILE):
            folder = _local(url)
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            return LocalStore(folder)
        return from_url(url)


def _folder(settings: Settings) -> Path:
    return _local(settings.payload_store)


def _local(url: str | None) -> Path:
    """The folder that the URL names, or that of this user's state."""
    if url is not None:
        return Path(url2pathname(url.removeprefix(_FILE)))
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "pushops" / "payloads"


def _flush(path: Path) -> None:
    """What a message names outlives a power cut, as its row does."""
    for each in (path, path.parent):
        number = os.open(each, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


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
