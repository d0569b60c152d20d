"""``purge-payloads``: the objects of messages that are over are deleted, then no row names them any more."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from pushops.db import Tx
from pushops.delivery import payloads
from pushops.delivery.errors import PayloadStoreError
from pushops.retention import payload_rows
from pushops.retention.payload_rows import Named
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sweep import Acted, Acting, Batch, Page, RunOptions

PAGE: Final = 1_000
AT_ONCE: Final = 100  # objects in one request: what is asked meanwhile is heard after each
AWAY: Final = timedelta(minutes=1)  # before a store that is away is asked again


def page_rows(settings: Settings, _options: RunOptions) -> int:
    return min(PAGE, settings.sweep_batch_rows)


def _claim(tx: Tx, batch: Batch) -> list[Named]:
    return payload_rows.find(tx, batch)


def _act(rt: Runtime, page: Page) -> Acted:
    """Delete as many as there is time for. An object may be gone whose deletion nobody confirmed: the next look at it
    finds that; no row lets go of one that may still be there.
    """
    gone: list[Named] = []
    for some in _chunks(page.rows):
        if gone and (page.asked() or time.monotonic() > page.stop_at):
            return Acted(len(gone), again=timedelta(), result=gone)
        try:
            payloads.remove(rt, [each.payload_ref for each in some])
        except PayloadStoreError as error:
            rt.events.emit("payload.held", run=page.run_id, batch=page.batch_id, error=str(error))
            return Acted(len(gone), again=AWAY, result=gone)
        gone += some
    return Acted(len(gone), result=gone)


def _settle(tx: Tx, _batch: Batch, acted: Acted) -> int:
    return payload_rows.forget(tx, acted.result)


def _chunks(rows: Sequence[Named]) -> Iterator[Sequence[Named]]:
    yield from (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))


ACTING: Final = Acting(_claim, _act, _settle)
