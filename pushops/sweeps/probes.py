"""What the valves look at in PostgreSQL: replication and old snapshots. Probing only; valves decide."""

from dataclasses import dataclass
from typing import Final, LiteralString

from pushops.db import Tx


@dataclass(frozen=True)
class Lag:
    """``bytes`` behind of the worst replica or slot; ``hidden`` replicas whose positions this role may not see."""

    replicas: int
    slots: int
    hidden: int
    bytes: int
    worst: str


@dataclass(frozen=True)
class Snapshot:
    """The oldest snapshot that holds back vacuum; ``hidden`` sessions may hold an older one.

    One that a replica or its slot holds for its own readers has no time, only its age in ``transactions``.
    """

    seconds: float
    owner: str
    hidden: int
    replica: str = ""
    transactions: int = 0


# Time-based lag is NULL on some services and zero on an idle primary: bytes are not. A slot without a consumer
# retains WAL although pg_stat_replication does not list it; one that never connected has no position yet.
LAG: Final[LiteralString] = """
WITH position AS (SELECT pg_current_wal_lsn() AS lsn),
behind AS (
  SELECT 'replica' AS kind, coalesce(nullif(application_name, ''), 'a replica') AS name,
         pg_wal_lsn_diff(position.lsn, replay_lsn) AS bytes
    FROM pg_stat_replication, position
   WHERE state IS DISTINCT FROM 'backup'
  UNION ALL
  SELECT 'slot', 'slot ' || slot_name,
         pg_wal_lsn_diff(position.lsn, CASE WHEN slot_type = 'logical' THEN confirmed_flush_lsn ELSE restart_lsn END)
    FROM pg_replication_slots, position
   WHERE NOT temporary AND CASE WHEN slot_type = 'logical' THEN confirmed_flush_lsn ELSE restart_lsn END IS NOT NULL)
SELECT count(*) FILTER (WHERE kind = 'replica')::int AS replicas,
       count(*) FILTER (WHERE kind = 'slot')::int AS slots,
       count(*) FILTER (WHERE kind = 'replica' AND bytes IS NULL)::int AS hidden,
       greatest(coalesce(max(bytes), 0), 0)::bigint AS bytes,
       coalesce((SELECT name FROM behind WHERE bytes IS NOT NULL ORDER BY bytes DESC LIMIT 1), '') AS worst
  FROM behind"""

# A transaction that wrote holds vacuum back by its own id, snapshot or not.
OLDEST_SNAPSHOT: Final[LiteralString] = """
WITH held AS (
  SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds, 'session ' || pid AS owner
    FROM pg_stat_activity
   WHERE coalesce(backend_xid, backend_xmin) IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
     AND backend_type = 'client backend'
  UNION ALL
  SELECT extract(epoch FROM clock_timestamp() - prepared)::float8, 'prepared transaction' FROM pg_prepared_xacts),
fed_back AS (
  SELECT age(xmin) AS transactions, 'slot ' || slot_name AS replica FROM pg_replication_slots WHERE xmin IS NOT NULL
  UNION ALL
  SELECT age(backend_xmin), coalesce(nullif(application_name, ''), 'a replica') FROM pg_stat_replication
   WHERE backend_xmin IS NOT NULL)
SELECT coalesce(max(seconds), 0)::float8 AS seconds,
       coalesce((SELECT owner FROM held ORDER BY seconds DESC LIMIT 1), '') AS owner,
       (SELECT count(*)::int FROM pg_stat_activity
         WHERE backend_type IS NULL AND pid <> pg_backend_pid()) AS hidden,
       coalesce((SELECT replica FROM fed_back ORDER BY transactions DESC LIMIT 1), '') AS replica,
       coalesce((SELECT max(transactions) FROM fed_back), 0)::int AS transactions
  FROM held"""


def lag(tx: Tx) -> Lag:
    return tx.one(LAG, {}, Lag)


def oldest_snapshot(tx: Tx) -> Snapshot:
    return tx.one(OLDEST_SNAPSHOT, {}, Snapshot)
