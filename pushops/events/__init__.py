"""One event API; structured logs and Sentry are sinks. Names, fields and levels: docs/events.md."""

from pushops.events.api import Events, Level, Sink, Span
from pushops.events.catalog import CATALOG, EventKind

__all__ = ["CATALOG", "EventKind", "Events", "Level", "Sink", "Span"]
