"""What is sealed with which version, and sealing it anew."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.rolling.turn import Turn
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Batch

SEALED_WITH: Final = "scrubbed_at IS NULL AND auth_key_version = %(source)s::integer"

# {batch} is where the engine selects a page's rows. Nothing is locked: whoever changes a row meanwhile wins.
_TAKE: Final[LiteralString] = (
    "SELECT id, endpoint_hash, auth_sealed AS old FROM {{schema}}.push_subscription WHERE {batch}"
)
# Only what is still as it was read: a registration meanwhile has brought secrets of its own. Rows that somebody holds
# are not waited for. One look into the primary key for each row, whatever the planner believes of the arrays.
RESEAL: Final[LiteralString] = """
WITH free AS MATERIALIZED (
  SELECT s.id, g.old, g.new
    FROM unnest(%(ids)s::uuid[], %(old)s::bytea[], %(new)s::bytea[]) AS g (id, old, new)
    JOIN {schema}.push_subscription AS s ON s.id = g.id
   WHERE s.auth_sealed = g.old AND s.auth_key_version = %(source)s::integer AND s.scrubbed_at IS NULL
     FOR NO KEY UPDATE OF s SKIP LOCKED)
UPDATE {schema}.push_subscription AS s SET auth_sealed = free.new, auth_key_version = %(target)s::integer
  FROM free
 WHERE s.id = free.id AND s.auth_sealed = free.old AND s.auth_key_version = %(source)s::integer"""
LEFT: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.push_subscription
 WHERE id = ANY (%(ids)s::uuid[]) AND auth_key_version = %(source)s::integer AND scrubbed_at IS NULL"""

# Whether a key is the right one at all: of a version's rows the oldest and the newest.
SOME: Final[LiteralString] = """
(SELECT id, endpoint_hash, auth_sealed AS old FROM {schema}.push_subscription
  WHERE scrubbed_at IS NULL AND auth_key_version = %(version)s::integer ORDER BY id LIMIT 25)
UNION ALL
(SELECT id, endpoint_hash, auth_sealed FROM {schema}.push_subscription
  WHERE scrubbed_at IS NULL AND auth_key_version = %(version)s::integer ORDER BY id DESC LIMIT 25)"""

# One step of the index for each version: whatever the table's size, it takes no time.
VERSIONS: Final[LiteralString] = """
WITH RECURSIVE found AS (
  SELECT min(auth_key_version) AS version FROM {schema}.push_subscription WHERE scrubbed_at IS NULL
  UNION ALL
  SELECT (SELECT min(s.auth_key_version) FROM {schema}.push_subscription AS s
           WHERE s.scrubbed_at IS NULL AND s.auth_key_version > found.version)
    FROM found WHERE found.version IS NOT NULL)
SELECT version FROM found WHERE version IS NOT NULL"""
ROWS: Final[LiteralString] = """
SELECT count(*) FROM {schema}.push_subscription WHERE scrubbed_at IS NULL AND auth_key_version = %(version)s::integer"""
# Of these, what is set apart stays so until somebody releases it.
_APART: Final[LiteralString] = """EXISTS (SELECT FROM {schema}.sweep_quarantine AS q
   WHERE q.sweep = %(sweep)s::text AND q.released_at IS NULL AND q.identity = s.id::text)"""
APART: Final[LiteralString] = """
SELECT count(*)::int FROM {schema}.push_subscription AS s
 WHERE s.id IN (SELECT q.identity::uuid FROM {schema}.sweep_quarantine AS q
                 WHERE q.sweep = %(sweep)s::text AND q.released_at IS NULL AND q.identity IS NOT NULL)
   AND s.scrubbed_at IS NULL AND s.auth_key_version = %(version)s::integer"""
OUTSTANDING: Final[LiteralString] = f"""
SELECT EXISTS (SELECT FROM {{schema}}.push_subscription AS s
                WHERE s.scrubbed_at IS NULL AND s.auth_key_version = %(version)s::integer AND NOT {_APART})"""

# Messages keep the version that their payload was sealed with: they are over before a key has to go.
PAYLOADS: Final[LiteralString] = """
SELECT payload_key_version AS version, count(*) AS messages, max(coalesce(expires_at, closed_at)) AS until
  FROM {schema}.push_message WHERE payload_ref IS NOT NULL GROUP BY 1 ORDER BY 1"""
# Imports that run: what waits there becomes a row with this version.
STAGED: Final[LiteralString] = """
SELECT auth_key_version AS version, count(*) AS rows FROM {schema}.import_staging GROUP BY 1"""

# Who subscribed under which VAPID key: those that are not ended, live or not.
VAPID_USE: Final[LiteralString] = """
SELECT vapid_key_id, count(*) AS rows,
       count(*) FILTER (WHERE state IN ('pending', 'active') AND send_block IS NULL) AS live,
       count(*) FILTER (WHERE vapid_key_assumed) AS assumed,
       count(*) FILTER (WHERE last_seen_at > now() - %(within)s::interval) AS seen
  FROM {schema}.push_subscription WHERE deleted_at IS NULL GROUP BY 1 ORDER BY 1"""


@dataclass(frozen=True)
class Taken:
    """A row and the sealed value that it had when it was read."""

    id: UUID
    endpoint_hash: bytes
    old: bytes = field(repr=False)


@dataclass(frozen=True)
class Resealed:
    """The same row and what is to stand in the old value's place."""

    taken: Taken
    new: bytes = field(repr=False)


@dataclass(frozen=True)
class PayloadUse:
    """Messages whose payload is stored, by the version that sealed it; ``until`` None where one has no end yet."""

    version: int
    messages: int
    until: datetime | None


@dataclass(frozen=True)
class Staged:
    """Rows of imports that run, by the version that sealed them."""

    version: int
    rows: int


@dataclass(frozen=True)
class VapidUse:
    """Subscriptions that are not ended, by the VAPID key that they are under."""

    vapid_key_id: str | None
    rows: int
    live: int
    assumed: int
    seen: int


def take(tx: Tx, batch: Batch) -> list[Taken]:
    return tx.rows(literal(taking(batch.clause)), batch.params, Taken)


def taking(clause: str) -> LiteralString:
    return literal(_TAKE.format(batch=clause))


def reseal(tx: Tx, turn: Turn, rows: Sequence[Resealed]) -> int:
    """How many are sealed anew."""
    values = {
        "ids": [row.taken.id for row in rows],
        "old": [row.taken.old for row in rows],
        "new": [row.new for row in rows],
    }
    return tx.run(RESEAL, values | {"source": turn.source, "target": turn.target})


def left(tx: Tx, turn: Turn, rows: Sequence[Resealed]) -> int:
    """Of these rows, how many are still sealed with the old version."""
    return int(tx.scalar(LEFT, {"ids": [row.taken.id for row in rows], "source": turn.source}))


def some(tx: Tx, version: int) -> list[Taken]:
    return tx.rows(SOME, {"version": version}, Taken)


def versions(tx: Tx) -> list[int]:
    """The versions that rows with credentials are sealed with, ascending."""
    return tx.scalars(VERSIONS, {})


def rows_sealed(tx: Tx, version: int) -> int:
    return int(tx.scalar(ROWS, {"version": version}))


def rows_apart(tx: Tx, version: int, sweep: str) -> int:
    return int(tx.scalar(APART, {"version": version, "sweep": sweep}))


def outstanding(tx: Tx, version: int, sweep: str) -> bool:
    """Whether any row has this version that a run would take."""
    return bool(tx.scalar(OUTSTANDING, {"version": version, "sweep": sweep}))


def payload_use(tx: Tx) -> list[PayloadUse]:
    return tx.rows(PAYLOADS, {}, PayloadUse)


def staged(tx: Tx) -> list[Staged]:
    return tx.rows(STAGED, {}, Staged)


def vapid_use(tx: Tx, within: timedelta) -> list[VapidUse]:
    """``seen``: those that were in touch within that time."""
    return tx.rows(VAPID_USE, {"within": within}, VapidUse)
