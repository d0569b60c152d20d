"""``purge-payloads``: an object goes when its message is over, its name after it, and never the other way round."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import scalar_row

from pushops.db.transaction import render
from pushops.delivery import objects, payloads
from pushops.delivery.errors import PayloadStoreError
from pushops.delivery.objects import MARK
from pushops.retention import payloads as purging
from pushops.retention.payload_rows import Named
from pushops.retention.policies import PURGE_MESSAGES, PURGE_PAYLOADS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import sql
from pushops.sweeps.sql import Held
from pushops.sweeps.sweep import Page, Walk
from tests.conftest import Recorded
from tests.letters import CLAIMED, CLOSED, park_letter
from tests.sending import Pg
from tests.sweepdb import batch_states, drive, open_run, receipts

MADE = datetime(2026, 10, 21, tzinfo=UTC)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


@dataclass
class Store:
    """Messages with payloads, and the folder that these lie in."""

    rt: Runtime
    pg: Pg
    folder: Path

    def add(self, *, expired: timedelta | None, closed: timedelta | None, state: str = "closed") -> UUID:
        """A message that expired and closed so long ago, with an object."""
        message_id = uuid4()
        ref, version = payloads.store(self.rt, message_id, MADE, b"hello")
        self.pg.execute(
            """INSERT INTO push_message (message_id, ttl, state, first_dispatched_at, expires_at, closed_at,
                                         payload_ref, payload_key_version, payload_bytes)
               VALUES (%(id)s, 60, %(state)s, now() - %(expired)s::interval, now() - %(expired)s::interval,
                       now() - %(closed)s::interval, %(ref)s, %(version)s, 5)""",
            {"id": message_id, "state": state, "expired": expired, "closed": closed, "ref": ref, "version": version},
        )
        return message_id

    def old(self, count: int = 1) -> list[UUID]:
        return [self.add(expired=hours(25), closed=hours(25)) for _ in range(count)]

    @property
    def named(self) -> set[UUID]:
        query = "SELECT message_id FROM push_message WHERE payload_ref IS NOT NULL OR payload_key_version IS NOT NULL"
        return {row[0] for row in self.pg.execute(query)}

    @property
    def lying(self) -> set[UUID]:
        return {UUID(path.name) for path in self.folder.rglob("*") if path.is_file() and path.name != MARK}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"payload_store": (tmp_path / "payloads").as_uri()})


@pytest.fixture
def store(runtime: Runtime, pg: Pg, tmp_path: Path) -> Store:
    return Store(runtime, pg, tmp_path / "payloads")


def test_an_object_goes_a_day_after_its_message_expired_and_not_before(store: Store, runtime: Runtime, pg: Pg) -> None:
    kept = {
        store.add(expired=hours(23), closed=hours(23)),
        store.add(expired=hours(23), closed=hours(40)),
        store.add(expired=hours(25), closed=None, state="sending"),
        store.add(expired=None, closed=hours(23)),
        store.add(expired=None, closed=None, state="waiting"),
    }
    over = {
        store.add(expired=hours(25), closed=hours(40)),
        store.add(expired=hours(25), closed=hours(1)),
        store.add(expired=None, closed=hours(25)),
    }
    assert store.lying == kept | over
    run = drive(runtime, PURGE_PAYLOADS)
    assert (run.state, receipts(pg, run.run_id)) == ("done", (3, 0))
    assert store.named == store.lying == kept
    assert receipts(pg, drive(runtime, PURGE_PAYLOADS).run_id) == (0, 0)


def test_letters_that_could_still_be_sent_keep_it_and_others_do_not(store: Store, runtime: Runtime, pg: Pg) -> None:
    """None outlives its message's expiry, as long as nobody writes one that does."""
    parked, claimed, closed, stale = store.old(4)
    for message_id, columns in ((parked, {}), (claimed, CLAIMED), (closed, CLOSED)):
        park_letter(pg, message_id=f"'{message_id}'::uuid", **columns)
        park_letter(pg, message_id=f"'{message_id}'::uuid", **CLOSED)
    park_letter(pg, message_id=f"'{stale}'::uuid", expires_at="now() - interval '25 hours'")
    drive(runtime, PURGE_PAYLOADS)
    assert store.named == store.lying == {parked, claimed}


def test_a_message_stays_for_as_long_as_it_names_an_object(store: Store, runtime: Runtime, pg: Pg) -> None:
    message_id = store.add(expired=hours(24 * 100), closed=hours(24 * 100))
    pg.execute("UPDATE push_message SET message_id = id_floor(now() - interval '100 days')")
    drive(runtime, PURGE_MESSAGES)
    assert store.lying == {message_id}
    assert len(store.named) == 1
    drive(runtime, PURGE_PAYLOADS)
    drive(runtime, PURGE_MESSAGES)
    assert store.lying == set()
    assert pg.execute("SELECT FROM push_message").fetchall() == []


def test_an_object_that_is_gone_already_is_no_fault(store: Store, runtime: Runtime, pg: Pg) -> None:
    there, gone = store.old(2)
    runtime_refs = dict(pg.execute("SELECT message_id, payload_ref FROM push_message").fetchall())
    payloads.forget(runtime, runtime_refs[gone])
    assert store.lying == {there}
    run = drive(runtime, PURGE_PAYLOADS)
    assert (store.named, store.lying) == (set(), set())
    assert receipts(pg, run.run_id) == (2, 0)


@pytest.mark.parametrize("away", ["moved", "another", "unreadable"])
def test_a_store_that_is_away_costs_no_name(
    away: str, store: Store, runtime: Runtime, pg: Pg, recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = set(store.old(3))
    elsewhere = store.folder.with_name("elsewhere")
    if away == "unreadable":

        def refuse(*_: Any) -> None:
            raise PayloadStoreError("expected the payload store to delete an object, got GenericError")

        monkeypatch.setattr(objects, "remove", refuse)
    else:
        store.folder.rename(elsewhere)
    if away == "another":
        store.folder.mkdir()
    run = drive(runtime, PURGE_PAYLOADS, until=lambda _: True)
    assert batch_states(pg, run.run_id) == {"due": 1}
    assert (store.named, receipts(pg, run.run_id)) == (over, (0, 0))
    assert "payload.held" in [name for _, name, _ in recorded]
    monkeypatch.undo()
    if away != "unreadable":
        if store.folder.exists():
            store.folder.rmdir()
        elsewhere.rename(store.folder)
    assert store.lying == over
    run = drive(runtime, PURGE_PAYLOADS)
    assert (run.state, store.named, store.lying, receipts(pg, run.run_id)) == ("done", set(), set(), (3, 0))


def test_what_is_deleted_is_deleted_outside_any_transaction(
    store: Store, runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.old()
    open_then: list[int] = []
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE application_name = 'pushops' AND datname = current_database() AND xact_start IS NOT NULL"""
    remove = objects.remove

    def look(*arguments: Any) -> None:
        open_then.extend(row[0] for row in pg.execute(query))
        remove(*arguments)

    monkeypatch.setattr(objects, "remove", look)
    drive(runtime, PURGE_PAYLOADS)
    assert (open_then, store.lying) == ([0], set())


def test_an_act_that_has_no_time_left_or_is_asked_to_stop_goes_on_later(runtime: Runtime) -> None:
    rows = [Named(uuid4(), f"2026/10/21/{n}") for n in range(250)]
    payloads.store(runtime, uuid4(), MADE, b"the store is ours")
    past, future = time.monotonic() - 1, time.monotonic() + 60
    for stop_at, asked in ((past, False), (future, True)):
        page = Page("", "", {}, rows, "", {}, MADE, stop_at, lambda asked=asked: asked)  # type: ignore[misc]
        acted = purging.ACTING.act(runtime, page)
        assert (acted.rows, acted.again) == (100, timedelta())


@pytest.fixture
def many(pg: psycopg.Connection[Any]) -> None:
    pg.execute("ALTER TABLE push_message SET (autovacuum_enabled = off)")
    pg.execute(
        """INSERT INTO push_message (ttl, state, first_dispatched_at, expires_at, closed_at, payload_ref)
           SELECT 60, 'closed', at, at, at, CASE WHEN n %% 2 = 0 THEN n::text END
             FROM (SELECT n, now() - n * interval '1 minute' AS at FROM generate_series(1, 20000) AS n) AS rows""",
        {},
    )


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.usefixtures("many")
def test_payloads_are_walked_along_their_index(analyzed: bool, runtime: Runtime, pg: Pg) -> None:
    if analyzed:
        pg.execute("ANALYZE push_message")
    run = open_run(runtime, PURGE_PAYLOADS)
    params: dict[str, Any] = run.cutoff_times | sql.floors(PURGE_PAYLOADS) | {"held": [], "rows": 2000, "page": 1000}
    bounds = sql.bounds("lo", ["2020-01-01", str(uuid4())]) | sql.bounds("hi", ["2090-01-01", str(uuid4())])
    clause = sql.page_clause(PURGE_PAYLOADS, Walk.INDEX, has_lo=True, held=Held())
    for query in (sql.page_ends(PURGE_PAYLOADS, has_cursor=False), sql.count_left(PURGE_PAYLOADS, clause)):
        planner = sql.PLAN_PAGES if "WINDOW" in query else sql.PLAN_INDEX
        with runtime.db.transaction(planner=planner) as tx:
            cursor = tx.conn.cursor(row_factory=scalar_row)
            explained = cursor.execute(b"EXPLAIN " + render(query, tx.schema), params | bounds, prepare=False)
            plan = "\n".join(explained.fetchall())
        assert "push_message_payload" in plan, plan
        assert "Seq Scan on push_message" not in plan, plan
