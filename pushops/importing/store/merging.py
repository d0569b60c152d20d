"""From staging into the table: pages in hash order, one winner for each endpoint, what is equal left alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.subscriptions.store.registration import Ownership, inserting, parameters, upserting

# The page's rows, one for each endpoint: the latest by the times that its rows name, then one with a user, then the
# last in the file.
_WINNERS: Final[LiteralString] = """(
SELECT DISTINCT ON (g.endpoint_hash) g.*
  FROM {schema}.import_staging AS g
 WHERE g.import_id = %(import)s::uuid AND g.endpoint_hash > %(after)s::bytea AND g.endpoint_hash <= %(upto)s::bytea
 ORDER BY g.endpoint_hash, g.recency DESC NULLS LAST, g.user_id IS NULL, g.ordinal DESC)"""

# Answered by indexes alone, since staging was vacuumed. The least of a range comes from an index; whether there is any,
# the planner may look for in the whole table, and there mostly is none.
SIZE: Final[LiteralString] = """
SELECT coalesce(sum(g.rows), 0)::bigint AS rows, count(*) AS endpoints,
       count(s.endpoint_hash) FILTER (WHERE s.endpoint_hash <> ALL(%(but)s::bytea[])) AS known,
       (SELECT p.endpoint_hash FROM {schema}.subscription_period AS p
         WHERE p.endpoint_hash > %(after)s::bytea AND p.endpoint_hash <= %(upto)s::bytea
         ORDER BY p.endpoint_hash LIMIT 1) IS NOT NULL AS history
  FROM (SELECT endpoint_hash, count(*) AS rows FROM {schema}.import_staging
         WHERE import_id = %(import)s::uuid AND endpoint_hash > %(after)s::bytea AND endpoint_hash <= %(upto)s::bytea
         GROUP BY endpoint_hash) AS g
  LEFT JOIN {schema}.push_subscription AS s USING (endpoint_hash)"""

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

_GIVEN: Final[LiteralString] = (
    """(
SELECT w.endpoint_hash, w.endpoint, w.push_service, w.p256dh, w.auth_sealed, w.auth_key_version, w.content_encoding,
       w.vapid_key_id, w.expiration_time, w.user_id, coalesce(w.tags, '{}') AS tags, w.user_agent, w.locale, w.origin,
       w.created_at
  FROM """
    + _WINNERS
    + """ AS w
 WHERE w.endpoint_hash <> ALL(%(but)s::bytea[])) AS r"""
)
_UPSERT: Final[LiteralString] = upserting(
    _GIVEN,
    """(
              SELECT r.tags IS NULL FROM """
    + _WINNERS
    + """ AS r WHERE r.endpoint_hash = s.endpoint_hash)""",
)
# Endpoints that nobody ever heard of: nothing to compare with, nothing to continue, and one statement for both tables.
# Most imports are of these. Whoever comes between makes it fail, and the page is stored in the other way.
ADD: Final[LiteralString] = (
    "WITH stored AS ("
    + inserting(_GIVEN)
    + """
RETURNING s.endpoint_hash, s.user_id, s.push_service, s.origin, s.created_at), trail AS (
INSERT INTO {schema}.subscription_period (endpoint_hash, user_id, push_service, origin, began_at, reconnection)
SELECT s.endpoint_hash, s.user_id, s.push_service, s.origin, s.created_at,
       CASE WHEN (SELECT max(ended_at) FROM {schema}.subscription_period) >= now() - %(window)s::interval
            THEN EXISTS (
              SELECT 1 FROM {schema}.subscription_period AS p
               WHERE p.user_id = s.user_id AND coalesce(p.ended_at, '-infinity') >= now() - %(window)s::interval
                 AND p.end_reason <> 'rotated')
            ELSE false END
  FROM stored AS s)
SELECT count(*) AS rows, count(*) AS inserted FROM stored"""
)

# What was here before is noted row by row; what is new, by the import as a whole.
WRITE: Final[LiteralString] = (
    "WITH stored AS ("
    + _UPSERT
    + """), noted AS (
INSERT INTO {schema}.audit (verb, actor, endpoint_hash, user_id, detail)
SELECT 'import', %(actor)s::text, endpoint_hash, user_id,
       jsonb_build_object('state', state, 'registration_no', registration_no)
  FROM stored WHERE registration_no > 1)
SELECT count(*) AS rows, count(*) FILTER (WHERE registration_no = 1) AS inserted FROM stored"""
)

# The consent trail of the page, in statements of their own as in subscriptions.store.periods: only a new snapshot
# shows what the last holder of a row's lock wrote.
CLOSE: Final[LiteralString] = """
UPDATE {schema}.subscription_period AS p
   SET ended_at = greatest(now(), p.began_at), end_reason = coalesce(s.end_reason, 'owner_changed')
  FROM (SELECT DISTINCT endpoint_hash FROM {schema}.import_staging
         WHERE import_id = %(import)s::uuid AND endpoint_hash > %(after)s::bytea AND endpoint_hash <= %(upto)s::bytea
       ) AS g
  JOIN {schema}.push_subscription AS s USING (endpoint_hash)
 WHERE p.endpoint_hash = g.endpoint_hash AND p.ended_at IS NULL
   AND (s.deleted_at IS NOT NULL OR p.user_id IS DISTINCT FROM s.user_id)"""

# An endpoint's first period begins when the other store says that it did; one that follows another begins now. What
# makes a reconnection is said in subscriptions.store.periods.
OPEN: Final[LiteralString] = """
INSERT INTO {schema}.subscription_period (endpoint_hash, user_id, push_service, origin, began_at, reconnection)
SELECT s.endpoint_hash, s.user_id, s.push_service, s.origin,
       CASE WHEN h.last_end IS NULL THEN s.created_at ELSE greatest(now(), h.last_end) END,
       coalesce(h.recent, false) OR EXISTS (
         SELECT 1 FROM {schema}.subscription_period AS p
          WHERE p.user_id = s.user_id AND coalesce(p.ended_at, '-infinity') >= now() - %(window)s::interval
            AND p.end_reason <> 'rotated')
  FROM (SELECT DISTINCT endpoint_hash FROM {schema}.import_staging
         WHERE import_id = %(import)s::uuid AND endpoint_hash > %(after)s::bytea AND endpoint_hash <= %(upto)s::bytea
       ) AS g
  JOIN {schema}.push_subscription AS s USING (endpoint_hash)
  LEFT JOIN LATERAL (
         SELECT max(coalesce(p.ended_at, 'infinity')) AS last_end,
                bool_or(coalesce(p.ended_at, '-infinity') >= now() - %(window)s::interval
                        AND (s.user_id IS NULL OR p.end_reason NOT IN ('owner_changed', 'detached'))) AS recent
           FROM {schema}.subscription_period AS p WHERE p.endpoint_hash = s.endpoint_hash) AS h ON true
 WHERE s.deleted_at IS NULL AND h.last_end IS DISTINCT FROM 'infinity'"""

# A person left; that another store still lists their subscription is no new consent.
LEFT: Final[LiteralString] = (
    """
SELECT r.ordinal, r.endpoint_hash
  FROM """
    + _WINNERS
    + """ AS r JOIN {schema}.push_subscription AS s USING (endpoint_hash)
 WHERE NOT %(revive)s::boolean AND s.end_reason = %(left)s::text AND r.endpoint_hash <> ALL(%(but)s::bytea[])
 ORDER BY r.ordinal"""
)

# Erased: nothing is stored for them until their client or their person says otherwise.
ERASED: Final[LiteralString] = """
SELECT DISTINCT ON (g.endpoint_hash) g.ordinal, g.endpoint_hash
  FROM {schema}.import_staging AS g JOIN {schema}.suppression AS x USING (endpoint_hash)
 WHERE g.import_id = %(import)s::uuid AND g.endpoint_hash > %(after)s::bytea AND g.endpoint_hash <= %(upto)s::bytea
 ORDER BY g.endpoint_hash, g.recency DESC NULLS LAST, g.user_id IS NULL, g.ordinal DESC"""


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
    """Of a page: ``rows`` of ``endpoints`` different ones, of which so many are ``known`` here and not left out.

    ``history``: there are consent periods of endpoints in its range.
    """

    rows: int
    endpoints: int
    known: int
    history: bool

    @property
    def new(self) -> bool:
        """Whether nobody ever heard of any of them."""
        return not self.known and not self.history


@dataclass(frozen=True)
class Written:
    """``rows`` were stored; the ``inserted`` of them are new."""

    rows: int
    inserted: int


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
    """A winner that is refused; ``ordinal`` is its line."""

    ordinal: int
    endpoint_hash: bytes


def size(tx: Tx, span: Span, but: Sequence[bytes] = ()) -> Size:
    return tx.one(SIZE, {**span.params, "but": list(but)}, Size)


def alike(tx: Tx, span: Span, current_key: str | None) -> list[Alike]:
    return tx.rows(ALIKE, {**span.params, "current_key": current_key}, Alike)


def write(
    tx: Tx, span: Span, but: Sequence[bytes], ownership: Ownership, current_key: str | None, actor: str
) -> Written:
    """Store and note the page ``but`` for some endpoints."""
    words = parameters(ownership, current_key)
    return tx.one(WRITE, {**span.params, "but": list(but), "actor": actor, **words}, Written)


def add(tx: Tx, span: Span, current_key: str | None, window: timedelta) -> Written:
    """Store a page of which nothing is known, its consent periods too; raises DataError where something is by now."""
    words = {"but": [], "window": window, **parameters(Ownership(), current_key)}
    return tx.one(ADD, {**span.params, **words}, Written)


def close_periods(tx: Tx, span: Span) -> None:
    """End those of former owners."""
    tx.run(CLOSE, span.params)


def open_periods(tx: Tx, span: Span, window: timedelta) -> None:
    """Begin one for each live row of the page that has none open."""
    tx.run(OPEN, {**span.params, "window": window})


def left(tx: Tx, span: Span, but: Sequence[bytes], ownership: Ownership) -> list[Gone]:
    words = parameters(ownership, None)
    return tx.rows(LEFT, {**span.params, "but": list(but), "revive": words["revive"], "left": words["left"]}, Gone)


def erased(tx: Tx, span: Span) -> list[Gone]:
    return tx.rows(ERASED, span.params, Gone)
