"""Subscriptions as JSON lines or CSV: without endpoints and keys, or, where asked for, with them, for an import."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import IO, Any, Final
from uuid import UUID

from pushops.importing.store import dumping as store
from pushops.importing.store.dumping import OpenRow
from pushops.runtime import Runtime
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import AUTH, Keychain, keychain
from pushops.subscriptions.sealing import SealError
from pushops.subscriptions.store import auditing, reading
from pushops.subscriptions.store.reading import Filter

PAGE: Final = 2_000
_FIRST: Final = UUID(int=0)
_NOW: Final = Filter()


def dump(
    rt: Runtime,
    sink: IO[str],
    *,
    how: str = "jsonl",
    which: Filter = _NOW,
    with_credentials: bool = False,
    told: Callable[[int], None] = lambda _rows: None,
    actor: str,
) -> tuple[int, int]:
    """Write all rows that the filter means; how many, and how many were left out since their auth does not open.

    With credentials only live ones, and the audit says first who took them.
    """
    write = _csv(sink) if how == "csv" else _lines(sink)
    if with_credentials:
        with rt.db.transaction() as tx:
            detail = {name: value for name, value in vars(which).items() if value is not None and name != "user"}
            auditing.note(tx, "dump", actor, {"what": "credentials", **detail}, user=which.user)
    rows = left_out = 0
    for page in _opened(rt, which) if with_credentials else _closed(rt, which):
        for row in page:
            if row is not None:
                write(row)
        rows, left_out = rows + sum(row is not None for row in page), left_out + page.count(None)
        told(rows)
    return rows, left_out


def _closed(rt: Runtime, which: Filter) -> Iterator[list[Mapping[str, Any] | None]]:
    """All but endpoint and keys, tombstones included."""
    after = _FIRST
    while True:
        with rt.db.transaction() as tx:
            page = reading.page(tx, which, after, PAGE)
        if not page:
            return
        after = page[-1].id
        yield [asdict(row) for row in page]


def _opened(rt: Runtime, which: Filter) -> Iterator[list[Mapping[str, Any] | None]]:
    chain, after = keychain(rt.settings), _FIRST
    while True:
        with rt.db.transaction() as tx:
            page = store.page(tx, which, after, PAGE)
        if not page:
            return
        after = page[-1].id
        yield [_open(chain, row) for row in page]


def _open(chain: Keychain, row: OpenRow) -> Mapping[str, Any] | None:
    """The browser's object with what is known beside it; None where its key is not held."""
    try:
        auth = chain.ring.open(AUTH, row.endpoint_hash, row.auth_key_version, row.auth_sealed)
    except SealError:
        return None
    key = chain.vapid.get(row.vapid_key_id or "")
    return {
        "endpoint": row.endpoint,
        "expirationTime": row.expiration_time and int(row.expiration_time.timestamp() * 1000),
        "keys": {"p256dh": row.p256dh, "auth": base64url.encode(auth)},
        "contentEncoding": row.content_encoding,
        "applicationServerKey": key and base64url.encode(key.public),
        "user": row.user_id,
        "tags": row.tags,
        "origin": row.origin,
        "user_agent": row.user_agent,
        "locale": row.locale,
        "created_at": row.created_at,
        "last_seen_at": row.last_seen_at,
    }


Write = Callable[[Mapping[str, Any]], None]


def _lines(sink: IO[str]) -> Write:
    def write(row: Mapping[str, Any]) -> None:
        sink.write(json.dumps(row, default=_plain, ensure_ascii=False) + "\n")

    return write


def _csv(sink: IO[str]) -> Write:
    writer = csv.writer(sink)
    header: list[str] = []

    def write(row: Mapping[str, Any]) -> None:
        flat = _flat(row)
        if not header:
            header.extend(flat)
            writer.writerow(header)
        writer.writerow(["" if flat[name] is None else flat[name] for name in header])

    return write


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns: an inner member as ``keys.auth``, a list as JSON."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            found[name] = json.dumps(value) if isinstance(value, list) else _plain(value)
    return found


def _plain(value: object) -> Any:  # noqa: ANN401  (what JSON has a form of)
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)
