"""Contenders in turns: each round gives every one of them a fresh copy, and ratios are taken within a round."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from bench import contenders, pipeline
from bench.house import House, say
from bench.layout import KEY_ORDER, LAYOUTS, LIVED_IN
from bench.timing import Timed, timed
from bench.workers import Worker, working

SINGLE: Final = "single_delete"
CTE: Final = "cte_loop"
IN: Final = "in_loop"
IDS: Final = "ids_in_messages"
PIPELINE: Final = "pipeline"
CONTENDERS: Final = (SINGLE, CTE, IN, IDS, PIPELINE)

Run = Callable[[House], tuple[float, dict[str, Any]]]


ALWAYS: Final = dict.fromkeys(LAYOUTS, 1)
OFTEN: Final = {KEY_ORDER: 1, LIVED_IN: 2}
ONCE: Final = dict.fromkeys(LAYOUTS, 1_000)


@dataclass(frozen=True)
class Entry:
    """A contender, how it commits, and in every how many rounds it starts on each layout, the first included.

    There are ten minutes: what no bar asks about starts once, and what is slow where it decides nothing less often.
    """

    name: str
    synchronous: bool
    every: Mapping[str, int]

    @property
    def label(self) -> str:
        return self.name if self.synchronous else f"{self.name}_async"


ENTRIES: Final = (
    Entry(SINGLE, synchronous=True, every=ALWAYS),
    Entry(CTE, synchronous=True, every=OFTEN),  # on the lived-in layout it is the slowest, and far below its bar
    Entry(PIPELINE, synchronous=True, every=ALWAYS),
    Entry(SINGLE, synchronous=False, every=ONCE),
    Entry(CTE, synchronous=False, every=ONCE),
    Entry(PIPELINE, synchronous=False, every=ONCE),
    Entry(IN, synchronous=True, every=ONCE),
    Entry(IDS, synchronous=True, every=ONCE),
    Entry(IN, synchronous=False, every=ONCE),
    Entry(IDS, synchronous=False, every=ONCE),
)


@dataclass(frozen=True)
class Result:
    round: int
    layout: str
    label: str
    timed: Timed


def play(house: House, rounds: int, *, asynchronous: bool) -> list[Result]:
    """All rounds. The workers are started once and warmed for each run; nothing of that is on the clock."""
    entries = [entry for entry in ENTRIES if entry.synchronous or asynchronous]
    with working(house, "pushops.tasks", **pipeline.UNPACED) as purger, working(house, "bench.ids") as deleter:
        runs = _runs(purger, deleter)
        return [
            _start(house, number, layout, entry, runs[entry.name])
            for number in range(rounds)
            for layout in LAYOUTS
            for entry in _turn(entries, layout, number)
        ]


def _runs(purger: Worker, deleter: Worker) -> dict[str, Run]:
    return {
        SINGLE: contenders.single,
        CTE: contenders.cte_loop,
        IN: contenders.in_loop,
        IDS: partial(pipeline.purge_by_ids, worker=deleter),
        PIPELINE: partial(pipeline.purge, worker=purger),
    }


def _turn(entries: Sequence[Entry], layout: str, number: int) -> Iterator[Entry]:
    """Who starts in this round; another one first each time."""
    found = [entry for entry in entries if number % entry.every[layout] == 0]
    first = number % len(found)
    yield from found[first:]
    yield from found[:first]


def _start(house: House, number: int, layout: str, entry: Entry, run: Run) -> Result:
    house.clone(layout, synchronous=entry.synchronous)
    found = timed(house, lambda: run(house))
    say(f"round {number + 1}, {layout}, {entry.label}: {found.rate:,.0f} rows/s, {found.wal_per_row:.0f} WAL bytes/row")
    return Result(number, layout, entry.label, found)


def values(results: Iterable[Result], layout: str, label: str) -> dict[int, Timed]:
    """A contender's timings on a layout, by round."""
    return {each.round: each.timed for each in results if each.layout == layout and each.label == label}


def ratio(results: list[Result], layout: str, label: str, to: str, of: Callable[[Timed], float]) -> float:
    """Median over the rounds of what one contender needed or did, over the other in the same round."""
    ours, theirs = values(results, layout, label), values(results, layout, to)
    return median(of(ours[n]) / of(theirs[n]) for n in ours.keys() & theirs.keys())
