"""``send``: pre-flight, then the payload into its store, then one row; who is few is fanned out at once."""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Unpack
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import fanning, partitions, payloads
from pushops.delivery.content import Payload, compose
from pushops.delivery.errors import ConflictError, Finding, MessageRefused
from pushops.delivery.message import MessageState, NewMessage
from pushops.delivery.preflight import Checked, Draft, Request, check
from pushops.delivery.store import messages as store
from pushops.delivery.store.messages import FirstRow
from pushops.runtime import Runtime
from pushops.subscriptions.attributes import read_name
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.rejection import RejectionError
from pushops.subscriptions.work import Conn, in_transaction

_REQUEST: Final = b"pushops.request.v1\x00"


@dataclass(frozen=True)
class Sent:
    """``created`` is False where the idempotency key had made the message before. ``state`` is ``sending`` once all
    recipients are in the ledger, ``waiting`` while they are still to be found.
    """

    message_id: UUID
    created: bool
    state: MessageState
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Preview:
    """What a dry run found: ``recipients`` by push service, as of now."""

    recipients: Mapping[str, int]
    payload_bytes: int
    faults: tuple[Finding, ...]
    warnings: tuple[Finding, ...]


def send(
    rt: Runtime,
    payload: Payload,
    *,
    actor: str = "application",
    conn: Conn | None = None,
    **request: Unpack[Request],
) -> Sent:
    """Make a message for all live subscriptions that every named condition holds for; ``tags`` means any of them.

    ``ttl`` in whole seconds or as a timedelta, from the first dispatch on. A mapping becomes JSON that carries the
    message's id (``stamp=False``: as it is). The same ``idempotency_key`` with the same request returns the first
    message; with another it raises ConflictError. MessageRefused lists every fault, before anything is written;
    PayloadStoreError says that nothing was.
    """
    draft = Draft(payload=payload, **request)
    draft = replace(draft, tags=_once(draft.tags), ids=_once(draft.ids))
    message_id, now, first = in_transaction(rt, conn, lambda tx: _look(tx, draft.idempotency_key))
    checked = look(rt, draft, now)
    if checked.faults:
        rt.events.emit("message.refused", reasons=[fault.reason for fault in checked.faults])
        raise MessageRefused(checked.faults)
    digest = _request_hash(rt, draft, checked.message)
    if first is not None:
        return _again(first, digest, checked)
    return _create(rt, draft, checked, message_id, now, digest, actor, conn)


def preview(rt: Runtime, draft: Draft) -> Preview:
    """The pre-flight's findings and how many would be sent to now; nothing is written."""
    with rt.db.transaction() as tx:
        now = tx.now
    checked = look(rt, draft, now)
    recipients = {} if checked.faults else fanning.count(rt, checked.message.audience)
    return Preview(recipients, checked.payload_bytes, tuple(checked.faults), tuple(checked.warnings))


def look(rt: Runtime, draft: Draft, now: datetime) -> Checked:
    return check(draft, rt.settings, keychain(rt.settings).vapid, now)


def _once(values: object) -> object:
    """An iterator can be read only once, and is looked at twice."""
    return values if isinstance(values, Sequence) or not isinstance(values, Iterable) else [*values]


def _look(tx: Tx, key: object) -> tuple[UUID, datetime, FirstRow | None]:
    """The id that the message will have, the time, and what the key made before."""
    try:
        name = read_name("idempotency_key", key)
    except RejectionError:  # the pre-flight says so
        name = None
    return store.new_id(tx), tx.now, None if name is None else store.first(tx, name)


def _create(
    rt: Runtime,
    draft: Draft,
    checked: Checked,
    message_id: UUID,
    now: datetime,
    request: bytes,
    actor: str,
    conn: Conn | None,
) -> Sent:
    body = compose(draft.payload, message_id, stamp=draft.stamp)
    ref, version = payloads.store(rt, message_id, now, body)
    values = _row(rt, checked.message, actor) | {
        "message_id": message_id,
        "request_hash": request,
        "payload_ref": ref,
        "payload_key_version": version,
        "payload_bytes": len(body),
    }
    limit = rt.settings.sweep_batch_rows
    state = partitions.with_partition(
        rt, message_id, lambda: in_transaction(rt, conn, lambda tx: _insert(tx, checked.message, values, limit))
    )
    if isinstance(state, FirstRow):
        payloads.forget(rt, ref)
        return _again(state, request, checked)
    urgency = checked.message.urgency
    rt.events.emit("message.sent", message=str(message_id), state=str(state), bytes=len(body), urgency=str(urgency))
    return Sent(message_id, created=True, state=state, warnings=tuple(checked.warnings))


def _insert(tx: Tx, message: NewMessage, values: dict[str, Any], limit: int) -> MessageState | FirstRow:
    if not store.insert(tx, values):
        first = store.first(tx, str(message.idempotency_key))
        if first is None:
            raise LookupError("expected the message that holds the idempotency key")
        return first
    if message.audience.small and message.not_before is None:
        return fanning.at_once(tx, values["message_id"], limit)
    return MessageState.WAITING


def _row(rt: Runtime, message: NewMessage, actor: str) -> dict[str, Any]:
    of = message.audience
    return {
        "idempotency_key": message.idempotency_key,
        "campaign": message.campaign,
        "actor": actor,
        "rendered": rt.settings.renderer is not None,
        "ttl": message.ttl,
        "urgency": str(message.urgency),
        "topic": message.topic,
        "not_before": message.not_before,
        "replayable": message.replayable,
        "on_ambiguous": str(message.on_ambiguous),
        "on_in_doubt": str(message.on_in_doubt),
        "user": of.user,
        "tags": None if of.tags is None else list(of.tags),
        "ids": None if of.ids is None else list(of.ids),
        "service": of.service,
        "origin": of.origin,
        "locale": of.locale,
        "key": of.key,
    }


def _again(first: FirstRow, request: bytes, checked: Checked) -> Sent:
    if not hmac.compare_digest(first.request_hash, request):
        raise ConflictError(
            first.message_id,
            f"expected the request that made message {first.message_id} at {first.created_at:%Y-%m-%d %H:%M:%S}Z with"
            " this idempotency key, got another request",
        )
    return Sent(first.message_id, created=False, state=MessageState(first.state), warnings=tuple(checked.warnings))


def _request_hash(rt: Runtime, draft: Draft, message: NewMessage) -> bytes:
    """What tells one request from another. Keyed, since a payload may be as short as a code that one can guess."""
    body = compose(draft.payload, UUID(int=0), stamp=draft.stamp)
    words = json.dumps(_words(message), sort_keys=True, default=str).encode()
    return hmac.digest(keychain(rt.settings).log_key, _REQUEST + hashlib.sha256(body).digest() + words, "sha256")


def _words(message: NewMessage) -> dict[str, Any]:
    names = [name for name in message.__slots__ if name != "audience"]
    of = message.audience
    return {name: getattr(message, name) for name in names} | {name: getattr(of, name) for name in of.__slots__}
