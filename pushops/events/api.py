"""Emitting: a name from the catalog, its fields, and every sink hears of it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pushops.errors import PushopsError
from pushops.events.catalog import CATALOG

Fields = Mapping[str, Any]
Sink = Callable[["Level", str, Fields], None]


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    PAGE = "page"  # somebody is woken up


@dataclass(frozen=True)
class Events:
    """Fan events out to sinks. A sink that fails never fails the work that it reports on."""

    sinks: Sequence[Sink] = field(default_factory=tuple)

    def emit(self, name: str, level: Level | None = None, **fields: Any) -> None:  # noqa: ANN401  (fields differ)
        """Say that something happened. Unknown names and fields are programming errors and raise KeyError."""
        kind = CATALOG[name]
        if unknown := fields.keys() - kind.fields:
            raise KeyError(f"expected fields of {name} to be among {sorted(kind.fields)}, got {sorted(unknown)}")
        for sink in self.sinks:
            _deliver(sink, level or Level(kind.level), name, fields)

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator["Span"]:  # noqa: ANN401  (fields differ)
        """Time a piece of work; what the block puts into the span, and how it ended, goes out as one event."""
        span = Span(dict(fields))
        started = time.monotonic()
        level = None
        try:
            yield span
        except Exception as error:
            level = Level.WARNING if isinstance(error, PushopsError) and not error.reportable else Level.ERROR
            span["error"] = error.label if isinstance(error, PushopsError) else type(error).__name__
            raise
        finally:
            span["seconds"] = round(time.monotonic() - started, 4)
            self.emit(name, level, **span.fields)


@dataclass
class Span:
    fields: dict[str, Any]

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401  (fields differ)
        self.fields[name] = value


def _deliver(sink: Sink, level: Level, name: str, fields: Fields) -> None:
    with suppress(Exception):
        sink(level, name, fields)
