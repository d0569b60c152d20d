"""Workers that die between an object and its row, and makers that die between their object and their row."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from pushops.delivery import objects, payloads
from pushops.retention import orphans
from pushops.retention.policies import PURGE_PAYLOADS
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.commands import spawn
from tests.sending import Pg
from tests.sweeping import (
    assert_every_batch_has_one_receipt,
    count,
    expire_leases,
    finish,
    publishing,
    run_of,
    start,
    state_of,
    wait_until,
    workers,
)

pytestmark = pytest.mark.long

NAMED = "SELECT count(*) FROM push_message WHERE payload_ref IS NOT NULL"


@pytest.fixture
def hurried(hurried: Settings, tmp_path: Path) -> Settings:
    """A store of the test's own, and locks that are waited for until whoever waits is killed."""
    place = (tmp_path / "payloads").as_uri()
    return hurried.model_copy(update={"payload_store": place, "lock_timeout": timedelta(seconds=30)})


def lying(rt: Runtime) -> int:
    return sum(map(len, objects.pages(rt.settings)))


def make_old(rt: Runtime, pg: Pg, messages: int) -> None:
    """Messages that expired two days ago, each with its object."""
    made = pg.execute(
        """INSERT INTO push_message (message_id, ttl, state, first_dispatched_at, expires_at, closed_at)
           SELECT new_id(), 60, 'closed', at, at, at
             FROM (SELECT now() - interval '2 days' AS at FROM generate_series(1, %s)) AS made
           RETURNING message_id, expires_at""",
        [messages],
    ).fetchall()
    for message_id, at in made:
        ref, version = payloads.store(rt, UUID(str(message_id)), at, b"hello")
        query = "UPDATE push_message SET payload_ref = %s, payload_key_version = %s WHERE message_id = %s"
        pg.execute(query, [ref, version, message_id])


def test_a_worker_killed_between_the_objects_and_the_commit_leaves_names_that_the_next_one_ends(
    hurried: Settings, engine: Runtime, pg: Pg, database_url: str
) -> None:
    make_old(engine, pg, 30)  # a page of twenty, and one of ten
    options = "-c search_path=pushops"
    with publishing(hurried):
        with psycopg.connect(database_url, options=options) as rival, workers(hurried, 1, pool="solo") as victim:
            rival.execute("SELECT FROM push_message FOR UPDATE")
            run = run_of(start(engine, PURGE_PAYLOADS))
            wait_until(lambda: lying(engine) == 10, expected="a page's objects gone")
            victim.kill()
        assert count(pg, NAMED) == 30
        expire_leases(pg)
        with workers(hurried, 1) as heir:
            finish(engine, pg, run, heir)
    assert (state_of(pg, run), count(pg, NAMED), lying(engine)) == (("done", None), 0, 0)
    assert_every_batch_has_one_receipt(pg, run, rows=30)


def test_the_object_of_a_maker_that_died_before_its_row_is_an_orphan(
    hurried: Settings, engine: Runtime, pg: Pg, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the middle of its INSERT, its object put, when it is killed."""
    with psycopg.connect(database_url, options="-c search_path=pushops") as rival:
        rival.execute("LOCK TABLE push_message IN EXCLUSIVE MODE")
        maker = spawn("message", "send", "--payload", "hello", "--everyone", settings=hurried)
        wait_until(lambda: lying(engine) == 1, expected="the payload in its store")
        maker.kill()
        maker.communicate()
    assert count(pg, "SELECT count(*) FROM push_message") == 0
    assert orphans.find(engine, delete=True).deleted == 0  # so young, it might be about to be named
    monkeypatch.setattr(orphans, "AGE", timedelta(seconds=-1))
    assert orphans.find(engine, delete=True).deleted == 1
    assert lying(engine) == 0
