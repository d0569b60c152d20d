"""From timings to the table that people read and the JSON object that machines read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.beside import Beside
from bench.layout import KEY_ORDER, LAYOUTS, LIVED_IN
from bench.rounds import CTE, PIPELINE, SINGLE, Result, ratio, values
from bench.timing import Timed

# Which side is good, the bar and the aim of a figure.
Bar = tuple[str, float, float | None]

BARS: Final[Mapping[str, Bar]] = {
    "pipeline_vs_single": (">=", 0.8, 1.4),
    "pipeline_vs_cte_loop": (">=", 2, 4),
    "lived_in_vs_single": (">=", 0.4, 0.8),
    "last_vs_first_batch": ("<=", 1.4, 1.1),
    "wal_per_row_vs_single": ("<=", 1.05, None),
    "batch_p99_ms": ("<=", 100, 50),
    "live_p99_vs_idle": ("<=", 2.5, 1.2),
    "args_bytes_max": ("<", 256, None),
    "message_bytes_max": ("<", 4096, None),
}


def figures(
    results: list[Result], steady: Mapping[str, float], sizes: tuple[int, int], live: Beside | None
) -> dict[str, Any]:
    """Everything that was measured, under the names that the bars go by; the worse layout where there is one figure."""
    return {
        "rows_per_s": {layout: _rates(results, layout) for layout in LAYOUTS},
        "runs": {layout: _runs(results, layout) for layout in LAYOUTS},
        "pipeline_vs_single": _rate(results, KEY_ORDER, SINGLE),
        "pipeline_vs_cte_loop": min(_rate(results, layout, CTE) for layout in LAYOUTS),
        "lived_in_vs_single": _rate(results, LIVED_IN, SINGLE),
        "last_vs_first_batch": round(max(steady.values()), 3),
        "wal_per_row_vs_single": max(_wal(results, layout) for layout in LAYOUTS),
        "batch_p99_ms": max(_batch_p99(results, layout) for layout in LAYOUTS),
        "live_p99_vs_idle": round(live.ratio, 3) if live and live.ratio else None,
        "dispatch_us_per_row": round(median(_dispatch(each.timed) for each in results if each.label == PIPELINE), 3),
        "args_bytes_max": sizes[0],
        "message_bytes_max": sizes[1],
        "by_layout": {layout: _by_layout(results, layout, steady[layout]) for layout in LAYOUTS},
        "live": live.told() if live else None,
    }


def _by_layout(results: list[Result], layout: str, steady: float) -> dict[str, Any]:
    return {
        "pipeline_vs_single": _rate(results, layout, SINGLE),
        "pipeline_vs_cte_loop": _rate(results, layout, CTE),
        "pipeline_vs_single_both_async": _both_async(results, layout),
        "wal_per_row_vs_single": _wal(results, layout),
        "batch_p99_ms": _batch_p99(results, layout),
        "last_vs_first_batch": round(steady, 3),
        "failed_attempts": sum(each.own["failed_attempts"] for each in values(results, layout, PIPELINE).values()),
        "cte_loop_had_to_be_nudged": any(each.own["planner_nudged"] for each in values(results, layout, CTE).values()),
        "walk": next(iter(values(results, layout, PIPELINE).values())).own["walk"],
    }


def _rates(results: list[Result], layout: str) -> dict[str, int]:
    labels = dict.fromkeys(each.label for each in results)
    found = {label: values(results, layout, label).values() for label in labels}
    return {label: round(median(each.rate for each in of)) for label, of in found.items() if of}


def _runs(results: list[Result], layout: str) -> dict[str, int]:
    """How often each contender ran on a layout."""
    return dict(Counter(each.label for each in results if each.layout == layout))


def _rate(results: list[Result], layout: str, to: str, of: str = PIPELINE) -> float:
    return round(ratio(results, layout, of, to, lambda timed: timed.rate), 3)


def _both_async(results: list[Result], layout: str) -> float | None:
    """None where the benchmark was told to commit synchronously only."""
    label = f"{PIPELINE}_async"
    return _rate(results, layout, f"{SINGLE}_async", label) if values(results, layout, label) else None


def _wal(results: list[Result], layout: str) -> float:
    return round(ratio(results, layout, PIPELINE, SINGLE, lambda timed: timed.wal_per_row), 3)


def _batch_p99(results: list[Result], layout: str) -> float:
    """Milliseconds from before BEGIN to the return of COMMIT, over all batches of all rounds."""
    runs = values(results, layout, PIPELINE).values()
    return round(percentile([seconds for run in runs for seconds in run.own["batch_seconds"]], 0.99) * 1000, 1)


def _dispatch(timed: Timed) -> float:
    return float(timed.own["dispatch_seconds"]) / timed.rows * 1e6


def percentile(found: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    return sorted(found)[min(len(found) - 1, int(len(found) * share))]


def show(found: Mapping[str, Any], conditions: str) -> None:
    """A table of rates and one of figures against their bars."""
    console = Console(width=110, highlight=False)
    console.print(conditions)
    console.print(_rates_table(found["rows_per_s"], found["runs"]))
    console.print(bars_table(found, BARS))


def _rates_table(rates: Mapping[str, Mapping[str, int]], runs: Mapping[str, Mapping[str, int]]) -> Table:
    columns = [column for layout in rates for column in (f"rows/s, {layout}", "runs")]
    table = Table("contender", *columns, title="medians over the runs")
    for label in dict.fromkeys(label for found in rates.values() for label in found):
        cells = ((f"{found[label]:,}", str(runs[layout][label])) for layout, found in rates.items())
        table.add_row(label, *(cell for pair in cells for cell in pair))
    return table


def bars_table(found: Mapping[str, Any], bars: Mapping[str, Bar]) -> Table:
    """Each figure beside its bar and its aim."""
    table = Table("figure", "found", "bar", "aim", "")
    for name, (sign, bar, aim) in bars.items():
        value = found[name]
        table.add_row(
            name, str(value), f"{sign} {bar:g}", f"{sign} {aim:g}" if aim else "", _verdict(value, sign, bar, aim)
        )
    return table


def _verdict(value: float | None, sign: str, bar: float, aim: float | None) -> str:
    if value is None:
        return "not measured"
    if aim is not None and _holds(value, sign, aim):
        return "aim"
    return "bar" if _holds(value, sign, bar) else "MISSED"


def _holds(value: float, sign: str, limit: float) -> bool:
    return {">=": value >= limit, "<=": value <= limit, "<": value < limit}[sign]
