"""What a page of a drain reads does not grow with the letters that it is not about, nor with their attempts."""

from typing import Final
from uuid import uuid4

from pushops.deadletters.store import gates, replaying
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX
from tests.letters import park_letters
from tests.replaying import Pg, park
from tests.sending import make_live, sent

OTHERS: Final = 500
TRIED: Final = """
INSERT INTO push_dlq_attempt (replay_key, attempt, kind, at, settled_at, outcome)
SELECT replay_key, n, 'live', now(), now(), 'unavailable' FROM push_dlq, generate_series(1, 10) AS n"""
READ: Final = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'push_dlq_attempt'"""


def test_sifting_reads_the_attempts_of_its_own_letters_only(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 5, hosts=("fcm.googleapis.com",), services=("fcm",))
    ids = park(pg, sent(runtime, campaign="c"))
    park_letters(pg, OTHERS)
    pg.execute(TRIED)
    pg.execute("ANALYZE push_dlq, push_dlq_attempt")
    with runtime.db.transaction(planner=PLAN_INDEX) as tx:
        found = replaying.sift(
            tx, "dlq_id = ANY (%(ids)s::uuid[])", {"ids": ids}, gates.params(["test"]), by="test", run_id=uuid4()
        )
        (read,) = tx.scalars(READ, {})
    assert len(found) == len(ids)
    assert read <= 10 * len(ids)
