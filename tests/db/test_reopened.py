"""What a lifted block gives back to the ledger."""

import pytest

from pushops.delivery import cancelling, finishing
from pushops.delivery.store import ledger as store
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX
from tests import ledger
from tests.answering import subscribers
from tests.rows import Pg


@pytest.mark.parametrize(("cancelled", "state", "outcome"), [(False, "due", None), (True, "ended", "key_mismatch")])
def test_rows_are_due_again_unless_their_message_was_cancelled(
    runtime: Runtime, pg: Pg, state: str, outcome: str | None, *, cancelled: bool
) -> None:
    """Else a message that is closed would keep a row that nobody ends while its lane is held for want of a key."""
    message = ledger.message(pg)
    ledger.queue(pg, message, subscribers(pg, 1), ledger.lane(pg))
    pg.execute("UPDATE push_dispatch SET state = 'ended', outcome = 'key_mismatch', ended_at = now(), attempts = 1")
    if cancelled:
        cancelling.cancel(runtime, message)
        finishing.finish(runtime)
    ((digest,),) = pg.execute("SELECT endpoint_hash FROM push_dispatch").fetchall()
    with runtime.db.transaction(planner=PLAN_INDEX) as tx:
        store.reopen(tx, [message], [digest])
        finishing.reopen(tx, [message])
    assert pg.execute("SELECT state, outcome FROM push_dispatch").fetchall() == [(state, outcome)]
