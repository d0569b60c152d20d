"""Saving what a browser registered: one, many, or one in the place of another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from pushops.db import Tx
from pushops.runtime import Runtime
from pushops.subscriptions.attributes import Attributes, read_attributes
from pushops.subscriptions.errors import refusal
from pushops.subscriptions.identity import endpoint_host
from pushops.subscriptions.intake import NewSubscription, parse
from pushops.subscriptions.keychain import AUTH, Keychain, keychain
from pushops.subscriptions.leaving import announce_ended, close_ended
from pushops.subscriptions.lifecycle import Event, State
from pushops.subscriptions.rejection import Advice, Reason, Rejected, RejectionError, rejection
from pushops.subscriptions.store import auditing, ending, periods, registration, suppressing
from pushops.subscriptions.store.ending import EndedRow
from pushops.subscriptions.store.registration import Ownership, Registered, Registration
from pushops.subscriptions.suppressing import ERASED, SuppressedError, check, refuse_suppressed
from pushops.subscriptions.work import Conn, in_transaction

CHUNK: Final = 500  # rows of an import per transaction: tens of milliseconds, so that visitors never wait on it


# A person left; that another store still lists their subscription is no new consent.
LEFT: Final = Rejected(
    "endpoint", "unsubscribed", "a subscription that nobody ended", "one that its person ended", Advice.UNSUBSCRIBE
)


@dataclass(frozen=True)
class Saved:
    """What a registration came to. ``advice`` is what the client should do with it.

    ``reconnection``: a consent period began, and this endpoint or this user had one that ended lately.
    ``key_assumed``: the client did not say which VAPID key it subscribed with.
    """

    id: UUID
    state: State
    inserted: bool
    advice: Advice
    reconnection: bool
    vapid_key_id: str | None
    key_assumed: bool
    user_id: str | None


@dataclass(frozen=True)
class Candidate:
    """One row of an import: the browser's object and what the other store knew of it.

    Where that knew no user or no tags, a row that is here already keeps its own.
    """

    subscription: object
    user_id: object = None
    origin: object = None
    application_server_key: object = None
    tags: Iterable[object] | None = None
    user_agent: object = None
    locale: object = None
    created_at: datetime | None = None


Outcome: TypeAlias = Saved | Rejected


@dataclass(frozen=True)
class Prepared:
    """A registration that may be written, with what events say of it."""

    row: Registration
    host: str
    expiration_ignored: bool


@dataclass(frozen=True)
class Written:
    """What a registration came to, and whom the owner's limit retired for it."""

    saved: Saved
    retired: Sequence[EndedRow] = ()


def save_subscription(
    rt: Runtime,
    subscription: object,
    *,
    user_id: object = None,
    origin: object = None,
    application_server_key: object = None,
    keep_owner: bool = False,
    opt_in: bool = False,
    tags: Iterable[object] | None = None,
    user_agent: object = None,
    locale: object = None,
    actor: str = "application",
    conn: Conn | None = None,
) -> Saved:
    """Store or refresh what ``PushSubscription.toJSON()`` gave; raises SubscriptionRefused before any I/O.

    A given ``user_id`` takes the endpoint over; without one the row becomes anonymous unless ``keep_owner``.
    An endpoint that was erased is refused as well (answer ``unsubscribe``), unless its person just chose to opt in.
    """
    chain = keychain(rt.settings)
    try:
        attributes = read_attributes(user_id, origin, tags, user_agent, locale)
        prepared = prepare(chain, subscription, application_server_key, attributes)
        ownership = Ownership(keep_owner=keep_owner)
        written = in_transaction(rt, conn, lambda tx: _save(rt, tx, prepared, ownership, actor, opt_in=opt_in))
    except RejectionError as error:
        raise refuse(rt, subscription, error.rejected) from None
    announce(rt, prepared, written)
    return written.saved


def save_many(
    rt: Runtime,
    candidates: Iterable[Candidate],
    *,
    revive: bool = False,
    actor: str = "import",
    conn: Conn | None = None,
) -> Iterator[Outcome]:
    """Store many, as an import does, and yield what became of each, in order. Nothing is raised for content.

    What a person unsubscribed is refused unless ``revive``: another store's copy is no new consent.

    One transaction per 500 rows unless ``conn`` is given. Of one endpoint given twice in a chunk, the later row
    stands for both. Each is written as it is consumed: an iterator that is left early leaves the rest unwritten.
    """
    chain = keychain(rt.settings)
    remaining = iter(candidates)
    while chunk := list(islice(remaining, CHUNK)):
        found = [_prepare_candidate(chain, candidate) for candidate in chunk]
        rows = {each.row.endpoint_hash: each.row for each in found if isinstance(each, Prepared)}
        ownership = Ownership(keep_owner=True, revive=revive)
        saved = _write_chunk(rt, list(rows.values()), ownership, actor, conn)
        yield from (each if isinstance(each, Rejected) else saved.get(each.row.endpoint_hash, LEFT) for each in found)


def check_many(rt: Runtime, candidates: Iterable[Candidate]) -> Iterator[Rejected | None]:
    """What ``save_many`` would refuse, in order, None for the rest, by content only: without the database."""
    chain = keychain(rt.settings)
    for candidate in candidates:
        found = _prepare_candidate(chain, candidate)
        yield found if isinstance(found, Rejected) else None


def prepare(chain: Keychain, subscription: object, application_server_key: object, attributes: Attributes) -> Prepared:
    """Everything that needs no database: checked, sealed and marked with its key; raises RejectionError."""
    new = parse(subscription, chain.rules, application_server_key)
    if isinstance(new, Rejected):
        raise RejectionError(new)
    sealed = chain.ring.seal(AUTH, new.endpoint_hash, new.auth)
    row = Registration(
        endpoint_hash=new.endpoint_hash,
        endpoint=new.endpoint,
        push_service=new.push_service,
        p256dh=new.p256dh,
        auth_sealed=sealed.blob,
        auth_key_version=sealed.version,
        content_encoding=new.content_encoding,
        vapid_key_id=_vapid_key_id(chain, new),
        expiration_time=new.expiration_time,
        user_id=attributes.user_id,
        tags=attributes.tags or (),
        keep_tags=attributes.tags is None,
        user_agent=attributes.user_agent,
        locale=attributes.locale,
        origin=attributes.origin,
    )
    return Prepared(row, new.host, new.expiration_ignored)


def _save(rt: Runtime, tx: Tx, prepared: Prepared, ownership: Ownership, actor: str, *, opt_in: bool) -> Written:
    if opt_in and suppressing.lift(tx, prepared.row.endpoint_hash):
        auditing.note(tx, "suppression_lifted", actor, {"by": "a new opt-in"})
    return write(rt, tx, prepared, ownership, actor)


def write(
    rt: Runtime,
    tx: Tx,
    prepared: Prepared,
    ownership: Ownership,
    actor: str,
    inheritance: periods.Inheritance | None = None,
) -> Written:
    """One prepared registration, its consent period, its owner's limit and its audit, in the open transaction.

    Raises RejectionError for an endpoint that was erased; what was written until then is to be rolled back.
    """
    limit, user = rt.settings.max_live_per_user, prepared.row.user_id
    if limit is not None and user is not None:
        ending.serialize_user(tx, user)
    saved = _write_rows(rt, tx, [prepared.row], ownership, actor, inheritance)[prepared.row.endpoint_hash]
    refuse_suppressed(tx, prepared.row.endpoint_hash)
    if limit is None or user is None:
        return Written(saved)
    retired = ending.end_surplus(tx, user, limit)
    close_ended(tx, retired, Event.RETIRED, "retire", actor)
    return Written(saved, retired)


def refuse(rt: Runtime, subscription: object, rejected: Rejected) -> Exception:
    """Count a refusal and return the error to raise."""
    endpoint = subscription.get("endpoint") if type(subscription) is dict else None
    host = endpoint_host(endpoint) if type(endpoint) is str else "unreadable"
    rt.events.emit("subscription.refused", field=rejected.field, reason=str(rejected.reason), host=host)
    return refusal(rejected)


def announce(rt: Runtime, prepared: Prepared, written: Written) -> None:
    """What was saved and what it retired; to be called after the commit."""
    saved = written.saved
    rt.events.emit(
        "subscription.saved",
        endpoint=keychain(rt.settings).tag(prepared.row.endpoint_hash),
        host=prepared.host,
        service=prepared.row.push_service,
        state=saved.state,
        inserted=saved.inserted,
        advice=saved.advice,
        reconnection=saved.reconnection,
        expiration_ignored=prepared.expiration_ignored,
    )
    announce_ended(rt, written.retired, "retire", Event.RETIRED)


def _prepare_candidate(chain: Keychain, candidate: Candidate) -> Prepared | Rejected:
    try:
        attributes = read_attributes(
            candidate.user_id, candidate.origin, candidate.tags, candidate.user_agent, candidate.locale
        )
        prepared = prepare(chain, candidate.subscription, candidate.application_server_key, attributes)
    except RejectionError as error:
        return error.rejected
    return replace(prepared, row=replace(prepared.row, created_at=candidate.created_at))


def _write_chunk(
    rt: Runtime, rows: Sequence[Registration], ownership: Ownership, actor: str, conn: Conn | None
) -> dict[bytes, Outcome]:
    """What became of each, but for those that a person had left. Once more without those that turn out to be erased."""
    erased: set[bytes] = set()

    def work(tx: Tx) -> dict[bytes, Saved]:
        saved = _write_rows(rt, tx, [row for row in rows if row.endpoint_hash not in erased], ownership, actor)
        check(tx, list(saved))
        return saved

    while True:
        try:
            return {**in_transaction(rt, conn, work), **dict.fromkeys(erased, ERASED)}
        except SuppressedError as error:
            erased |= error.hashes


def _vapid_key_id(chain: Keychain, new: NewSubscription) -> str | None:
    """The id of the key that the client named; None if it named none. Raises RejectionError for one we do not hold."""
    if new.application_server_key is None:
        return None
    key_id = chain.vapid_id_of(new.application_server_key)
    if key_id is None:
        raise rejection("applicationServerKey", Reason.UNKNOWN_VAPID_KEY, "a VAPID key that is held here", "another")
    return key_id


def _write_rows(
    rt: Runtime,
    tx: Tx,
    rows: Sequence[Registration],
    ownership: Ownership,
    actor: str,
    inheritance: periods.Inheritance | None = None,
) -> dict[bytes, Saved]:
    if not rows:
        return {}
    chain = keychain(rt.settings)
    written = registration.upsert(tx, rows, ownership, chain.vapid_id)
    hashes = list(written)
    closed = {found.endpoint_hash for found in periods.close(tx, hashes, "owner_changed")}
    opened = periods.open_missing(tx, hashes, rt.settings.reconnection_window, inheritance)
    saved = {key: _saved(row, chain, reconnection=opened.get(key, False)) for key, row in written.items()}
    details = [(key, row.user_id, _detail(row, owner_changed=key in closed)) for key, row in written.items()]
    auditing.write(tx, "save", actor, details)
    return saved


def _saved(row: Registered, chain: Keychain, *, reconnection: bool) -> Saved:
    return Saved(
        id=row.id,
        state=State(row.state),
        inserted=row.registration_no == 1,
        advice=advice_for(row.send_block, expired=row.expired, served=chain.serves(row.vapid_key_id)),
        reconnection=reconnection,
        vapid_key_id=row.vapid_key_id,
        key_assumed=row.vapid_key_assumed,
        user_id=row.user_id,
    )


def advice_for(send_block: str | None, *, expired: bool, served: bool) -> Advice:
    """A live row's: past its expiration the browser may drop it, and a key mismatch only a new subscription mends.

    So does one whose VAPID key is not ``served`` any more: nothing can be sent to it before its browser comes anew.
    """
    return Advice.RESUBSCRIBE if expired or send_block == "key_mismatch" or not served else Advice.KEEP


def _detail(row: Registered, *, owner_changed: bool) -> dict[str, Any]:
    return {"state": row.state, "registration_no": row.registration_no, "owner_changed": owner_changed}
