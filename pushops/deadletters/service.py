"""The verbs of dead letters that send: what the command line, the tasks and an application call."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pushops.deadletters.filters import Filter, parse
from pushops.deadletters.replay.draining import DRAIN
from pushops.deadletters.replay.previewing import Preview, preview
from pushops.deadletters.replay.reaping import reap
from pushops.deadletters.replay.resending import Resent, resend
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.sweeps.dispatch import Bell, Dispatched, Order, dispatch

__all__ = ["DRAIN", "Options", "Preview", "Resent", "drain", "parse_words", "preview", "reap", "resend"]


MOST: Final = 1_000_000_000


@dataclass(frozen=True)
class Options:
    """How a replay goes: ``limit`` letters at most; ``rate`` messages a second to each push service, else the share
    that the settings give it; ``ramp`` to get there.
    """

    limit: int | None = None
    rate: float | None = None
    ramp: timedelta | None = None

    def of_run(self) -> dict[str, Any]:
        """As a run's row keeps them; raises RefusedError."""
        if self.limit is not None and self.limit < 1:
            raise RefusedError(f"expected a limit of at least 1, got {self.limit}")
        if self.rate is not None and not self.rate > 0:
            raise RefusedError(f"expected a rate above 0, got {self.rate}")
        ramp = None if self.ramp is None else self.ramp.total_seconds()
        return {name: value for name, value in {"rate": self.rate, "ramp": ramp}.items() if value is not None}


def parse_words(words: Mapping[str, object]) -> tuple[Filter, Options]:
    """A task's arguments: a filter's words beside ``limit``, ``rate`` and ``ramp`` (seconds). Raises RefusedError."""
    own = {name: _number(name, words[name]) for name in ("limit", "rate", "ramp") if words.get(name) is not None}
    limit, rate, ramp = (own.get(name) for name in ("limit", "rate", "ramp"))
    options = Options(None if limit is None else int(limit), rate, None if ramp is None else timedelta(seconds=ramp))
    return parse({name: value for name, value in words.items() if name not in ("limit", "rate", "ramp")}), options


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
        raise RefusedError(f"expected {name} to be a number above 0, got {str(value)[:30]!r}")
    return float(value)


def drain(rt: Runtime, wanted: Filter, options: Options, bell: Bell | None, *, started_by: str) -> Dispatched:
    """Send parked letters again: open a run for the filter, or join the one that is open, and ring for workers.

    Poison is left out unless the filter asks for it. Raises RefusedError, for a filter that names nothing as well: no
    replay is of everything.
    """
    kept = options.of_run()
    order = Order(started_by=started_by, filter=wanted.key(), options=kept, row_limit=options.limit)
    return dispatch(rt, DRAIN, bell, order)
