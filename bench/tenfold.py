"""``python -m bench.tenfold``: ten times the rows should take ten times as long, and a dispatcher no more memory.

Progress goes to stderr; the last line of stdout is one JSON object.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import redis

from bench import dispatcher, house, layout, pipeline
from bench.house import House, say
from bench.purge import enter
from bench.timing import timed
from bench.workers import Worker, working

TIMES: Final = 10
WALKS: Final = ("blocks", "index")  # along the blocks a dispatcher reads no rows, along the index it reads them all
SMALLEST: Final = 0.75  # a rate that falls by a quarter
MOST_MEMORY: Final = 1.1


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    sizes = (options.rows, options.rows * TIMES)
    with house.opened() as servers:
        enter(servers)
        for rows in sizes:
            layout.build_one(servers, options.layout, _template(rows), rows)
        memory = {walk: [_memory(servers, rows, walk) for rows in sizes] for walk in WALKS}
        rates = _rates(servers, sizes, options.rounds)
    found = figures(sizes, rates, memory)
    print(json.dumps({"layout": options.layout, "rounds": options.rounds} | found))


def figures(
    sizes: Sequence[int], rates: Sequence[Sequence[float]], memory: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """``rates``: of each round, for the smaller and the larger table. Memory: in MB, the most that was ever held."""
    ratio = median(large / small for small, large in rates)
    grown = max(large["mb"] / small["mb"] for small, large in memory.values())
    return {
        "rows": list(sizes),
        "rows_per_s": [round(median(each)) for each in zip(*rates, strict=True)],
        "tenfold_rate_ratio": round(ratio, 3),
        "tenfold_rate_ratios": [round(large / small, 3) for small, large in rates],
        "tenfold_memory_ratio": round(grown, 3),
        "dispatcher": memory,
        "ok": ratio > SMALLEST and grown < MOST_MEMORY,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tenfold", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the smaller table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layout", choices=layout.LAYOUTS, default=layout.KEY_ORDER)
    return parser.parse_args()


def _template(rows: int) -> str:
    return f"rows_{rows}"


def _memory(servers: House, rows: int, walk: str) -> dict[str, Any]:
    """What a dispatcher that writes all pages of a run takes, in a process of its own; nobody works on them."""
    servers.clone(_template(rows))
    environment = servers.environment(log_level="warning", sweep_walk=walk, sweep_max_queue=10_000)
    command = [sys.executable, "-m", dispatcher.__name__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    with redis.Redis.from_url(servers.valkey.url()) as broker:
        broker.flushall()
    found: dict[str, Any] = json.loads(done.stdout)
    say(f"{rows:,} rows, {walk}: {found}")
    return found


def _rates(servers: House, sizes: Sequence[int], rounds: int) -> list[list[float]]:
    """Rows a second through the whole pipeline; the table that comes first is another one each round."""
    found: list[list[float]] = []
    with working(servers, "pushops.tasks", **pipeline.UNPACED) as worker:
        for number in range(rounds):
            order = sizes if number % 2 else sizes[::-1]
            by_size = {rows: _rate(servers, rows, worker) for rows in order}
            found.append([by_size[rows] for rows in sizes])
    return found


def _rate(servers: House, rows: int, worker: Worker) -> float:
    servers.clone(_template(rows))
    rate = timed(servers, lambda: pipeline.purge(servers, worker)).rate
    say(f"{rows:,} rows: {rate:,.0f} rows/s")
    return rate


if __name__ == "__main__":
    main()
