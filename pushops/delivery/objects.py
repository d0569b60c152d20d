"""The object store that payloads lie in: S3, GCS, Azure or a folder, through obstore."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.request import url2pathname

from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from pushops.delivery.errors import PayloadMissingError, PayloadStoreError
from pushops.disk import flush, state_folder
from pushops.settings import Settings

PRIVATE: Final = 0o700
PAGE: Final = 1_000  # names in one answer of S3
RETRIES: Final = 2  # whoever needs the object has a clock of its own, and comes back
# There once anything was put: a bucket or a folder without it is another one, or one that is not mounted.
MARK: Final = ".pushops"
_FILE: Final = "file://"
_PARTS: Final = (re.compile(r"\d{4}"), re.compile(r"\d{2}"), re.compile(r"\d{2}"))  # of the day that begins a name


def put(settings: Settings, ref: str, blob: bytes) -> None:
    """It is on disk, or with the object store, when this returns. Raises PayloadStoreError."""
    store = (os.getpid(), settings.payload_store)
    if store not in _marked:
        _put(settings, MARK, b"")
        _marked.add(store)
    _put(settings, ref, blob)


def get(settings: Settings, ref: str) -> bytes:
    """Raises PayloadMissingError and PayloadStoreError."""
    with told("get"):
        return bytes(opened(settings).get(ref).bytes())


def remove(settings: Settings, refs: Sequence[str]) -> None:
    """All of them are gone when this returns; those that were not there any more are no fault.

    Raises PayloadStoreError, also where the store is not the one that our objects were put into: then some may be gone.
    """
    objects = opened(settings)
    try:
        with told("delete"):
            objects.delete(list(refs))
    except PayloadMissingError:
        _remove_each(objects, refs)


def pages(settings: Settings, after: str = "") -> Iterator[list[str]]:
    """The names of all objects under a day, in order, a page at a time; only those ``after`` a name, where one is."""
    page: list[str] = []
    for day in _days(settings, after[:10]):
        for ref in _names(settings, day, after):
            page.append(ref)
            if len(page) == PAGE:
                yield page
                page = []
    if page:
        yield page


@contextmanager
def told(verb: str) -> Iterator[None]:
    """The store's errors as ours: their texts hold paths, URLs and sometimes headers."""
    try:
        yield
    except FileNotFoundError:
        raise PayloadMissingError("expected a payload in the payload store, found none") from None
    except (BaseError, OSError) as error:
        raise PayloadStoreError(f"expected the payload store to {verb} an object, got {type(error).__name__}") from None


def opened(settings: Settings) -> ObjectStore:
    """The store of this process: its threads do not come through a fork."""
    read, connect = settings.read_timeout.total_seconds(), settings.connect_timeout.total_seconds()
    return _open(os.getpid(), settings.payload_store, f"{read}s", f"{connect}s")


def folder(url: str | None) -> Path:
    """The folder that the URL names, or that of this user's state."""
    if url is not None:
        return Path(url2pathname(url.removeprefix(_FILE)))
    return state_folder("payloads")


@lru_cache(maxsize=8)
def _open(_pid: int, url: str | None, read: str, connect: str) -> ObjectStore:
    with told("open"):
        if url is None or url.startswith(_FILE):
            place = folder(url)
            place.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            return LocalStore(place, automatic_cleanup=True)  # days that are empty go
        return from_url(
            url,
            client_options={"timeout": read, "connect_timeout": connect},
            retry_config={"max_retries": RETRIES},
        )


def _put(settings: Settings, ref: str, blob: bytes) -> None:
    objects = opened(settings)
    with told("put"):
        objects.put(ref, blob)
    if isinstance(objects, LocalStore):
        path = folder(settings.payload_store) / ref
        flush(path)
        flush(path.parent)


def _remove_each(objects: ObjectStore, refs: Sequence[str]) -> None:
    """One by one, since of a bulk that misses one nobody says what became of the others."""
    try:
        with told("look for"):
            objects.head(MARK)
    except PayloadMissingError:
        raise PayloadStoreError("expected the payload store that payloads were put into, got another one") from None
    for ref in refs:
        try:
            with told("delete"):
                objects.delete(ref)
        except PayloadMissingError:
            continue


def _days(settings: Settings, since: str) -> list[str]:
    """The days that something may lie under, in order."""
    found = [""]
    for part in _PARTS:
        found = [name for prefix in found for name in _below(settings, prefix) if part.fullmatch(name.split("/")[-1])]
    return sorted(day for day in found if day >= since)


def _below(settings: Settings, prefix: str) -> Sequence[str]:
    with told("list"):
        return opened(settings).list_with_delimiter(prefix or None)["common_prefixes"]


def _names(settings: Settings, day: str, after: str) -> Iterator[str]:
    """Object stores list in order; a folder does not."""
    objects = opened(settings)
    if isinstance(objects, LocalStore):
        yield from sorted(name for name in _listed(objects, day, None) if name > after)
    else:
        yield from _listed(objects, day, after if after.startswith(day) else None)


def _listed(objects: ObjectStore, day: str, offset: str | None) -> Iterator[str]:
    with told("list"):
        for chunk in objects.list(day, offset=offset, chunk_size=PAGE):
            yield from (each["path"] for each in chunk)


_marked: Final[set[tuple[int, str | None]]] = set()
