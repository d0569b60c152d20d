"""``python -m bench.own``: what tables of one's own cost: swept, retired by partition, and imported.

Progress goes to stderr; the last line of stdout is one JSON object. Sweeps run here, without a broker and a pause.
"""

import argparse
import json
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, LiteralString

import psycopg
from rich.console import Console

from bench import importing, layout, partitions, report
from bench.house import House, conditions, opened, say
from bench.purge import enter
from bench.timing import clock, connected
from pushops.retention.catalog import catalog
from pushops.retention.policies import PURGE_TOMBSTONES
from pushops.runtime import Runtime, runtime
from pushops.settings import load_settings
from pushops.settings.own import OwnTable
from pushops.sweeps.inline import run_inline
from pushops.sweeps.order import Order

MADE: Final = "own_made"
OWN: Final = "own"
PARTITIONS: Final = "partitions"
IMPORT: Final = "import"
BUILT_IN: Final = PURGE_TOMBSTONES.name
ORDER: Final = Order("bench", force=True)  # most of each table is meant: said openly, as an operator would
UNPACED: Final[Mapping[str, Any]] = {"sweep_pause_ms": 0, "sweep_budget_ms": 3_600_000}
BARS: Final[Mapping[str, report.Bar]] = {
    "own_vs_builtin": (">=", 0.8, None),
    "partition_vs_delete": ("<=", partitions.BAR, None),
    **{name: bar for name, bar in importing.BARS.items() if name == "import_vs_copy"},
}
EXAMPLES: Final = Path(__file__).parents[1] / "examples"
NEAR: Final = 0.03  # how far widths may lie apart


@dataclass(frozen=True)
class Example:
    """A shipped example, and how its rows are made: as many over as of the built-in's, those and the others as wide."""

    name: str
    table: LiteralString
    fill: LiteralString


EXAMPLE_TABLES: Final = (
    Example(
        "webhook-deliveries",
        "public.webhook_delivery",
        """
INSERT INTO public.webhook_delivery
       (endpoint_url, event, body, status, attempts, last_code, next_attempt_at, created_at, expires_at)
SELECT 'https://shop.example/hooks', 'order.paid',
       repeat('x', CASE WHEN n %% %(live)s::int = 0 THEN %(live_pad)s::int ELSE %(pad)s::int END),
       CASE WHEN n %% %(live)s::int = 0 THEN 'retrying' ELSE 'delivered' END, 1, 200,
       CASE WHEN n %% %(live)s::int = 0 THEN now() END,
       now() - interval '60 days', now() - interval '30 days' + n * interval '1 second'
  FROM generate_series(1, %(rows)s::int) AS n""",
    ),
    Example(
        "short-links",
        "public.short_link",
        """
INSERT INTO public.short_link (code, target, owner, created_at, expires_at)
SELECT substr(md5(n::text), 1, 12), 'https://shop.example/' ||
       repeat('x', CASE WHEN n %% %(live)s::int = 0 THEN %(live_pad)s::int ELSE %(pad)s::int END), 'bench',
       now() - interval '400 days',
       CASE WHEN n %% %(live)s::int <> 0 THEN now() - interval '60 days' + n * interval '1 second' END
  FROM generate_series(1, %(rows)s::int) AS n""",
    ),
)


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    found: dict[str, Any] = dict.fromkeys(BARS)
    with opened() as servers:
        enter(servers)
        say(conditions())
        if OWN not in options.without:
            found |= measure(servers, options.rows, options.rounds)
        if PARTITIONS not in options.without:
            found |= _only(partitions.measure(servers, options.rows, options.rounds), "partition_vs_delete")
    if IMPORT not in options.without:
        found |= _only(importing.measure(options.rows, options.import_rounds), "import_vs_copy")
    Console(width=110, highlight=False).print(report.bars_table(found, BARS))
    print(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.own", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table; of swept ones four in five go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--import-rounds", type=int, default=1, help="an import takes minutes")
    parser.add_argument(
        "--without", action="append", choices=(OWN, PARTITIONS, IMPORT), default=[], help="leave a part out"
    )
    return parser.parse_args()


def _only(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: found[name], name.partition("_")[0]: {key: value for key, value in found.items() if key != name}}


def measure(servers: House, rows: int, rounds: int) -> dict[str, Any]:
    """``own_vs_builtin``: rows per second by the built-in purge's in the same round; the worst table's median."""
    widths = build(servers, rows)
    played = [_round(servers, turn) for turn in range(rounds)]
    return figures(played) | {"rows": rows, "width_bytes": widths}


def figures(played: list[dict[str, float]]) -> dict[str, Any]:
    ratios = {
        name: round(median(each[name] / each[BUILT_IN] for each in played), 3) for name in played[0] if name != BUILT_IN
    }
    rates = {name: round(median(each[name] for each in played)) for name in played[0]}
    return {"own_vs_builtin": min(ratios.values()), "by_table": ratios, "rows_per_s": rates}


def build(servers: House, rows: int) -> dict[str, float]:
    """The built-in's table and both examples in one template; the mean width of each one's rows."""
    layout.build_one(servers, layout.KEY_ORDER, MADE, rows)
    with psycopg.connect(servers.postgres.url(MADE), autocommit=True) as conn:
        built_in = b"pushops.push_subscription"
        over, live = (_width(conn, built_in + b" WHERE deleted_at IS " + each) for each in (b"NOT NULL", b"NULL"))
        widths = {BUILT_IN: _width(conn, built_in)}
        for example in EXAMPLE_TABLES:
            conn.execute((EXAMPLES / example.name / "schema.sql").read_bytes())
            widths[example.name] = _fill(conn, example, rows, over, live)
        conn.execute("CHECKPOINT")  # vacuum marks nothing as visible whose asynchronous commit is not flushed yet
        conn.execute("VACUUM ANALYZE")
    say(f"widths {widths}")
    assert all(abs(each / widths[BUILT_IN] - 1) < NEAR for each in widths.values()), widths
    return widths


def _fill(conn: psycopg.Connection[Any], example: Example, rows: int, over: float, live: float) -> float:
    """Pad rows that go and rows that stay to these widths: what a row without padding takes is looked up first."""
    table = example.table.encode()
    plain = {"live": layout.LIVE_EVERY, "pad": 0, "live_pad": 0}
    conn.execute(example.fill, {"rows": 1000, **plain})
    bare = _width(conn, table)
    conn.execute(b"TRUNCATE " + table)
    pads = {"pad": max(0, round(over - bare)), "live_pad": max(0, round(live - bare))}
    conn.execute(example.fill, {"rows": rows, **plain, **pads})
    return _width(conn, table)


def _width(conn: psycopg.Connection[Any], rows: bytes) -> float:
    row = conn.execute(b"SELECT avg(pg_column_size(r.*))::float8 FROM (SELECT * FROM " + rows + b") AS r").fetchone()
    assert row is not None
    return round(float(row[0]), 1)


def _round(servers: House, turn: int) -> dict[str, float]:
    """Rows per second of each; who begins changes from round to round."""
    names = [BUILT_IN, *(example.name for example in EXAMPLE_TABLES)]
    names = names[turn % len(names) :] + names[: turn % len(names)]
    found = {name: _on_its_own(servers, name) for name in names}
    say(f"round {turn + 1}: " + ", ".join(f"{name} {rate:,.0f} rows/s" for name, rate in found.items()))
    return found


def _on_its_own(servers: House, name: str) -> float:
    """On a fresh copy: what one leaves behind must not meet the next."""
    servers.clone(MADE)
    with runtime(load_settings(**UNPACED)) as plain:
        rt = Runtime(plain.settings.model_copy(update={"sweeps": _sections()}), plain.db, None, plain.events)
        return _rate(servers, rt, name)


def _sections() -> dict[str, OwnTable]:
    texts = [(EXAMPLES / example.name / "pushops.toml").read_text() for example in EXAMPLE_TABLES]
    return {name: OwnTable(**own) for text in texts for name, own in tomllib.loads(text)["sweeps"].items()}


def _rate(servers: House, rt: Runtime, name: str) -> float:
    """Rows per second of a whole run; AssertionError unless exactly what was over is gone."""
    sweeps = catalog(rt)
    sweep = sweeps[name]
    counted = f"SELECT count(*) FROM {sweep.table}".replace("{schema}", rt.settings.db_schema).encode()
    before = _scalar(servers, counted)
    with servers.admin() as conn:
        conn.execute("CHECKPOINT")
    seconds = clock(_run(rt, name))
    gone = before - _scalar(servers, counted)
    assert gone == before - before // layout.LIVE_EVERY, f"expected four in five of {before} rows to go, got {gone}"
    return gone / seconds


def _run(rt: Runtime, name: str) -> Callable[[], None]:
    def work() -> None:
        sweeps = catalog(rt)
        run = run_inline(rt, sweeps, sweeps[name], ORDER, lambda *_: None)
        assert run.state == "done", run

    return work


def _scalar(servers: House, query: bytes) -> int:
    with connected(servers) as conn:
        row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
