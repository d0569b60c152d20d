"""Lines of COPY's text format, in the order of ``store.staging.COLUMNS``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pushops.importing.shapes import Found
from pushops.subscriptions.attributes import Attributes
from pushops.subscriptions.sealing import Sealed
from pushops.subscriptions.store.registration import Registration

NULL: Final = r"\N"


def careful(number: int, row: Registration, attributes: Attributes, found: Found) -> str:
    """A line of what the door let in."""
    sealed = Sealed(row.auth_key_version, row.auth_sealed)
    head = begin(number, row.endpoint_hash, row.endpoint, row.push_service, row.p256dh, sealed)
    tail = (
        text(row.vapid_key_id),
        time(row.expiration_time),
        text(attributes.user_id),
        NULL if attributes.tags is None else array(attributes.tags),
        text(attributes.user_agent),
        text(attributes.locale),
        text(attributes.origin),
        time(found.candidate.created_at),
        time(found.recency),
    )
    return "\t".join((head, row.content_encoding, *tail)) + "\n"


def begin(number: int, digest: bytes, endpoint: str, service: str, p256dh: str, sealed: Sealed) -> str:
    """The columns up to the key's version. An endpoint is visible ASCII without a backslash."""
    key = f"{p256dh}\t\\\\x{sealed.blob.hex()}\t{sealed.version}"
    return f"{number}\t\\\\x{digest.hex()}\t{endpoint}\t{service}\t{key}"


def text(value: str | None) -> str:
    if value is None:
        return NULL
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def array(values: Sequence[str]) -> str:
    return text("{" + ",".join(map(_element, values)) + "}")


def time(value: datetime | None) -> str:
    """In UTC: Python knows zones that PostgreSQL refuses, 16 hours away or half a second."""
    return NULL if value is None else value.astimezone(UTC).isoformat()


def _element(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
