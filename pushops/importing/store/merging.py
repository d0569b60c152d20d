"""From staging into the table: pages in hash order, one winner for each endpoint, what is equal left alone."""

from dataclasses import dataclass, field
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.store.registration import Ownership, Registered, parameters, upserting

# The page's rows, one for each endpoint: the latest by the times that its rows name, then one with a user, then the
# last in the file.
_WINNERS: Final[LiteralString] = """(
SELECT DISTINCT ON (g.endpoint_hash) g.*
  FROM {schema}.import_staging AS g
 WHERE g.import_id = %(import)s::uuid AND g.endpoint_hash > %(after)s::bytea AND g.endpoint_hash <= %(upto)s::bytea
 ORDER BY g.endpoint_hash, g.recency DESC NULLS LAST, g.user_id IS NULL, g.ordinal DESC)"""

# Where the next page ends; all rows of its last endpoint belong to it.
PAGE: Final[LiteralString] = """
SELECT max(endpoint_hash) AS upto FROM (
  SELECT endpoint_hash FROM {schema}.import_staging
   WHERE import_id = %(import)s::uuid AND endpoint_hash > %(after)s::bytea
   ORDER BY endpoint_hash LIMIT %(rows)s::integer) AS page"""

SIZE: Final[LiteralString] = """
SELECT count(*) AS rows, count(DISTINCT endpoint_hash) AS endpoints FROM {schema}.import_staging
 WHERE import_id = %(import)s::uuid AND endpoint_hash > %(after)s::bytea AND endpoint_hash <= %(upto)s::bytea"""

# Live rows that the page would not change but for their auth, which only the key ring can compare. A file is no sign
# of life: what is quiet or blocked and the same stays what it is.
ALIKE: Final[LiteralString] = (
    """
SELECT s.endpoint_hash, s.auth_sealed, s.auth_key_version, r.auth_sealed AS given, r.auth_key_version AS given_version
  FROM """
    + _WINNERS
    + """ AS r JOIN {schema}.push_subscription AS s USING (endpoint_hash)
 WHERE s.deleted_at IS NULL
   AND (s.p256dh, s.push_service, s.content_encoding) = (r.p256dh, r.push_service, r.content_encoding)
   AND s.expiration_time IS NOT DISTINCT FROM r.expiration_time
   AND CASE WHEN r.vapid_key_id IS NULL THEN s.vapid_key_id IS NOT NULL OR %(current_key)s::text IS NULL
            ELSE s.vapid_key_id IS NOT DISTINCT FROM r.vapid_key_id AND NOT s.vapid_key_assumed END
   AND (r.user_id IS NULL OR r.user_id IS NOT DISTINCT FROM s.user_id)
   AND (r.tags IS NULL OR r.tags = s.tags)
   AND (r.user_agent IS NULL OR r.user_agent IS NOT DISTINCT FROM s.user_agent)
   AND (r.locale IS NULL OR r.locale IS NOT DISTINCT FROM s.locale)
   AND (r.origin IS NULL OR r.origin IS NOT DISTINCT FROM s.origin)
   AND (r.created_at IS NULL OR r.created_at >= s.created_at)"""
)

WRITE: Final[LiteralString] = upserting(
    """(
SELECT w.endpoint_hash, w.endpoint, w.push_service, w.p256dh, w.auth_sealed, w.auth_key_version, w.content_encoding,
       w.vapid_key_id, w.expiration_time, w.user_id, coalesce(w.tags, '{}') AS tags, w.user_agent, w.locale, w.origin,
       w.created_at
  FROM """
    + _WINNERS
    + """ AS w
 WHERE w.endpoint_hash <> ALL(%(same)s::bytea[])) AS r""",
    """(
              SELECT r.tags IS NULL FROM """
    + _WINNERS
    + """ AS r WHERE r.endpoint_hash = s.endpoint_hash)""",
)

# What a dry run finds: how many endpoints of the page are known.
KNOWN: Final[LiteralString] = (
    """
SELECT count(*) FROM """
    + _WINNERS
    + """ AS r JOIN {schema}.push_subscription AS s USING (endpoint_hash)"""
)

# A person left; that another store still lists their subscription is no new consent.
LEFT: Final[LiteralString] = (
    """
SELECT r.ordinal, r.endpoint_hash
  FROM """
    + _WINNERS
    + """ AS r JOIN {schema}.push_subscription AS s USING (endpoint_hash)
 WHERE NOT %(revive)s::boolean AND s.end_reason = %(left)s::text
 ORDER BY r.ordinal"""
)


@dataclass(frozen=True)
class Span:
    """A page of an import: endpoints whose hash is above ``after`` and at most ``upto``."""

    import_id: UUID
    after: bytes = field(repr=False)
    upto: bytes = field(repr=False)

    @property
    def params(self) -> dict[str, object]:
        return {"import": self.import_id, "after": self.after, "upto": self.upto}


@dataclass(frozen=True)
class Size:
    rows: int
    endpoints: int


@dataclass(frozen=True)
class Alike:
    """Both sealed values of a row that is the same otherwise."""

    endpoint_hash: bytes
    auth_sealed: bytes = field(repr=False)
    auth_key_version: int
    given: bytes = field(repr=False)
    given_version: int


@dataclass(frozen=True)
class Gone:
    ordinal: int
    endpoint_hash: bytes


def page(tx: Tx, import_id: UUID, after: bytes, rows: int) -> Span | None:
    upto = tx.scalar(PAGE, {"import": import_id, "after": after, "rows": rows})
    return None if upto is None else Span(import_id, after, upto)


def size(tx: Tx, span: Span) -> Size:
    return tx.one(SIZE, span.params, Size)


def alike(tx: Tx, span: Span, current_key: str | None) -> list[Alike]:
    return tx.rows(ALIKE, {**span.params, "current_key": current_key}, Alike)


def write(tx: Tx, span: Span, same: list[bytes], ownership: Ownership, current_key: str | None) -> list[Registered]:
    """Store the page but for what is the ``same``, and return what was stored."""
    return tx.rows(WRITE, {**span.params, "same": same, **parameters(ownership, current_key)}, Registered)


def known(tx: Tx, span: Span) -> int:
    return int(tx.scalar(KNOWN, span.params))


def left(tx: Tx, span: Span, ownership: Ownership) -> list[Gone]:
    words = parameters(ownership, None)
    return tx.rows(LEFT, {**span.params, "revive": words["revive"], "left": words["left"]}, Gone)
