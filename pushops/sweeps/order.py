"""What is asked of a sweep: by beat, by an operator, by a worker that goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Order:
    """What is asked of a dispatcher.

    ``opening`` opens a run where none is; ``granting`` gives it another slot of its time budget; ``force`` runs
    without the share brake; ``row_limit`` ends the run after so many rows. One run is open for each ``filter``;
    ``options`` are plain JSON, kept with the run for whoever acts.
    """

    started_by: str
    opening: bool = True
    granting: bool = True
    force: bool = False
    row_limit: int | None = None
    filter: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
