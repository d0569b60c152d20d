"""The log sink: one JSON object (or a console line) per event, on stderr."""

import logging
import sys
from typing import Any, Final

import structlog

from pushops.events.api import Fields, Level, Sink

_LEVELS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
    Level.PAGE: logging.CRITICAL,
}


def log_sink(log_format: str, log_level: str) -> Sink:
    """A sink that writes events at or above ``log_level``."""
    renderer: Any = structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),  # one write a line: workers share a stream
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[Level(log_level)]),
    )

    def sink(level: Level, name: str, fields: Fields) -> None:
        logger.log(_LEVELS[level], name, **{key: _plain(value) for key, value in fields.items()})

    return sink


def _plain(value: Any) -> Any:  # noqa: ANN401  (whatever a field holds)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
