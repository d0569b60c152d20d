"""Tables of one's own: conditions that mean what they say, keys that can be walked, and nothing deleted beyond them."""

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from pushops import tasks
from pushops.cli.doctor import sweeping
from pushops.cli.doctor.findings import Level
from pushops.errors import RefusedError
from pushops.retention.catalog import catalog
from pushops.retention.own.service import look
from pushops.retention.policies import PURGE_RECEIPTS
from pushops.settings import Settings
from pushops.settings.own import OwnTable
from pushops.sweeps import service
from pushops.sweeps.dispatch import Outcome
from pushops.sweeps.order import Order
from pushops.sweeps.preview import Preview, preview
from pushops.sweeps.work import work
from tests.sweepdb import drive, open_run, opened, run_of

Pg = psycopg.Connection[Any]

NAME = "parcels"
TABLE = """
CREATE TYPE public.colour AS ENUM ('red', 'green');
CREATE TABLE public.parcel (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  state       text NOT NULL CHECK (state IN ('new', 'waiting', 'done', 'failed')),
  kind        text NOT NULL DEFAULT 'small',
  colour      public.colour NOT NULL DEFAULT 'red',
  retry_at    timestamptz,
  made_at     timestamptz NOT NULL DEFAULT now(),
  local_at    timestamp,
  day         date,
  expires_at  timestamptz,
  held        boolean
);
CREATE FUNCTION public.tossed() RETURNS boolean LANGUAGE sql AS 'SELECT random() < 0.5'"""
FILL = """
INSERT INTO public.parcel (state, expires_at) SELECT %(state)s, now() - interval '1 day'
  FROM generate_series(1, %(count)s::int)"""
DONE = {"table": "public.parcel", "predicate": "state = 'done' AND retry_at IS NULL", "expires": "expires_at"}


@pytest.fixture
def parcels(pg: Pg) -> Pg:
    pg.execute(TABLE)
    return pg


def fill(pg: Pg, **states: int) -> None:
    for state, count in states.items():
        pg.execute(FILL, {"state": state, "count": count})


def left(pg: Pg) -> dict[str, int]:
    return dict(pg.execute("SELECT state, count(*) FROM public.parcel GROUP BY 1").fetchall())


def own(settings: Settings, **changes: Any) -> Settings:
    given = {name: value for name, value in (DONE | changes).items() if value is not None}
    return settings.model_copy(update={"sweeps": {NAME: OwnTable.model_validate(given)}})


def refusal(settings: Settings, **changes: Any) -> str:
    """What is said when somebody wants a run."""
    with opened(own(settings, **changes)) as rt, pytest.raises(RefusedError) as refused:
        drive(rt, catalog(rt)[NAME], catalog=catalog(rt))
    return str(refused.value)


def seen(settings: Settings, **changes: Any) -> Preview:
    with opened(own(settings, **changes), sweep_max_share=0.2) as rt:
        return preview(rt, catalog(rt)[NAME], Order(started_by="test"))


def sweep(settings: Settings, **changes: Any) -> None:
    with opened(own(settings, **changes)) as rt:
        drive(rt, catalog(rt)[NAME], catalog=catalog(rt))


def test_what_is_over_goes_and_nothing_else(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=30, waiting=20)
    parcels.execute("UPDATE public.parcel SET retry_at = now() WHERE id <= 2")
    parcels.execute("UPDATE public.parcel SET held = true WHERE id BETWEEN 3 AND 5")
    parcels.execute("UPDATE public.parcel SET expires_at = NULL WHERE id = 6")
    parcels.execute("UPDATE public.parcel SET expires_at = now() + interval '1 hour' WHERE id = 7")
    sweep(settings, hold="held")
    assert left(parcels) == {"done": 7, "waiting": 20}


WRONG = {
    "state = 'done' OR state = 'failed' AND retry_at IS NULL": "say with parentheses what its OR belongs to",
    "state = 'done') OR (state = 'new'": "close only parentheses that it opened",
    "state = 'done' OR true) OR (true": "close only parentheses that it opened",
    "(state = 'done'": "close every parenthesis",
    "state = 'done' -- and retry_at IS NULL": "without comments",
    "state = 'done'; DELETE FROM public.parcel": "semicolons",
    "state = $$done$$": "$$",
    "true": "to name a column",
    "1 = 1": "to name a column",
    "id IS NOT NULL": "which is true of every one",
    "held OR NOT held": "which is true of every one",
    "state = 'done' OR state <> 'done'": "which is true of every one",
    "state IN ('new', 'waiting', 'done', 'failed')": "which is true of every one",
    "state = 'done' AND state = 'new'": "which by the table's own rules is of none",
    "state = 'dnoe'": "which by the table's own rules is of none",
    "state IN ('done', 'abandoned')": "got 'abandoned': a CHECK of public.parcel",
    "state <> 'waitng'": "got 'waitng': a CHECK of public.parcel",
    "state NOT IN ('new', 'waitng')": "got 'waitng': a CHECK of public.parcel",
    "colour = 'blue'": 'invalid input value for enum colour: "blue"',
    "made_at < '2026-01-01 00:00'": "say a time with its zone, got '2026-01-01 00:00'",
    "made_at < timestamptz '2026-01-01'": "say a time with its zone",
    "made_at < local_at": "compare times with a zone or times without",
    "local_at::timestamptz < made_at": "compare times with a zone or times without",
    "made_at > day": "compare times with a zone or times without",
    "kind::timestamptz < made_at": "compare times with a zone or times without",
    "made_at < timestamp '2026-01-01'": "compare times with a zone or times without",
    "made_at < now()": "not to ask for the time, got now",
    "made_at < current_timestamp": "not to ask for the time",
    "day < current_date - 3": "not to ask for the time",
    "made_at < 'yesterday'": "not to ask for the time",
    "random() < 0.1 AND state = 'done'": "got random, which is volatile",
    "public.tossed() AND state = 'done'": "got tossed, which is volatile",
    "id IN (SELECT id FROM public.parcel)": "a sub-query",
    "xmin IS NOT NULL AND state = 'done'": "a system column",
    "stat = 'done'": 'column "stat" does not exist',
    "state": "must be type boolean",
    "state = 'done', true": "must be type boolean",
    "SELECT true": "syntax error",
    "state = 'done' AND": "syntax error",
    "lowr(state) = 'done'": "does not exist",
    "count(*) > 1": "aggregate functions are not allowed",
}


def test_conditions_that_cannot_be_meant_are_refused_with_the_reason(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=3, waiting=3)
    said = {predicate: refusal(settings, predicate=predicate) for predicate in WRONG}
    assert {predicate: said[predicate] for predicate, words in WRONG.items() if words not in said[predicate]} == {}
    assert left(parcels) == {"done": 3, "waiting": 3}


RIGHT = (
    "state = 'done'",
    "state IN ('done', 'failed') AND (retry_at IS NULL OR retry_at < '2026-01-01T00:00:00Z')",
    "id BETWEEN 3 AND 9 AND state = 'done' AND kind LIKE '%mall%'",
    "CASE WHEN kind = 'small' AND held THEN state = 'done' OR state = 'failed' ELSE false END",
    "lower(kind) = 'small' AND colour = 'red'",
    "(local_at IS NULL OR local_at < '2026-01-01 00:00') AND state = 'done'",
    "(local_at IS NULL OR local_at AT TIME ZONE 'Europe/Berlin' < made_at) AND state = 'done'",
    "(day IS NULL OR day < '2026-01-01') AND state = 'done'",
    "kind = 'it''s -- not; a comment (' OR state = 'done'",
    "coalesce(retry_at, made_at) > '2020-01-01 00:00:00+01' AND state <> 'waiting'",
)


def test_conditions_that_say_what_they_mean_are_taken(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=3, waiting=3)
    for predicate in RIGHT:
        assert seen(settings, predicate=predicate).sweep == NAME


def test_an_unknown_state_is_told_where_only_the_rows_say_which_there_are(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=200)
    parcels.execute("UPDATE public.parcel SET kind = 'large' WHERE id % 2 = 0")
    parcels.execute("ANALYZE public.parcel")
    found = seen(settings, predicate="kind = 'lrge'")
    assert found.eligible == 0
    assert "no row had kind = 'lrge' when the table was analyzed last: it had large, small" in found.notes


def test_a_condition_that_holds_of_every_row_is_told_and_stopped_by_the_share(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=2_000)
    found = seen(settings, predicate="retry_at IS NULL")
    assert "the predicate is true of each of the first 1,000 rows: does it leave anything out?" in found.notes
    assert [reading.valve for reading in found.readings if not reading.open] == ["share"]
    with opened(own(settings, predicate="retry_at IS NULL"), sweep_max_share=0.2) as rt:
        run = drive(rt, catalog(rt)[NAME], catalog=catalog(rt), until=lambda run: run.held_by == "share")
    assert run.closed_at is None
    assert left(parcels) == {"done": 2_000}


def test_a_share_of_its_own_wins_over_the_setting(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=1_000, waiting=1_000)
    assert [r.valve for r in seen(settings, max_share=0.6).readings if not r.open] == []
    assert [r.valve for r in seen(settings, max_share=0.4).readings if not r.open] == ["share"]


def test_a_run_ends_where_the_condition_changed_since_it_was_opened(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=10, waiting=10)
    with opened(own(settings)) as rt:
        first = drive(
            rt, catalog(rt)[NAME], catalog=catalog(rt), until=lambda _: True, order=Order("test", row_limit=1)
        )
    with opened(own(settings, predicate="state = 'waiting'")) as rt:
        drive(rt, catalog(rt)[NAME], catalog=catalog(rt))
    row = parcels.execute("SELECT count(DISTINCT windows) FROM sweep_run").fetchone()
    assert row == (2,)
    assert first.run_id is not None


KEYS = {
    "uuid": ("k uuid PRIMARY KEY DEFAULT gen_random_uuid()", ""),
    "text by its own collation": ("k text NOT NULL", 'CREATE UNIQUE INDEX ON t (k COLLATE "C")'),
    "composite": ("k text NOT NULL, m int NOT NULL, PRIMARY KEY (m, k)", ""),
    "descending": ("k text NOT NULL", "CREATE UNIQUE INDEX ON t (k DESC)"),
    "integer": ("n int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, k text", ""),
}
VALUE = {"uuid": "gen_random_uuid()"}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("timed", [pytest.param(False, marks=pytest.mark.long), True])
def test_tables_are_walked_along_keys_of_every_kind(settings: Settings, pg: Pg, kind: str, timed: bool) -> None:
    columns, index = KEYS[kind]
    pg.execute(f"CREATE TABLE public.t ({columns}, expires_at timestamptz)".encode())
    pg.execute(index.replace(" t ", " public.t ").encode() or b"SELECT")
    value = VALUE.get(kind, "CASE n % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'B' ELSE 'Ä' END || n")
    extra, values = (", m", ", n % 7") if kind == "composite" else ("", "")
    pg.execute(
        f"INSERT INTO public.t (k{extra}, expires_at) SELECT {value}{values}, now() + (n - 700) * interval '1 minute'"
        " FROM generate_series(1, 1000) AS n".encode()
    )
    key = () if "PRIMARY" in columns else ("k",)
    changes = {"table": "public.t", "predicate": None, "key": key, "page_rows": 70}
    with opened(own(settings, **changes)) as rt:
        table, way = look(rt, NAME)
        assert not way.by_time
        if timed:
            names = ", ".join(f'"{name}"' for name in ("expires_at", *way.key))
            pg.execute(f"CREATE INDEX ON public.t ({names})".encode())
            table, way = look(rt, NAME)
        assert way.by_time is timed
        run = drive(rt, catalog(rt)[NAME], catalog=catalog(rt))
        assert run.pages >= 9
    assert pg.execute("SELECT count(*), count(*) FILTER (WHERE expires_at < now()) FROM public.t").fetchone() == (
        300,
        0,
    )
    assert table.own.page_rows == 70


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        ("id int, expires_at timestamptz", {}, "to have a primary key, got none"),
        ("id int PRIMARY KEY, expires_at timestamptz", {"key": ("expires_at",)}, "CREATE UNIQUE INDEX CONCURRENTLY"),
        ("id int UNIQUE, expires_at timestamptz", {"key": ("id",)}, 'ALTER "id" SET NOT NULL'),
        ("id int PRIMARY KEY, expires timestamptz", {}, "got expires_at: did you mean expires?"),
        ("id int PRIMARY KEY, expires_at timestamp", {}, 'which says no zone: add zone = "UTC"'),
        ("id int PRIMARY KEY, expires_at bigint", {}, "to be a timestamp with time zone, got bigint"),
        ("id int PRIMARY KEY, expires_at timestamptz", {"zone": "UTC"}, "which needs none"),
        (
            "id int PRIMARY KEY, expires_at timestamptz, h int",
            {"hold": "h"},
            "to be a boolean column, got h of integer",
        ),
        ("id bytea PRIMARY KEY, expires_at timestamptz", {}, "in the key of [sweeps.parcels] to be one of"),
        (
            "id int, expires_at timestamptz, PRIMARY KEY (id, expires_at)) PARTITION BY RANGE (expires_at",
            {},
            "[partitions",
        ),
    ],
)
def test_a_table_that_cannot_be_walked_is_refused_with_what_would_help(
    settings: Settings, pg: Pg, table: str, changes: dict[str, Any], said: str
) -> None:
    pg.execute(f"CREATE TABLE public.t ({table})".encode())
    assert said in refusal(settings, table="public.t", predicate=None, **changes)


def test_a_table_that_is_not_there_or_a_view_is_refused(settings: Settings, parcels: Pg) -> None:
    parcels.execute("CREATE VIEW public.v AS SELECT * FROM public.parcel")
    assert "got public.t, which does not" in refusal(settings, table="public.t")
    assert "a view" in refusal(settings, table="public.v")
    assert "to be one of yours" in refusal(settings, table="pushops.push_subscription")


def test_a_column_without_a_zone_is_compared_on_the_clock_of_the_zone_that_is_named(settings: Settings, pg: Pg) -> None:
    pg.execute("CREATE TABLE public.t (id int PRIMARY KEY, expires_at timestamp)")
    pg.execute(
        """INSERT INTO public.t SELECT n, (now() AT TIME ZONE 'Asia/Tokyo') + (n - 2) * interval '30 minutes'
             FROM generate_series(1, 3) AS n"""
    )
    sweep(settings, table="public.t", predicate=None, zone="Asia/Tokyo")
    assert pg.execute("SELECT array_agg(id ORDER BY id) FROM public.t").fetchone() == ([3],)


def test_a_missing_index_is_told_with_its_statement_and_the_plan(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=10)
    (note,) = seen(settings).notes
    assert 'CREATE INDEX CONCURRENTLY ON "public"."parcel" ("expires_at", "id")' in note
    assert "parcel_pkey" in note
    parcels.execute("CREATE INDEX ON public.parcel (expires_at, id)")
    assert seen(settings).notes == []


def test_what_points_to_the_rows_is_told(settings: Settings, parcels: Pg) -> None:
    parcels.execute("CREATE INDEX ON public.parcel (expires_at, id)")
    parcels.execute("CREATE TABLE public.note (id int PRIMARY KEY, parcel bigint REFERENCES public.parcel)")
    (note,) = seen(settings).notes
    assert "public.note.note_parcel_fkey ON DELETE NO ACTION" in note.replace("note.note", "public.note.note", 1)


def test_a_table_that_broke_while_its_run_was_open_holds_only_that_run(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=10)
    with opened(own(settings)) as rt:
        run = open_run(rt, catalog(rt)[NAME])
        other = open_run(rt, PURGE_RECEIPTS)
        parcels.execute("ALTER TABLE public.parcel RENAME COLUMN expires_at TO expire_at")
        worked = work(rt, catalog(rt), run.run_id)
        assert worked.reading is not None
        assert "got expires_at: did you mean" in worked.reading.reason
        assert run_of(rt, run.run_id).held_by == "setup"
        tended = {
            each.run.sweep: each.outcome for each in service.tend(rt, catalog(rt), None, granting=True) if each.run
        }
        assert tended == {NAME: Outcome.FAILED, PURGE_RECEIPTS.name: Outcome.DISPATCHED}
        parcels.execute("ALTER TABLE public.parcel RENAME COLUMN expire_at TO expires_at")
        assert drive(rt, catalog(rt)[NAME], catalog=catalog(rt)).run_id == run.run_id
    assert left(parcels) == {}
    assert other.run_id


def test_who_may_not_delete_there_is_told_the_grant(settings: Settings, parcels: Pg, admin: Pg) -> None:
    admin.execute("CREATE ROLE reader LOGIN")
    try:
        parcels.execute("GRANT SELECT ON public.parcel TO reader")
        parcels.execute("GRANT USAGE ON SCHEMA pushops TO reader")
        assert settings.database_url is not None
        url = make_conninfo(settings.database_url.get_secret_value(), user="reader")
        as_reader = settings.model_copy(update={"database_url": SecretStr(url)})
        with opened(own(as_reader)) as rt, pytest.raises(RefusedError, match="GRANT SELECT, UPDATE, DELETE") as refused:
            catalog(rt)[NAME]
        assert str(refused.value).endswith('ON "public"."parcel" TO "reader"')
    finally:
        parcels.execute("DROP OWNED BY reader")
        admin.execute("DROP ROLE reader")


def test_check_says_what_is_wrong_of_each_section_and_what_to_do(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=3)
    sections = own(settings).sweeps | {"broken": own(settings, predicate="true").sweeps[NAME]}
    with opened(settings.model_copy(update={"sweeps": sections})) as rt:
        told, broken = sweeping.own_tables(rt)
        decided = list(sweeping.decisions(rt))
    assert (told.level, broken.level) == (Level.WARNING, Level.PROBLEM)
    assert told.found.startswith("parcels: no index begins with expires_at")
    assert broken.found.startswith("broken: expected predicate of [sweeps.broken] to name a column")
    assert [finding.level for finding in decided] == [Level.OK]


def test_beat_is_told_of_a_section_that_cannot_be_swept(
    settings: Settings, parcels: Pg, recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(parcels, done=3)
    with opened(own(settings, predicate="true"), recorded) as rt:
        monkeypatch.setattr(tasks, "current_runtime", lambda: rt)
        monkeypatch.setattr(tasks, "bell", lambda _rt: None)
        tasks.dispatch_sweep(NAME)
    (fields,) = [fields for _, name, fields in recorded if name == "sweep.refused"]
    assert fields["sweep"] == NAME
    assert "to name a column" in fields["reason"]
    assert left(parcels) == {"done": 3}


def test_an_or_cannot_escape_from_the_conditions_beside_it(settings: Settings, parcels: Pg) -> None:
    fill(parcels, done=6, failed=4)
    parcels.execute("UPDATE public.parcel SET expires_at = now() + interval '1 day' WHERE id IN (1, 7)")
    parcels.execute("UPDATE public.parcel SET held = true WHERE id IN (2, 8)")
    sweep(settings, predicate="state = 'done' OR state = 'failed'", hold="held")
    assert left(parcels) == {"done": 2, "failed": 2}
