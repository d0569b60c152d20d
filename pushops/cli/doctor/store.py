"""What the doctor asks PostgreSQL."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from pushops.db import Tx


@dataclass(frozen=True)
class Server:
    version: int
    version_text: str
    sees_all: bool
    now: datetime


@dataclass(frozen=True)
class ForeignKey:
    """A key of somebody else's table into one of ours; ``action`` is what a deletion does to its rows."""

    table: str
    name: str
    target: str
    action: str
    indexed: bool


@dataclass(frozen=True)
class Slot:
    """``retained`` bytes of WAL, null for a slot that never was connected."""

    name: str
    active: bool
    retained: int | None


@dataclass(frozen=True)
class KeyUse:
    """Rows by the keys that they name: all with credentials, and the live ones among them."""

    vapid_key_id: str | None
    auth_key_version: int | None
    rows: int
    live: int


SERVER: Final[LiteralString] = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
       pg_has_role(current_user, 'pg_monitor', 'USAGE') OR pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
         AS sees_all,
       clock_timestamp() AS now"""

INVALID_INDEXES: Final[LiteralString] = """
SELECT i.indexrelid::regclass::text
  FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s::text AND NOT (i.indisvalid AND i.indisready) ORDER BY 1"""

INDEXES: Final[LiteralString] = "SELECT indexname::text FROM pg_indexes WHERE schemaname = %(schema)s::text"

# An index serves the key where its first columns are the key's, in whatever order.
FOREIGN_KEYS: Final[LiteralString] = """
SELECT c.conrelid::regclass::text AS "table", c.conname::text AS name, c.confrelid::regclass::text AS target,
       CASE c.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT'
                          WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END AS action,
       EXISTS (SELECT FROM pg_index AS i
                WHERE i.indrelid = c.conrelid AND i.indisvalid AND i.indpred IS NULL
                  AND (string_to_array(i.indkey::text, ' ')::int2[])[1:cardinality(c.conkey)] @> c.conkey) AS indexed
  FROM pg_constraint AS c
  JOIN pg_class AS ours ON ours.oid = c.confrelid
  JOIN pg_class AS theirs ON theirs.oid = c.conrelid
 WHERE c.contype = 'f' AND c.conparentid = 0
   AND ours.relnamespace = to_regnamespace(%(schema)s::text)
   AND theirs.relnamespace <> to_regnamespace(%(schema)s::text)
 ORDER BY 1, 2"""

SLOTS: Final[LiteralString] = """
SELECT slot_name::text AS name, active,
       pg_wal_lsn_diff(pg_current_wal_lsn(),
         CASE WHEN slot_type = 'logical' THEN confirmed_flush_lsn ELSE restart_lsn END)::bigint AS retained
  FROM pg_replication_slots WHERE NOT temporary ORDER BY 1"""

KEY_USE: Final[LiteralString] = """
SELECT vapid_key_id, auth_key_version, count(*) AS rows, count(*) FILTER (WHERE deleted_at IS NULL) AS live
  FROM {schema}.push_subscription WHERE scrubbed_at IS NULL GROUP BY 1, 2"""

LAST_LOOK: Final[LiteralString] = "SELECT now() - max(dispatched_at) FROM {schema}.sweep_control"


def server(tx: Tx) -> Server:
    return tx.one(SERVER, {}, Server)


def invalid_indexes(tx: Tx) -> list[str]:
    return tx.scalars(INVALID_INDEXES, {"schema": tx.schema})


def indexes(tx: Tx) -> set[str]:
    return set(tx.scalars(INDEXES, {"schema": tx.schema}))


def foreign_keys(tx: Tx) -> list[ForeignKey]:
    return tx.rows(FOREIGN_KEYS, {"schema": tx.schema}, ForeignKey)


def slots(tx: Tx) -> list[Slot]:
    return tx.rows(SLOTS, {}, Slot)


def key_use(tx: Tx) -> list[KeyUse]:
    return tx.rows(KEY_USE, {}, KeyUse)


def last_look(tx: Tx) -> timedelta | None:
    """How long ago any sweep was last looked at by a dispatcher, None for never."""
    found: timedelta | None = tx.scalar(LAST_LOOK, {})
    return found
