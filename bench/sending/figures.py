"""From runs to ratios within a round, the table that people read and the object that machines read."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.report import Bar, bars_table
from bench.sending.contender import ENCRYPTION, PEERS, WEBPUSH, WHOLE
from bench.sending.job import Done

BARS: Final[Mapping[str, Bar]] = {
    "whole_vs_webpush": (">=", 8, 20),
    "whole_vs_best_peer": (">=", 1.2, 2.5),
    "whole_vs_limit": (">=", 0.35, 0.7),
    "rss_growth": ("<=", 1.1, None),
}

Round = Mapping[str, Done]


def figures(rounds: Sequence[Round], rss_mb: Mapping[str, float]) -> dict[str, Any]:
    """``rss_mb``: of the whole contender, by number of sends."""
    names = list(rounds[0])
    sizes = [rss_mb[key] for key in sorted(rss_mb, key=int)]
    return {
        "per_s": {name: round(median(one[name].rate for one in rounds)) for name in names},
        "cpu_us": {name: round(median(one[name].cpu / one[name].sent * 1e6 for one in rounds), 1) for name in names},
        "best_peer": _best_peer(rounds),
        "whole_vs_webpush": _ratio(rounds, [WEBPUSH]),
        "whole_vs_best_peer": _ratio(rounds, PEERS),
        "whole_vs_limit": _ratio(rounds, [ENCRYPTION]),
        "rss_mb": {key: round(value, 1) for key, value in rss_mb.items()},
        "rss_growth": round(sizes[-1] / sizes[0], 3) if len(sizes) > 1 else None,
    }


def _ratio(rounds: Sequence[Round], names: Sequence[str]) -> float:
    """Median of the whole's rate over the fastest of these, of the same round."""
    return round(median(one[WHOLE].rate / max(done.rate for done in _of(one, names)) for one in rounds), 3)


def _of(one: Round, names: Sequence[str]) -> Iterator[Done]:
    return (one[name] for name in names if name in one)


def _best_peer(rounds: Sequence[Round]) -> str:
    names = [name for name in PEERS if name in rounds[0]]
    return max(names, key=lambda name: median(one[name].rate for one in rounds))


def show(found: Mapping[str, Any]) -> None:
    """A table of rates and one of figures against their bars."""
    table = Table("contender", "messages/s", "own CPU, us/message", title="medians over the rounds")
    for name, rate in found["per_s"].items():
        table.add_row(name, f"{rate:,}", f"{found['cpu_us'][name]:,}")
    for name, why in found["skipped"].items():
        table.add_row(name, "", why)
    console = Console(width=110, highlight=False)
    console.print(table)
    console.print(bars_table(found, BARS))
