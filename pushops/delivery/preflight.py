"""Pre-flight: everything that would be refused for every recipient is refused once, before anything is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict, TypeVar
from uuid import UUID

from pushops.delivery.content import UnusablePayloadError, compose
from pushops.delivery.errors import Finding
from pushops.delivery.message import (
    AHEAD_MAX,
    IDS_MAX,
    PAYLOAD_BRIDGED,
    PAYLOAD_MAX,
    TTL_MAX,
    Audience,
    NewMessage,
    OnAmbiguous,
    OnInDoubt,
    Urgency,
    hash_topic,
)
from pushops.delivery.vapid import subject_fault
from pushops.settings import Settings
from pushops.subscriptions.attributes import read_name
from pushops.subscriptions.rejection import RejectionError

Word = TypeVar("Word", bound=StrEnum)

SECOND: Final = timedelta(seconds=1)
_ANY_ID: Final = UUID(int=0)  # as long as every other
_LONG: Final = 10**12  # what is longer is not worth repeating
NAMES: Final = ("user", "service", "origin", "locale", "key")


class Request(TypedDict, total=False):
    """What ``send`` takes beside the payload; what is left out is as in ``Draft``."""

    user: str | None
    tags: Iterable[str] | None
    ids: Iterable[UUID] | None
    service: str | None
    origin: str | None
    locale: str | None
    key: str | None
    everyone: bool
    ttl: timedelta | int | None
    urgency: str
    topic: str | None
    campaign: str | None
    not_before: datetime | None
    replayable: bool
    on_ambiguous: str
    on_in_doubt: str
    idempotency_key: str | None
    stamp: bool | None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A request to send as it came, with nothing believed of it."""

    payload: object = field(repr=False)
    user: object = None
    tags: object = None
    ids: object = None
    service: object = None
    origin: object = None
    locale: object = None
    key: object = None
    everyone: bool = False
    ttl: object = None
    urgency: object = Urgency.NORMAL
    topic: object = None
    campaign: object = None
    not_before: object = None
    replayable: bool = True
    on_ambiguous: object = OnAmbiguous.RETRY
    on_in_doubt: object = OnInDoubt.DISCARD
    idempotency_key: object = None
    stamp: bool | None = None


@dataclass
class Checked:
    """What a look at a draft found; ``message`` is meant only where there is no fault."""

    message: NewMessage
    payload_bytes: int
    faults: list[Finding]
    warnings: list[Finding]


def check(draft: Draft, settings: Settings, vapid_keys: Mapping[str, object], now: datetime) -> Checked:
    """Look at all of it, whatever is found on the way. ``now`` is the database's time."""
    faults: list[Finding] = []
    warnings: list[Finding] = []
    size = _payload(draft, faults, warnings)
    faults += _signing(settings, vapid_keys)
    topic = _name("topic", draft.topic, faults)
    message = NewMessage(
        audience=_audience(draft, faults),
        ttl=_ttl(draft.ttl, settings, faults),
        urgency=_word("urgency", draft.urgency, Urgency.NORMAL, faults),
        topic=None if topic is None else hash_topic(topic),
        campaign=_name("campaign", draft.campaign, faults),
        not_before=_not_before(draft.not_before, now, faults),
        replayable=bool(draft.replayable),
        on_ambiguous=_word("on_ambiguous", draft.on_ambiguous, OnAmbiguous.RETRY, faults),
        on_in_doubt=_word("on_in_doubt", draft.on_in_doubt, OnInDoubt.DISCARD, faults),
        idempotency_key=_name("idempotency_key", draft.idempotency_key, faults),
    )
    return Checked(message, size, faults, warnings)


def _payload(draft: Draft, faults: list[Finding], warnings: list[Finding]) -> int:
    try:
        size = len(compose(draft.payload, _ANY_ID, stamp=draft.stamp))
    except UnusablePayloadError as error:
        faults.append(Finding("payload", "bad_payload", *error.args))
        return 0
    if size > PAYLOAD_MAX:
        faults.append(Finding("payload", "payload_too_large", f"at most {PAYLOAD_MAX:,} bytes", f"{size:,}"))
    elif size > PAYLOAD_BRIDGED:
        expected = f"at most {PAYLOAD_BRIDGED:,} bytes, all that some Android devices of Mozilla's take"
        warnings.append(Finding("payload", "payload_over_bridge", expected, f"{size:,}"))
    return size


def _signing(settings: Settings, vapid_keys: Mapping[str, object]) -> Iterable[Finding]:
    if not vapid_keys:
        yield Finding("PUSHOPS_VAPID_KEYS", "no_vapid_key", "a key to sign with", "none")
    fault = subject_fault(settings.vapid_subject)
    if fault is not None:
        expected, _, got = fault.removeprefix("expected PUSHOPS_VAPID_SUBJECT to be ").partition(", got ")
        yield Finding("PUSHOPS_VAPID_SUBJECT", "bad_vapid_subject", expected, got)


def _ttl(value: object, settings: Settings, faults: list[Finding]) -> int:
    """Whole seconds, cut rather than rounded up."""
    found = settings.default_ttl if value is None else value
    seconds = found // SECOND if isinstance(found, timedelta) else found
    if type(seconds) is int and 1 <= seconds <= TTL_MAX // SECOND:
        return seconds
    got = f"{seconds:,}" if type(seconds) is int and abs(seconds) < _LONG else f"a {type(found).__name__}"
    faults.append(Finding("ttl", "bad_ttl", "1 to 2,419,200 seconds (28 days), as an int or a timedelta", got))
    return 1


def _word(name: str, value: object, default: Word, faults: list[Finding]) -> Word:
    kind = type(default)
    try:
        return kind(str(value) if isinstance(value, str) else "")
    except ValueError:
        got = repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"
        faults.append(Finding(name, f"unknown_{name}", f"one of {', '.join(kind)}", got))
        return default


def _not_before(value: object, now: datetime, faults: list[Finding]) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        got = "one without" if isinstance(value, datetime) else f"a {type(value).__name__}"
        faults.append(Finding("not_before", "bad_not_before", "a time with a time zone", got))
        return None
    if value > now + AHEAD_MAX:
        faults.append(Finding("not_before", "too_far_ahead", f"at most {AHEAD_MAX.days} days ahead", f"{value}"))
    return value


def _name(name: str, value: object, faults: list[Finding]) -> str | None:
    try:
        return read_name(name, value)
    except RejectionError as error:
        found = error.rejected
        faults.append(Finding(name, f"bad_{name}", found.expected, found.got))
        return None


def _audience(draft: Draft, faults: list[Finding]) -> Audience:
    names = {name: _name(name, getattr(draft, name), faults) for name in NAMES}
    tags, ids = _tags(draft.tags, faults), _ids(draft.ids, faults)
    said = type(draft.everyone).__name__
    if said != "bool":  # "false" would be all of them
        faults.append(Finding("everyone", "bad_audience", "True or False", f"a {said}"))
    if draft.everyone and any(getattr(draft, name) is not None for name in ("user", "tags", "ids")):
        faults.append(Finding("everyone", "bad_audience", "everyone, or a user, tags or ids", "both"))
    if not draft.everyone and all(getattr(draft, name) is None for name in (*NAMES, "tags", "ids")):
        expected = "a user, tags, ids, service, origin, locale or key, or everyone=True"
        faults.append(Finding("audience", "no_audience", expected, "none of them"))
    return Audience(**names, tags=tags, ids=ids, everyone=bool(draft.everyone))


def _tags(value: object, faults: list[Finding]) -> tuple[str, ...] | None:
    if value is None:
        return None
    found = [value] if isinstance(value, str) else _listed(value)
    names = [_name("tags", tag, faults) for tag in found]
    if not names or None in found:
        faults.append(Finding("tags", "bad_tags", "at least one tag", "none"))
    return tuple(sorted({name for name in names if name is not None}))


def _ids(value: object, faults: list[Finding]) -> tuple[UUID, ...] | None:
    if value is None:
        return None
    found = [value] if isinstance(value, UUID) else _listed(value)
    ids = {one for one in map(_id, found) if one is not None}
    if not found or len(found) > IDS_MAX or any(_id(one) is None for one in found):
        got = f"{len(found):,}" if len(found) > IDS_MAX or not found else "some that are none"
        faults.append(Finding("ids", "bad_ids", f"1 to {IDS_MAX:,} ids of subscriptions", got))
    return tuple(sorted(ids))


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [None]


def _id(value: object) -> UUID | None:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
