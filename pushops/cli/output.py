"""What is printed: results on stdout, for people or as JSON; everything else on stderr."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]

# What terminals obey, or turn around; a cell may have several lines. JSON spells out the first range by itself.
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_SHORT: Final = 13  # of a UUIDv7: its whole millisecond, enough to name a run
_AGES: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


def print_json(value: object) -> None:
    """Dataclasses as objects, times as ISO 8601, durations in seconds."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=as_plain)
    sys.stdout.write(_visible(text) + "\n")  # they stand within strings only, and stay the same to who reads JSON


def as_plain(value: object) -> object:
    """For JSON: what it has no form of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def say(text: str) -> None:
    """A result."""
    typer.echo(text)


def note(text: str) -> None:
    """Something beside the result."""
    typer.echo(text, err=True)


def tell(value: Mapping[str, object], text: str, *, json_: bool) -> None:
    """What a verb did, in either form."""
    if json_:
        print_json(value)
    else:
        say(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "none") -> None:
    """Columns that end in ``>`` are numbers; the last one takes what is left of the line and wraps."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        justify: Any = "right" if column.endswith(">") else "left"
        table.add_column(column.rstrip(">"), justify=justify, no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    _print(table) if table.row_count else say(empty)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one a line; lists take a line for each entry."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        entries = list(value) if isinstance(value, list | tuple) else [value]
        for index, entry in enumerate(entries or [None]):
            table.add_row("" if index else name, Text(shown(entry)))
    _print(table)


def _print(table: Table) -> None:
    """Without the blanks that fill the last column, which only widen what is copied or piped."""
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        say(line.rstrip())


def shown(value: object) -> str:
    """A value for people: grouped digits, UTC times to the second, the two largest units of a duration."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, timedelta):
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else _visible(str(value))


def _visible(text: str) -> str:
    """With control characters spelled out: browsers name themselves as they like, and terminals obey."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def duration(value: timedelta) -> str:
    """The two largest units: ``2d 3h``, ``4m 10s``, ``3s``."""
    seconds = round(value.total_seconds())
    parts: list[str] = []
    for unit, size in _AGES:
        if seconds >= size:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    if seconds or not parts:
        parts.append(f"{seconds}s")
    return " ".join(parts[:2])


def short(identity: UUID) -> str:
    return str(identity)[:_SHORT]
