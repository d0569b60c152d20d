"""``apply-erasures``: the sweep that carries requests on, rung at once and looked for every minute."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.erasure import applying
from pushops.erasure.store import sweeping as store
from pushops.erasure.words import Progress
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sweep import Acted, Acting, Batch, Column, Page, RunOptions, Sweep

NAME: Final = "apply-erasures"
PAGE: Final = 20  # requests of a batch: several workers share a morning's
WAIT: Final = timedelta(seconds=2)  # before a request is looked at again for which somebody has a row in hand


@dataclass(frozen=True)
class Due:
    request_id: UUID


def page_rows(settings: Settings, _options: RunOptions) -> int:
    return min(PAGE, settings.sweep_batch_rows)


def _claim(tx: Tx, batch: Batch) -> Sequence[UUID]:
    return store.due(tx, batch)


def _act(rt: Runtime, page: Page) -> Acted:
    """One after the other. What must wait does not keep those behind it; ``again`` comes back for it."""
    done, left = 0, timedelta()
    waiting = False
    for request_id in page.rows:
        if page.asked():
            return Acted(done, again=timedelta())
        match applying.carry_on(rt, request_id, page.stop_at):
            case Progress.DONE | Progress.HELD:
                done += 1
            case Progress.MORE:
                return Acted(done, again=timedelta())
            case Progress.WAITS:
                waiting, left = True, WAIT
    return Acted(done, again=left) if waiting else Acted(done)


def _settle(_tx: Tx, _batch: Batch, acted: Acted) -> int:
    return acted.rows


APPLY_ERASURES: Final = Sweep(
    name=NAME,
    meaning="who asked to be forgotten is, in every store: pushops subscription erase, pushops erasure list",
    table="{schema}.erasure_request",
    index="erasure_request_open",
    key=(Column("asked_at", "timestamptz"), Column("request_id", "uuid")),
    identity=Column("request_id", "uuid"),
    predicate=store.DUE,
    windows=(),
    acting=Acting(_claim, _act, _settle),
    page_rows=page_rows,
)
