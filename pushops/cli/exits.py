"""Exit codes that a cron job can trust, and which one a run deserves."""

from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pushops.sweeps.store import RunRow


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2  # typer's own for what it could not parse
    HELD = 3
    STOPPED = 4
    UNFINISHED = 5


DOCUMENTED: Final = (
    "Exit codes: 0 done or nothing to do; 1 refused or failed; 2 usage; 3 held by a valve or an operator (the reason"
    " is printed); 4 stopped or cancelled; 5 time budget spent, or interrupted, with work left."
)

_CLOSED: Final = {"done": Exit.DONE, "stopped": Exit.STOPPED, "cancelled": Exit.STOPPED, "cancelling": Exit.STOPPED}


def exit_of(run: "RunRow") -> Exit:
    """What the run's state means to whoever waited for it."""
    if run.state in _CLOSED:
        return _CLOSED[run.state]
    if run.state in ("pausing", "paused"):
        return Exit.HELD
    return Exit.HELD if run.held_by not in (None, "budget") else Exit.UNFINISHED
