"""Progress on stderr: a bar with rate and ETA at a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from pushops.cli.output import duration, note
from pushops.sweeps.store import Progress as Done
from pushops.sweeps.store import RunRow

_EVERY: Final = 5.0  # seconds between lines where there is no terminal
_MIN_ELAPSED: Final = 0.001


class Meter(Protocol):
    """``update(done, total, label)``; total is None where nobody knows."""

    def __call__(self, done: int, total: int | None, label: str) -> None: ...


@contextmanager
def meter(unit: str = "rows") -> Iterator[Meter]:
    """A meter for the length of a block."""
    if sys.stderr.isatty():
        with _bar(unit) as progress:
            yield _Bar(progress)
        return
    lines = _Lines(unit)
    yield lines
    lines.last()


@contextmanager
def follow_run() -> Iterator[Callable[[RunRow, Done], None]]:
    """What ``run_inline`` and ``watch`` tell, shown."""
    with meter() as show:

        def told(run: RunRow, done: Done) -> None:
            show(done.rows_done, total_of(run, done), label_of(run, done))

        yield told


def total_of(run: RunRow, done: Done) -> int | None:
    """What the run set out to take; more than that where rows became eligible meanwhile."""
    known = [n for n in (run.eligible_rows, run.row_limit) if n is not None]
    return max(min(known), done.rows_done) if known else None


def label_of(run: RunRow, done: Done) -> str:
    """Short while all is well: a bar, a rate and what is left share the line."""
    held = run.held_by is not None and run.closed_at is None
    state = f" held by {run.held_by}: {run.why}" if held else "" if run.state == "running" else f" {run.state}"
    apart = f", {done.quarantined} quarantined" if done.quarantined else ""
    return f"{run.sweep}{state}{apart}"


class _RateAndEta(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        total = None if task.total is None else int(task.total)
        return Text(rate_and_eta(int(task.completed), total, task.elapsed or 0.0, self._unit))


def rate_and_eta(done: int, total: int | None, elapsed: float, unit: str) -> str:
    rate = done / max(elapsed, _MIN_ELAPSED)
    left = (
        "" if not total or not done or done >= total else f", {duration(timedelta(seconds=(total - done) / rate))} left"
    )
    of = "" if total is None else f"/{total:,}"
    return f"{done:,}{of} {unit}, {rate:,.0f}/s{left}"


def _bar(unit: str) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(bar_width=12), _RateAndEta(unit)
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=5)


class _Bar:
    """A run that was joined has done rows before: only what came since says how fast it is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if self._task is None:
            self._task = self._progress.add_task(label, total=total)
        self._progress.update(self._task, description=label, completed=done, total=total)


class _Lines:
    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._began = time.monotonic()
        self._printed_at = float("-inf")
        self._label = ""
        self._line = ""
        self._printed = ""

    def __call__(self, done: int, total: int | None, label: str) -> None:
        now = time.monotonic()
        self._line = f"{label}: {rate_and_eta(done, total, now - self._began, self._unit)}"
        if label != self._label or now - self._printed_at >= _EVERY:
            self._label, self._printed_at = label, now
            self._print()

    def last(self) -> None:
        if self._line != self._printed:
            self._print()

    def _print(self) -> None:
        self._printed = self._line
        note(self._line)
