"""An adoption that is killed, in a sweep and while an index is built: the next run ends it, and no write is lost."""

import psycopg
import pytest

from pushops.settings import Settings
from tests.adopting import INSERT, Pg, assert_adopted, assert_nothing_lost, make_legacy, traffic
from tests.commands import call, spawn
from tests.sweeping import count, expire_leases, quick, wait_until

pytestmark = pytest.mark.long

RUN = ("adopt", "run", "public.subscribers", "--latest", "updated_at", "--yes")
RECEIPTS = "SELECT count(*) FROM sweep_receipt JOIN sweep_run USING (run_id) WHERE sweep LIKE '{sweep}:%'"
BACKFILLED = RECEIPTS.format(sweep="backfill-endpoint-hash")
BUILDING = "SELECT count(*) FROM pg_stat_progress_create_index"


@pytest.fixture
def hurried(settings: Settings) -> Settings:
    return quick(settings, sweep_batch_rows=50, sweep_pause_ms=100)


@pytest.mark.parametrize("sweep", ["backfill-endpoint-hash", "settle-duplicates"])
def test_one_killed_in_the_middle_of_a_sweep_is_ended_by_the_next(
    hurried: Settings, pg: Pg, database_url: str, sweep: str
) -> None:
    make_legacy(pg, 1000)
    receipts = RECEIPTS.format(sweep=sweep)
    with traffic(database_url) as written:
        with spawn(*RUN, settings=hurried) as victim:
            wait_until(lambda: count(pg, receipts) > 1, expected=f"batches of {sweep}")
            victim.kill()
            victim.communicate()
        assert count(pg, "SELECT count(*) FROM sweep_run WHERE closed_at IS NULL") == 1
        expire_leases(pg)
        done = call(*RUN, settings=hurried)
    assert done.code == 0, done.text
    assert_adopted(pg)
    assert_nothing_lost(pg, written)


def test_one_killed_while_it_builds_an_index_is_ended_by_the_next(hurried: Settings, pg: Pg, database_url: str) -> None:
    make_legacy(pg, 300)
    with traffic(database_url, known=300) as written:
        with spawn(*RUN, settings=hurried) as victim, psycopg.connect(database_url) as writer:
            wait_until(lambda: count(pg, BACKFILLED) > 0, expected="a backfill that has begun")
            writer.execute(INSERT, ["slow", "https://push.example.org/slow", "slow"])  # what an index waits for
            wait_until(lambda: count(pg, BUILDING) == 1, expected="an index that is built")
            victim.kill()
            victim.communicate()
            pg.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_progress_create_index")
            wait_until(lambda: count(pg, BUILDING) == 0, expected="nobody who builds")
        assert count(pg, "SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 1
        done = call(*RUN, settings=hurried)
    assert done.code == 0, done.text
    assert_adopted(pg)
    assert_nothing_lost(pg, written)
