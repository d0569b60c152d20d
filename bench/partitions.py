"""``python -m bench.partitions``: retiring a partition against our own sweep over rows of the same width.

Progress goes to stderr; the last line of stdout is one JSON object.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import psycopg

from bench.house import House, conditions, opened, say
from bench.purge import enter
from pushops.db.migrate import migrate
from pushops.retention.partitions import service
from pushops.retention.partitions.words import Did
from pushops.runtime import Runtime, runtime
from pushops.settings import load_settings
from pushops.settings.partitions import PartitionedTable
from pushops.sweeps.inline import run_inline
from pushops.sweeps.order import Order
from pushops.sweeps.sweep import Column, Sweep

MADE: Final = "partitions_made"
BAR: Final = 0.02

# The same rows twice: a month of a table that is cut, and a table that is not. Of each, two columns are indexed.
TABLES: Final = """
CREATE TABLE public.{name} (
  id          bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  status      text NOT NULL,
  url         text NOT NULL,
  PRIMARY KEY (id, created_at)
) {how};
CREATE INDEX {name}_status ON public.{name} (status, created_at);
CREATE INDEX {name}_created ON public.{name} (created_at, id)"""
SPANS: Final = """
CREATE TABLE public.cut_old PARTITION OF public.cut FOR VALUES FROM (MINVALUE) TO (now() - interval '100 days');
CREATE TABLE public.cut_new PARTITION OF public.cut FOR VALUES FROM (now() - interval '100 days') TO (MAXVALUE)"""
ROWS: Final = """
INSERT INTO public.{name}
SELECT n, now() - interval '130 days' + n * interval '2 seconds', 'delivered',
       'https://shop.example/hooks/' || md5(n::text) || md5((n + 1)::text)
  FROM generate_series(1, {rows}) AS n"""

PURGE: Final = Sweep(
    name="bench-purge-whole",
    table="public.whole",
    index="whole_created",
    key=(Column("created_at", "timestamptz"), Column("id", "bigint")),
    identity=Column("id", "bigint"),
    predicate="created_at < now() - interval '90 days' AND status = 'delivered'",
    windows=(),
    effect="WITH gone AS (DELETE FROM public.whole WHERE {batch} RETURNING 1) SELECT count(*)::int FROM gone",
)
CUT: Final = {
    "table": "public.cut",
    "column": "created_at",
    "interval": "month",
    "retention": "90d",
    "unfinished": "status <> 'delivered'",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    with opened() as servers:
        enter(servers)
        say(conditions())
        found = measure(servers, options.rows, options.rounds)
    verdict = "met" if found["partition_vs_delete"] <= BAR else "missed"
    say(f"partition_vs_delete {found['partition_vs_delete']} (bar {BAR}: {verdict})")
    print(json.dumps(found))


def measure(servers: House, rows: int, rounds: int) -> dict[str, Any]:
    """``partition_vs_delete``: seconds of retiring by seconds of the sweep at its default pace, medians over rounds.

    The sweep's process works alone, so that two workers would be about twice as fast: the bar leaves room for that.
    """
    _build(servers, rows)
    retired, swept = [], []
    for _ in range(rounds):
        servers.clone(MADE)
        with runtime() as rt:
            retired.append(_clock(rt, _retire))
            swept.append(_clock(rt, _sweep))
        say(f"retired {retired[-1]:.3f} s, swept {swept[-1]:.1f} s")
    return {
        "rows": rows,
        "partition_vs_delete": round(median(retired) / median(swept), 5),
        "retire_s": [round(each, 3) for each in retired],
        "sweep_s": [round(each, 2) for each in swept],
    }


def _build(servers: House, rows: int) -> None:
    servers.clone("template1")
    migrate(load_settings())
    with psycopg.connect(servers.url, autocommit=True) as conn:
        conn.execute(TABLES.format(name="cut", how="PARTITION BY RANGE (created_at)").encode())
        conn.execute(SPANS.encode())
        conn.execute(TABLES.format(name="whole", how="").encode())
        for name in ("cut", "whole"):
            conn.execute(ROWS.format(name=name, rows=rows).encode())
            conn.execute(f"VACUUM ANALYZE public.{name}".encode())
    servers.keep(MADE)


def _clock(rt: Runtime, work: Callable[[Runtime], None]) -> float:
    with rt.db.borrowed() as conn:
        conn.execute("CHECKPOINT")
    began = time.monotonic()
    work(rt)
    return time.monotonic() - began


def _retire(rt: Runtime) -> None:
    configured = {"cut": PartitionedTable.model_validate(CUT)}
    changed = Runtime(rt.settings.model_copy(update={"partitions": configured}), rt.db, None, rt.events)
    fates = service.retire(changed, "cut")
    assert [fate.did for fate in fates] == [Did.DROPPED], fates


def _sweep(rt: Runtime) -> None:
    """At the default pace, with a budget that is not spent first."""
    patient = rt.settings.model_copy(update={"sweep_budget_ms": 86_400_000})
    run = run_inline(
        Runtime(patient, rt.db, None, rt.events), {PURGE.name: PURGE}, PURGE, Order("bench"), lambda *_: None
    )
    with rt.db.borrowed() as conn:
        left = conn.execute("SELECT count(*) FROM public.whole").fetchone()
    assert run.state == "done", run
    assert left == (0,), left


if __name__ == "__main__":
    main()
