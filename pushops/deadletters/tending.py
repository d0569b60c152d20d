"""Letters that are owed or wait in the spool are brought into their table, as often as it takes."""

import time
from datetime import timedelta
from typing import Final

from pushops.deadletters import spool
from pushops.deadletters.spool import Held, SpoolError
from pushops.deadletters.store import parking as store
from pushops.deadletters.store.parking import Owed
from pushops.deadletters.writer import PAGE, explain, pages, write_apart
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX

FRESH: Final = timedelta(seconds=5)  # who ended the row is about to write its letter
BUDGET: Final = 20.0  # seconds


def tend(rt: Runtime) -> int:
    """Write what is owed and what waits in this host's spool, for so long; how many letters. Raises DatabaseError.

    Twice, or by two at once, is harmless: a letter is written once.
    """
    until = time.monotonic() + BUDGET
    return _pay(rt, until) + _ingest(rt, until)


def _pay(rt: Runtime, until: float) -> int:
    """Page by page: a letter that the table does not take is not in the way of those behind it."""
    rows, after = 0, None
    while time.monotonic() < until:
        page = _owed(rt, after)
        if not page:
            break
        after = page[-1]
        letters = [owed for owed in page if not owed.gone]
        refused = write_apart(rt, letters)
        rows += len(letters) - len(refused)
        _complain(rt, len(refused), "the table refuses them")
    _say(rt, rows, "owed")
    return rows


def _owed(rt: Runtime, after: Owed | None) -> list[Owed]:
    """A page of letters; those whose week of the ledger is gone are owed no more: nothing is left to make them of."""
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        page = store.owed(tx, older=FRESH, after=after, limit=PAGE)
        gone = [(owed.message_id, owed.endpoint_hash) for owed in page if owed.gone]
        store.forget(tx, gone)
    _complain(rt, len(gone), "their ledger rows are gone")
    return page


def _ingest(rt: Runtime, until: float) -> int:
    rows = 0
    for path in spool.files(rt.settings):
        if time.monotonic() > until:
            break
        try:
            with spool.taken(path) as held:
                rows += 0 if held is None else _take_in(rt, held)
        except (SpoolError, OSError) as error:
            _complain(rt, 1, explain(error))
    _say(rt, rows, "spool")
    return rows


def _take_in(rt: Runtime, held: Held) -> int:
    """What the table does not take stays beside the file, with the lines that are torn."""
    refused = [letter for page in pages(held.letters) for letter in write_apart(rt, page)]
    held.broken.extend(map(spool.line, refused))
    _complain(rt, len(held.broken), "lines that are no letters are kept aside")
    return len(held.letters) - len(refused)


def _say(rt: Runtime, rows: int, source: str) -> None:
    if rows:
        rt.events.emit("dlq.ingested", rows=rows, source=source)


def _complain(rt: Runtime, rows: int, why: str) -> None:
    if rows:
        rt.events.emit("dlq.spool_failed", rows=rows, error=why)
