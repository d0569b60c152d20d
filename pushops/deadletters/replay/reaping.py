"""Letters whose holders are gone: taken back, or in doubt where they may have been sent."""

from collections import Counter
from typing import Final

from pushops.deadletters.letter import ReplayOutcome
from pushops.deadletters.store import reaping as store
from pushops.deadletters.store.reaping import Reaped
from pushops.runtime import Runtime
from pushops.sweeps import store as sweeps_store
from pushops.sweeps.sql import PLAN_INDEX

ROWS: Final = 1_000


def reap(rt: Runtime) -> list[Reaped]:
    """Take back what dead workers had claimed; the run that had claimed it counts what is in doubt by it."""
    settings = rt.settings
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        ids = store.expired(tx, ROWS)
        if not ids:
            return []
        found = store.reap(tx, ids, most=settings.replay_attempts, base=settings.retry_base, cap=settings.retry_cap)
        doubted = Counter(one.run_id for one in found if one.opened and one.run_id is not None)
        for run_id, letters in sorted(doubted.items()):
            sweeps_store.add_outcomes(tx, run_id, {ReplayOutcome.IN_DOUBT: letters})
    rt.events.emit("replay.claims_expired", rows=len(found), in_doubt=sum(one.opened for one in found))
    return found
