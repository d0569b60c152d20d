"""Partitions of configured tables: made ahead, dropped only when over and finished, never somebody else's table."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pushops.delivery import retiring as ledger_retiring
from pushops.errors import RefusedError
from pushops.events import Level
from pushops.retention.partitions import looking, making, retiring, service, store
from pushops.retention.partitions.words import Did, Fate
from pushops.runtime import Runtime
from pushops.sweeps import service as sweeps
from tests.conftest import Recorded
from tests.cutting import Pg, attached, clicks, make_table, steps, tables


def day(pg: Pg, ahead: int) -> str:
    row = pg.execute("SELECT to_char(now() AT TIME ZONE 'UTC' + %s * interval '1 day', 'YYYYMMDD')", [ahead]).fetchone()
    assert row is not None
    return f"clicks_{row[0]}"


def did(fates: list[Fate]) -> list[tuple[str, Did]]:
    return [(fate.partition, fate.did) for fate in fates]


def create(rt: Runtime) -> list[tuple[str, Did]]:
    return did(service.create(rt, "clicks"))


def retire(rt: Runtime, *, dry_run: bool = False) -> list[tuple[str, Did]]:
    return did(service.retire(rt, "clicks", dry_run=dry_run))


def test_days_are_made_ahead_once_and_take_rows(runtime: Runtime, pg: Pg) -> None:
    make_table(pg)
    rt = clicks(runtime)
    wanted = [day(pg, ahead) for ahead in range(3)]
    assert create(rt) == [(name, Did.MADE) for name in wanted]
    assert create(rt) == []
    assert attached(pg) == wanted
    assert steps(pg) == []
    pg.execute("INSERT INTO public.clicks VALUES (1, now(), 'done'), (2, now() + interval '2 days', 'done')")
    assert pg.execute(f"SELECT count(*) FROM public.{wanted[2]}".encode()).fetchone() == (1,)


def test_a_partition_made_ahead_is_like_its_table_and_its_siblings(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 3)
    pg.execute("ALTER TABLE public.clicks ADD CONSTRAINT url_is_short CHECK (length(url) < 100)")
    pg.execute("ALTER TABLE public.clicks ALTER COLUMN status SET DEFAULT 'new'")
    pg.execute("CREATE INDEX clicks_status ON public.clicks (status)")
    pg.execute("ALTER TABLE public.clicks_old_3 SET (fillfactor = 70)")
    (made, *_) = [name for name, _ in create(clicks(runtime))]
    same = pg.execute(
        """SELECT a.reloptions = b.reloptions, (SELECT count(*) FROM pg_index WHERE indrelid = a.oid),
                  (SELECT count(*) FROM pg_index WHERE indrelid = b.oid),
                  (SELECT count(*) FROM pg_index WHERE indrelid = a.oid AND NOT indisvalid)
             FROM pg_class AS a, pg_class AS b WHERE a.relname = %s AND b.relname = 'clicks_old_3'""",
        [made],
    ).fetchone()
    assert same == (True, 2, 2, 0)
    unattached = """SELECT count(*) FROM pg_index AS x LEFT JOIN pg_inherits AS i ON i.inhrelid = x.indexrelid
                     WHERE x.indrelid = %s::regclass AND i.inhparent IS NULL"""
    assert pg.execute(unattached, [f"public.{made}"]).fetchone() == (0,)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("timestamptz", "now()"), ("timestamp", "now() AT TIME ZONE 'UTC'"), ("date", "(now() AT TIME ZONE 'UTC')::date")],
)
def test_a_table_may_be_cut_by_any_type_that_knows_time(runtime: Runtime, pg: Pg, type_: str, value: str) -> None:
    pg.execute("SET TimeZone = 'Pacific/Auckland'")
    pg.execute(f"CREATE TABLE public.clicks (at {type_} NOT NULL, status text) PARTITION BY RANGE (at)".encode())
    rt = clicks(runtime)
    assert len(create(rt)) == 3
    assert create(rt) == []
    pg.execute(f"INSERT INTO public.clicks VALUES ({value}, 'done')".encode())
    (found,) = service.looks(rt, "clicks")
    begin = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert found.parts[0].low == begin
    assert found.parts[0].high == begin + timedelta(days=1)


def test_a_table_may_be_cut_by_uuids_of_version_7(runtime: Runtime, pg: Pg) -> None:
    pg.execute("CREATE TABLE public.clicks (at uuid NOT NULL, status text) PARTITION BY RANGE (at)")
    rt = clicks(runtime, interval="month")
    assert len(create(rt)) == 3
    pg.execute("INSERT INTO public.clicks SELECT new_id(), 'done'")
    (found,) = service.looks(rt, "clicks")
    assert found.parts[0].low is not None
    assert found.parts[0].low.day == 1


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("CREATE TABLE public.clicks (at timestamptz, status text)", "to be a partitioned table"),
        ("CREATE TABLE public.clicks (at int, status text) PARTITION BY RANGE (at)", "got integer"),
        ("CREATE TABLE public.clicks (at date, status text) PARTITION BY LIST (at)", "cut otherwise"),
        ("CREATE TABLE public.clicks (at date, b int, status text) PARTITION BY RANGE (at, b)", "cut otherwise"),
        ("CREATE TABLE public.clicks (at date, status text) PARTITION BY RANGE ((at + 1))", "cut otherwise"),
        ("CREATE TABLE public.clicks (at date, b date, status text) PARTITION BY RANGE (b)", "it is by b"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(
    runtime: Runtime, recorded: list[Recorded], pg: Pg, ddl: str, said: str
) -> None:
    pg.execute(ddl.encode())
    with pytest.raises(RefusedError, match=said):
        service.looks(clicks(runtime), "clicks")
    assert [fate.did for fate in service.create(clicks(runtime), "clicks")] == [Did.FAILED]
    assert [(level, name) for level, name, _ in recorded if name.startswith("partition")] == [
        (Level.ERROR, "partition.failed")
    ]


@pytest.mark.parametrize(
    "condition",
    [
        "statos <> 'done'",
        "status",
        "status <> 'done') OR (true",
        "true; DROP TABLE public.clicks",
        "true -- and so on",
        "status <>",
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(runtime: Runtime, pg: Pg, condition: str) -> None:
    make_table(pg, 30, 3)
    with pytest.raises(RefusedError, match="unfinished of"):
        service.looks(clicks(runtime, unfinished=condition), "clicks")
    assert [fate.did for fate in service.retire(clicks(runtime, unfinished=condition), "clicks")] == [Did.FAILED]
    assert len(attached(pg)) == 2


def test_what_is_over_and_finished_is_dropped_and_the_rest_stays(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 8, 7, 3)
    assert retire(clicks(runtime), dry_run=True) == [(f"clicks_old_{ago}", Did.WOULD_DROP) for ago in (30, 8)]
    assert len(tables(pg)) == 4
    assert retire(clicks(runtime)) == [(f"clicks_old_{ago}", Did.DROPPED) for ago in (30, 8)]
    assert tables(pg) == attached(pg) == ["clicks_old_3", "clicks_old_7"]
    assert steps(pg) == []
    assert retire(clicks(runtime)) == []


@pytest.mark.parametrize("status", ["'new'", "NULL"])
def test_a_day_with_an_unfinished_row_is_kept_and_so_is_one_of_which_nobody_knows(
    runtime: Runtime, pg: Pg, status: str
) -> None:
    make_table(pg, 30, 3)
    pg.execute(f"UPDATE public.clicks SET status = {status} WHERE id = 30".encode())
    assert retire(clicks(runtime), dry_run=True) == [("clicks_old_30", Did.KEPT)]
    assert retire(clicks(runtime)) == [("clicks_old_30", Did.KEPT)]
    assert "clicks_old_30" in attached(pg)


def test_the_last_partition_stays(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 29)
    assert retire(clicks(runtime)) == [("clicks_old_30", Did.DROPPED), ("clicks_old_29", Did.KEPT)]
    assert attached(pg) == ["clicks_old_29"]


def test_a_row_written_between_the_look_and_the_detaching_brings_its_day_back(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(pg, 30, 3)
    detach = retiring._detach

    def late(*arguments: Any) -> None:
        pg.execute("UPDATE public.clicks SET status = 'new' WHERE id = 30")
        detach(*arguments)

    monkeypatch.setattr(retiring, "_detach", late)
    assert retire(clicks(runtime)) == [("clicks_old_30", Did.KEPT)]
    assert pg.execute("SELECT status FROM public.clicks WHERE id = 30").fetchone() == ("new",)
    assert steps(pg) == []


def test_a_detaching_that_was_cut_off_is_finalised(
    runtime: Runtime, pg: Pg, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(pg, 30, 3)
    rt = clicks(runtime)
    with psycopg.connect(database_url) as reader, monkeypatch.context() as patched:
        patched.setattr(retiring, "PATIENCE", timedelta(milliseconds=300))
        reader.execute("SELECT count(*) FROM public.clicks")  # what detaching waits for
        assert retire(rt) == [("clicks_old_30", Did.FAILED)]
    (found,) = service.looks(rt, "clicks")
    assert [part.name for part in found.parts if part.pending] == ["clicks_old_30"]
    assert any("cut off" in problem for problem in service.problems(found))
    assert retire(rt) == [("clicks_old_30", Did.DROPPED)]
    assert tables(pg) == ["clicks_old_3"]


def test_where_a_default_partition_stands_detaching_is_plain_and_its_rows_are_reported(
    runtime: Runtime, pg: Pg
) -> None:
    make_table(pg, 30, 3, default=True)
    rt = clicks(runtime)
    pg.execute("INSERT INTO public.clicks VALUES (1, now() + interval '1 day', 'done')")
    assert create(rt) == [(day(pg, 0), Did.MADE), (day(pg, 1), Did.BLOCKED), (day(pg, 2), Did.MADE)]
    (found,) = service.looks(rt, "clicks")
    assert found.stray == 1
    assert any("1 rows in its default partition clicks_rest" in said for said in service.problems(found))
    assert ("clicks_old_30", Did.DROPPED) in retire(rt)
    assert "clicks_rest" in attached(pg)


def test_a_lock_that_is_held_for_a_moment_is_waited_for(runtime: Runtime, pg: Pg, database_url: str) -> None:
    make_table(pg, 30, 3, default=True)
    rt = clicks(runtime)
    hurried = Runtime(
        rt.settings.model_copy(update={"lock_timeout": timedelta(milliseconds=100)}), rt.db, None, rt.events
    )
    with psycopg.connect(database_url) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT count(*) FROM public.clicks")
        done = pool.submit(retire, hurried)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DETACH%'"
        while pg.execute(waits.encode()).fetchone() == (0,):
            assert not done.done()
        reader.rollback()
        assert done.result(20) == [("clicks_old_30", Did.DROPPED)]


def test_a_table_that_pushops_did_not_make_is_neither_attached_nor_dropped(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 20, 3)
    pg.execute(f"CREATE TABLE public.{day(pg, 0)} (LIKE public.clicks INCLUDING ALL)".encode())
    pg.execute("ALTER TABLE public.clicks DETACH PARTITION public.clicks_old_30")  # an operator's archive
    rt = clicks(runtime)
    assert (day(pg, 0), Did.BLOCKED) in create(rt)
    assert retire(rt) == [("clicks_old_20", Did.DROPPED)]
    assert "clicks_old_30" in tables(pg)


def test_an_old_note_of_a_partition_that_stands_is_forgotten(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 3)
    pg.execute("UPDATE public.clicks SET status = 'new'")
    pg.execute(
        "INSERT INTO partition_step VALUES ('public', 'clicks_old_3', 'public', 'clicks', 'x', 'out', '2026-01-01')"
    )
    retire(clicks(runtime))
    assert steps(pg) == []


def test_gaps_beside_partitions_that_were_cut_otherwise_are_filled(runtime: Runtime, pg: Pg) -> None:
    make_table(pg)
    rt = clicks(runtime, interval="month", ahead=1)
    pg.execute(
        """DO $$ DECLARE first timestamptz := date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'; BEGIN
           EXECUTE format('CREATE TABLE public.clicks_odd PARTITION OF public.clicks FOR VALUES FROM (%L) TO (%L)',
                                first + interval '24 h', first + interval '48 h'); END $$"""
    )
    create(rt)
    (found,) = service.looks(rt, "clicks")
    assert service.problems(found) == []
    pg.execute(
        "INSERT INTO public.clicks SELECT n, now() + n * interval '1 day', 'done' FROM generate_series(0, 25) AS n"
    )


def test_two_that_make_and_two_that_retire_harm_nobody(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 29, 28, 3)
    rt = clicks(runtime, ahead=5)
    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(verb, rt) for verb in (create, retire, create, retire)]
        for work in works:
            work.result(60)
    create(rt)
    retire(rt)
    assert len(attached(pg)) == 7
    assert tables(pg) == attached(pg)
    assert steps(pg) == []


def test_a_retention_that_was_shortened_holds_until_it_is_acknowledged(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 3, 2)
    retire(clicks(runtime, retention="60d"))
    (held,) = service.retire(clicks(runtime), "clicks")
    assert (held.did, held.why) == (
        Did.HELD,
        "window retention shortened from 60d to 7d: pushops partition acknowledge clicks",
    )
    assert len(attached(pg)) == 3
    service.acknowledge(clicks(runtime), "clicks", actor="me")
    assert retire(clicks(runtime)) == [("clicks_old_30", Did.DROPPED)]


def test_a_pause_holds_the_retiring_of_all(runtime: Runtime, pg: Pg) -> None:
    make_table(pg, 30, 3)
    sweeps.pause_named(runtime, service.NAME, actor="me", why="auditors")
    assert [fate.did for fate in service.retire(clicks(runtime), "clicks")] == [Did.HELD]
    assert len(attached(pg)) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_ledger_that_is_held_says_so_and_is_held_for_a_shorter_retention_too(runtime: Runtime, dry_run: bool) -> None:
    service.retire(ledger(runtime, days=90))
    (held,) = service.retire(ledger(runtime, days=60), dry_run=dry_run)
    assert (held.did, held.why) == (
        Did.HELD,
        "window retention shortened from 90d to 60d: pushops partition acknowledge ledger",
    )
    service.acknowledge(ledger(runtime, days=60), "ledger", actor="me")
    assert service.retire(ledger(runtime, days=60), dry_run=dry_run) == []
    sweeps.pause_named(runtime, ledger_retiring.NAME, actor="me", why="auditors")
    (held,) = service.retire(ledger(runtime, days=60), dry_run=dry_run)
    assert (held.did, held.why) == (Did.HELD, "paused by me: auditors")


def ledger(rt: Runtime, *, days: int) -> Runtime:
    changed = rt.settings.model_copy(update={"ledger_retention": timedelta(days=days)})
    return Runtime(changed, rt.db, None, rt.events)


def test_one_table_that_is_wrong_keeps_nobody_from_the_next(runtime: Runtime, pg: Pg) -> None:
    rt = clicks(runtime)  # there is no such table
    fates = service.plan(rt)
    assert ("clicks", Did.FAILED) in did(fates)
    assert {fate.table for fate in fates} == {"clicks"}
    pg.execute("DROP TABLE push_dispatch CASCADE")
    assert {fate.table for fate in service.plan(rt)} == {"clicks", "ledger"}


def test_the_ledger_is_looked_at_as_the_others_are(runtime: Runtime) -> None:
    (found,) = service.looks(runtime)
    assert found.table.name == looking.OURS
    assert len(found.parts) == 3
    assert service.problems(found) == []
    assert service.plan(runtime) == []
    assert [fate.did for fate in making.make(runtime, found)] == []


def test_an_attached_partition_is_printed_as_it_was_asked_for(runtime: Runtime, pg: Pg) -> None:
    make_table(pg)
    create(clicks(runtime))
    (found,) = service.looks(clicks(runtime), "clicks")
    part = found.parts[0]
    assert part.low is not None
    assert part.high is not None
    assert part.bound == store.bound(part.low.isoformat(" ")[:-3], part.high.isoformat(" ")[:-3])
