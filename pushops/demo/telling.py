"""What the audience sees: colours and a bar on a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_EVERY: Final = 3.0
PLAIN_WIDTH: Final = 120

Moved = Callable[[int, str], None]


class Teller:
    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

    def act(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/bold]")

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self._errors.print(text)

    def table(self, rows: list[tuple[str, str, str, bool]]) -> None:
        """Expected against found, row by row."""
        shown = Table()
        for column in ("", "expected", "found", "ok"):
            shown.add_column(column, justify="right" if column in ("expected", "found") else "left")
        for what, expected, found, ok in rows:
            shown.add_row(what, expected, found, "yes" if ok else "[bold red]NO[/bold red]")
        self._console.print(shown)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Moved]:
        """Yields a function to call with how much is done and a remark."""
        if self._console.is_terminal:
            yield from self._bar(what, total)
        else:
            yield from self._lines(what, total)

    def _bar(self, what: str, total: int) -> Iterator[Moved]:
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[remark]}"))
        with Progress(TextColumn(f"  {what}"), *columns, console=self._console) as bar:
            task = bar.add_task(what, total=total, remark="")
            yield lambda done, remark: bar.update(task, completed=done, remark=remark)

    def _lines(self, what: str, total: int) -> Iterator[Moved]:
        said_at = 0.0

        def moved(done: int, remark: str) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= LINE_EVERY or done >= total:
                said_at = time.monotonic()
                self.say(f"{what}: {done:,} of {total:,}, {remark}")

        yield moved
