"""A guard whose settler and whose operator died half-way: beat goes on, with what was before the word and no more."""

from collections.abc import Sequence
from uuid import UUID

from pushops.delivery import guard, observing
from pushops.delivery.observing import Kind, Observation, Observed
from pushops.delivery.store import guard as store
from pushops.delivery.store import health
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import Evidence, Finding, apply_batch
from pushops.sweeps.sql import PLAN_INDEX
from tests import ledger
from tests.answering import states, subscribers
from tests.rows import Pg


def answers(rt: Runtime, lane: int, ids: Sequence[UUID], finding: Finding) -> Observed:
    """Settled by somebody who dies before anything is turned back."""
    kind = Kind.ACCEPTED if finding is Finding.ACCEPTED else Kind.TERMINAL
    with rt.db.transaction() as tx:
        began = tx.now
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        seen = [Observation(lane, kind, answered=True, code="code") for _ in ids]
        observed = observing.observe(tx, rt.settings, "fcm", seen)
        found = [Evidence(row, 1, finding, began, lane_id=lane) for row in ids]
        apply_batch(tx, rt.settings, "fcm", found, observed.guard_id)
    return observed


def test_what_was_believed_since_the_operators_word_is_not_turned_back(runtime: Runtime, pg: Pg) -> None:
    lane, ids = ledger.lane(pg), subscribers(pg, 40)
    answers(runtime, lane, ids[:19], Finding.GONE)
    opened = answers(runtime, lane, ids[19:21], Finding.GONE).opened_guard
    assert opened is not None
    with runtime.db.transaction() as tx:
        health.lock(tx, "fcm")
        store.close(tx, opened, "rejected", "ann", "looked")
    answers(runtime, lane, ids[30:31], Finding.ACCEPTED)
    answers(runtime, lane, ids[31:33], Finding.GONE)
    assert states(pg) == {"active": 19, "revoked": 21}
    assert guard.tend(runtime) == 0
    assert states(pg) == {"active": 38, "revoked": 2}
