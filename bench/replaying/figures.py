"""From rounds to ratios within a round, the table that people read and the object that machines read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.replaying.paced import Paced
from bench.report import Bar, bars_table

BARS: Final[Mapping[str, Bar]] = {
    "replay_vs_send": (">=", 0.7, None),
    "triage_ms": ("<=", 1_000, None),
    "pace_error": ("<=", 0.1, None),
    "live_p99_vs_idle": ("<=", 1.3, None),
}


@dataclass(frozen=True)
class Round:
    """Rows a second of both halves."""

    replay: float
    send: float

    @property
    def ratio(self) -> float:
        return self.replay / self.send


def figures(rounds: Sequence[Round], triage_ms: tuple[float, float], paced: Paced | None) -> dict[str, Any]:
    """``triage_ms``: vacuumed and not. Without a paced drain its figures are None."""
    return {
        "replay_vs_send": round(median(one.ratio for one in rounds), 3),
        "replay_rows_per_s": round(median(one.replay for one in rounds)),
        "send_rows_per_s": round(median(one.send for one in rounds)),
        "triage_ms": round(triage_ms[0]),
        "triage_ms_unvacuumed": round(triage_ms[1]),
        "pace_error": round(paced.pace_error, 3) if paced else None,
        "live_p99_vs_idle": round(paced.ratio, 3) if paced else None,
        "ratios": [round(one.ratio, 3) for one in rounds],
        "paced": paced.told() if paced else None,
    }


def show(found: Mapping[str, Any], conditions: str) -> None:
    """A table of what was measured and one of figures against their bars."""
    table = Table("measured", "", title=f"{found['letters']:,} letters, {found['rounds']} rounds, {found['server']}")
    table.add_row("plain sending, rows/s", f"{found['send_rows_per_s']:,}")
    table.add_row("replay without a pace limit, rows/s", f"{found['replay_rows_per_s']:,}")
    table.add_row("replay over sending, each round", _listed(found["ratios"]))
    table.add_row(f"triage of {found['triaged']:,} letters, ms", f"{found['triage_ms']:,}")
    table.add_row("the same before vacuum, ms", f"{found['triage_ms_unvacuumed']:,}")
    if (paced := found["paced"]) is not None:
        table.add_row(f"letters/s where {paced['target']:g} are meant, each window", _listed(paced["paces"]))
        table.add_row("live p99 without a drain, ms, each window", _listed(paced["idle_p99_ms"]))
        table.add_row("live p99 beside it, ms, each window", _listed(paced["busy_p99_ms"]))
    console = Console(width=110, highlight=False)
    console.print(conditions)
    console.print(table)
    console.print(bars_table(found, BARS))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in values)
