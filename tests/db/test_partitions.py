"""The ledger's weeks: made ahead once, found whatever the moment, dropped only when all in them is over."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pushops.delivery import partitions, retiring
from pushops.delivery.retiring import Retirement
from pushops.runtime import Runtime
from tests.ledger import age_freely
from tests.sending import Pg, make_live, message, sent

LONG_AGO = timedelta(days=150)


def weeks(pg: Pg) -> list[str]:
    found = pg.execute(
        """SELECT c.relname FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
            WHERE inhparent = 'push_dispatch'::regclass ORDER BY 1"""
    )
    return [name for (name,) in found]


def tables(pg: Pg) -> list[str]:
    found = pg.execute("SELECT relname FROM pg_class WHERE relname ~ '^push_dispatch_\\d{8}$' ORDER BY 1")
    return [name for (name,) in found]


def id_of(pg: Pg, ago: timedelta) -> UUID:
    row = pg.execute("SELECT id_floor(now() - %s)", [ago]).fetchone()
    assert row is not None
    found: UUID = row[0]
    return found


def old_week(rt: Runtime, pg: Pg, *, expired_ago: timedelta = timedelta(days=100), state: str = "ended") -> str:
    """A week of long ago with one message and one row."""
    message_id = id_of(pg, LONG_AGO)
    name = partitions.make_for(rt, message_id)
    assert name is not None
    pg.execute(
        """INSERT INTO push_message (message_id, ttl, state, first_dispatched_at, expires_at, closed_at)
           VALUES (%s, 60, 'closed', now() - %s, now() - %s, now() - %s)""",
        [message_id, LONG_AGO, expired_ago, expired_ago],
    )
    pg.execute(
        """INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority, state,
                  outcome, ended_at, claim_token, next_attempt_at, expires_at)
           VALUES (%(id)s, '\\x00', %(id)s, 1, 1, 1, %(state)s, CASE WHEN %(state)s = 'ended' THEN 'accepted' END,
                   CASE WHEN %(state)s = 'ended' THEN now() END,
                   CASE WHEN %(state)s = 'claimed' THEN gen_random_uuid() END, now(), now())""",
        {"id": message_id, "state": state},
    )
    return name


def test_a_message_of_every_moment_has_its_week(runtime: Runtime, pg: Pg) -> None:
    for at in (datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 11, 23, 59, 59, 999000, tzinfo=UTC)):
        row = pg.execute("SELECT id_floor(%s)", [at]).fetchone()
        assert row is not None
        assert partitions.made_at(row[0]) == at
        partitions.make_for(runtime, row[0])
        pg.execute(
            """INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority,
                      next_attempt_at, expires_at) VALUES (%(id)s, '\\x00', %(id)s, 1, 1, 1, now(), now())""",
            {"id": row[0]},
        )
    assert pg.execute("SELECT count(*) FROM push_dispatch_20260105").fetchone() == (2,)


def test_weeks_are_made_ahead_once(runtime: Runtime, pg: Pg) -> None:
    assert partitions.make_ahead(runtime) == []
    assert len(weeks(pg)) == 3
    made = partitions.make_ahead(runtime, ahead=4)
    assert weeks(pg)[3:] == made
    assert len(made) == 2


def test_a_week_made_later_is_like_those_of_the_migration(runtime: Runtime, pg: Pg) -> None:
    first, (made,) = weeks(pg)[0], partitions.make_ahead(runtime, ahead=3)
    assert indexes(pg, made) == indexes(pg, first)
    assert options(pg, made) == options(pg, first)
    assert constraints(pg, made) == constraints(pg, first)


def indexes(pg: Pg, table: str) -> set[str]:
    rows = pg.execute("SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass", [table])
    return {text.split(" USING ")[1] for (text,) in rows}


def options(pg: Pg, table: str) -> Any:
    return pg.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [table]).fetchone()


def constraints(pg: Pg, table: str) -> set[str]:
    rows = pg.execute("SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'", [table])
    return {name for (name,) in rows}


def test_two_that_make_weeks_at_once_harm_nobody(runtime: Runtime, pg: Pg) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [
            name for names in pool.map(lambda _: partitions.make_ahead(runtime, ahead=8), range(4)) for name in names
        ]
    assert len(weeks(pg)) == 9
    assert set(made) == set(weeks(pg)[3:])


def test_a_table_that_was_never_attached_is_attached(runtime: Runtime, pg: Pg) -> None:
    week = datetime.strptime(weeks(pg)[-1][-8:], "%Y%m%d").replace(tzinfo=UTC) + timedelta(days=7)
    pg.execute(f"CREATE TABLE {partitions.name_of(week)} (LIKE push_dispatch INCLUDING CONSTRAINTS)".encode())
    assert partitions.make_ahead(runtime, ahead=3) == [partitions.name_of(week)]
    assert partitions.name_of(week) in weeks(pg)


def test_a_week_that_is_over_is_dropped(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3)
    kept = sent(runtime)
    name = old_week(runtime, pg)
    assert [(each.partition, each.outcome) for each in retiring.retire(runtime)] == [(name, Retirement.DROPPED)]
    assert name not in tables(pg)
    assert message(pg, kept)["recipients"] == 3
    assert len(weeks(pg)) == 3
    assert retiring.retire(runtime) == []


@pytest.mark.parametrize("state", ["due", "claimed", "paused"])
def test_a_week_with_a_row_to_act_on_is_kept(runtime: Runtime, pg: Pg, state: str) -> None:
    name = old_week(runtime, pg, state=state)
    assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.KEPT]
    assert name in weeks(pg)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE push_message SET expires_at = now() - interval '89 days'",
        "UPDATE push_message SET closed_at = NULL, state = 'sending'",
        "UPDATE push_message SET first_dispatched_at = NULL, expires_at = NULL, closed_at = now() - interval '1 day'",
    ],
)
def test_a_week_with_a_message_that_is_not_over_is_kept(runtime: Runtime, pg: Pg, change: str) -> None:
    name = old_week(runtime, pg)
    age_freely(pg)
    pg.execute(change.encode())
    assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.KEPT]
    assert name in weeks(pg)


def test_the_last_week_stays(runtime: Runtime, pg: Pg) -> None:
    name = old_week(runtime, pg)
    for other in weeks(pg):
        if other != name:
            pg.execute(f"DROP TABLE {other}".encode())
    assert retiring.retire(runtime) == []
    assert weeks(pg) == [name]


def test_a_detaching_that_was_cut_off_is_finalised(
    runtime: Runtime, pg: Pg, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = old_week(runtime, pg)
    monkeypatch.setattr(retiring, "PATIENCE", timedelta(milliseconds=300))
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM pushops.push_dispatch")  # what detaching waits for
        assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.FAILED]
    pending = pg.execute("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = %s::regclass", [name]).fetchone()
    assert pending == (True,)
    assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.DROPPED]
    assert name not in tables(pg)


def test_what_was_detached_and_not_dropped_is_dropped(runtime: Runtime, pg: Pg) -> None:
    name = old_week(runtime, pg)
    pg.execute(f"ALTER TABLE push_dispatch DETACH PARTITION {name}".encode())
    assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.DROPPED]
    assert name not in tables(pg)


def test_a_row_written_between_the_look_and_the_detaching_brings_its_week_back(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = old_week(runtime, pg)

    def late(_: Runtime, __: Any) -> None:
        pg.execute("UPDATE push_dispatch SET state = 'due', outcome = NULL, ended_at = NULL")

    monkeypatch.setattr(retiring, "_why_not", late)
    assert [each.outcome for each in retiring.retire(runtime)] == [Retirement.KEPT]
    assert name in weeks(pg)
    assert pg.execute("SELECT state FROM push_dispatch").fetchall() == [("due",)]


def test_two_that_retire_at_once_drop_it_once(runtime: Runtime, pg: Pg) -> None:
    name = old_week(runtime, pg)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: retiring.retire(runtime), range(2)))
    retiring.retire(runtime)
    assert name not in tables(pg)
    assert len(weeks(pg)) == 3


def paused(pg: Pg, _: Any) -> dict[str, Any]:
    pg.execute("INSERT INTO sweep_control (sweep, paused_at, paused_by) VALUES ('purge-ledger', now(), 'me')")
    return {}


def stopped(_: Pg, folder: Any) -> dict[str, Any]:
    (folder / "stop").touch()
    return {"stop_file": folder / "stop"}


@pytest.mark.parametrize("close", [paused, stopped])
def test_an_operator_can_hold_it(
    runtime: Runtime, pg: Pg, tmp_path: Any, close: Callable[[Pg, Any], dict[str, Any]]
) -> None:
    name = old_week(runtime, pg)
    changed = runtime.settings.model_copy(update=close(pg, tmp_path))
    assert retiring.retire(Runtime(changed, runtime.db, None, runtime.events)) == []
    assert name in weeks(pg)
