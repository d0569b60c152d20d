"""A table of somebody's that is cut into days, for tests of configured partitions."""

from typing import Any, Final

import psycopg

from pushops.runtime import Runtime
from pushops.settings.partitions import PartitionedTable

Pg = psycopg.Connection[Any]

TABLE: Final = """
CREATE TABLE public.clicks (
  id      bigint NOT NULL,
  at      timestamptz NOT NULL,
  status  text,
  url     text NOT NULL DEFAULT 'https://shop.example/',
  PRIMARY KEY (id, at)
) PARTITION BY RANGE (at)"""

# A day so many days ago, with a row that is done.
OLD: Final = """
DO $$
DECLARE day timestamptz := date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - {ago} * interval '24 h';
BEGIN
  EXECUTE format('CREATE TABLE public.clicks_old_{ago} PARTITION OF public.clicks FOR VALUES FROM (%L) TO (%L)',
                 day, day + interval '24 h');
  INSERT INTO public.clicks VALUES ({ago}, day + interval '3 h', 'done');
END $$"""


SECTION: Final = {
    "table": "public.clicks",
    "column": "at",
    "interval": "day",
    "retention": "7d",
    "unfinished": "status <> 'done'",
}


def clicks(rt: Runtime, **changes: Any) -> Runtime:
    """The runtime with the table configured: days, kept for a week."""
    configured = {"clicks": PartitionedTable.model_validate({**SECTION, **changes})}
    return Runtime(rt.settings.model_copy(update={"partitions": configured}), rt.db, rt.redis, rt.events)


def make_table(pg: Pg, *old: int, default: bool = False) -> None:
    pg.execute(TABLE.encode())
    for ago in old:
        pg.execute(OLD.format(ago=ago).encode())
    if default:
        pg.execute("CREATE TABLE public.clicks_rest PARTITION OF public.clicks DEFAULT")


def attached(pg: Pg) -> list[str]:
    rows = pg.execute(
        """SELECT c.relname FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
            WHERE inhparent = 'public.clicks'::regclass ORDER BY 1"""
    )
    return [name for (name,) in rows]


def tables(pg: Pg) -> list[str]:
    rows = pg.execute("SELECT relname FROM pg_class WHERE relname LIKE 'clicks\\_%' AND relkind = 'r' ORDER BY 1")
    return [name for (name,) in rows]


def steps(pg: Pg) -> list[tuple[str, str]]:
    return pg.execute("SELECT child, goes FROM partition_step ORDER BY child").fetchall()
