"""A legacy table gets a unique endpoint hash: the defined row wins, no write is lost, each step goes on."""

from typing import Any

import psycopg
import pytest

from pushops.adopting import ddl, service, steps
from pushops.adopting.words import Adoption, Hash, Losers
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from tests.adopting import INSERT, UPSERT, Pg, assert_adopted, assert_nothing_lost, make_legacy, traffic

NAME = "public.subscribers"


@pytest.fixture
def rt(runtime: Runtime) -> Runtime:
    changed = runtime.settings.model_copy(update={"sweep_pause_ms": 0, "sweep_batch_rows": 300})
    return Runtime(changed, runtime.db, None, runtime.events)


def adopt(rt: Runtime, **changes: Any) -> service.Plan:
    return service.run(rt, look(rt, **changes), lambda *_: None, lambda _: None, actor="test")


def look(rt: Runtime, **changes: Any) -> Adoption:
    return service.look(rt, NAME, **{"latest": "updated_at", **changes})


def test_a_table_with_duplicates_is_adopted_while_it_is_written_to(rt: Runtime, pg: Pg, database_url: str) -> None:
    make_legacy(pg)
    with traffic(database_url) as written:
        done = adopt(rt)
    assert done.done
    assert done.lost > 0
    assert_adopted(pg)
    assert_nothing_lost(pg, written)
    assert adopt(rt).done


def test_the_latest_of_an_endpoint_wins_then_the_highest_key(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 200)
    pg.execute("UPDATE public.subscribers SET updated_at = now() WHERE p256dh = 'key-10-2'")
    before = service.plan(rt, look(rt))
    assert (before.endpoints, before.too_many, before.lost) == (20, 40, 0)
    after = adopt(rt)
    assert (after.endpoints, after.too_many, after.lost) == (0, 0, 40)
    live = "SELECT p256dh FROM public.subscribers WHERE endpoint_hash IS NOT NULL AND user_id = %s"
    assert pg.execute(live, ["user-10"]).fetchall() == [("key-10-2",)]
    assert pg.execute(live, ["user-20"]).fetchall() == [("key-20-3",)]
    assert pg.execute(live, ["user-100"]).fetchall() == [("key-100-3",)]  # none of them says when
    named = """SELECT count(*) FROM public.subscribers AS lost JOIN public.subscribers AS won
                   ON won.id::text = lost.superseded_by AND won.endpoint = lost.endpoint
               JOIN adoption_loser AS noted ON noted.loser = lost.id::text AND noted.winner = won.id::text"""
    assert pg.execute(named.encode()).fetchone() == (40,)


def test_rows_that_are_too_many_may_be_removed(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 200)
    assert adopt(rt, losers=Losers.REMOVE).lost == 40
    assert pg.execute("SELECT count(*), count(DISTINCT endpoint) FROM public.subscribers").fetchone() == (200, 200)
    pg.execute(INSERT, ["user", "https://push.example.org/5", "later"])
    assert pg.execute("SELECT p256dh FROM public.subscribers WHERE user_id = 'user'").fetchone() == ("later",)
    assert pg.execute("SELECT count(*) FROM public.subscribers").fetchone() == (200,)


def test_an_application_changes_over_row_by_row_and_then_the_bridge_goes(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 100)
    endpoint = "https://push.example.org/7"
    adopt(rt)
    pg.execute(UPSERT, ["new", endpoint, "by-upsert", endpoint])
    pg.execute(INSERT, ["old", endpoint, "by-insert"])
    live = "SELECT p256dh FROM public.subscribers WHERE endpoint = %s AND endpoint_hash IS NOT NULL"
    assert pg.execute(live, [endpoint]).fetchall() == [("by-insert",)]
    service.finish(rt, look(rt))
    with pytest.raises(psycopg.errors.UniqueViolation):
        pg.execute(INSERT, ["old", endpoint, "too late"])
    for key in ("first", "second"):
        pg.execute(UPSERT, ["new", endpoint, key, endpoint])
    assert pg.execute(live, [endpoint]).fetchall() == [("second",)]
    assert adopt(rt).bridged is False
    assert_adopted(pg)


def test_a_bridge_does_not_go_before_the_index_stands(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 10)
    with pytest.raises(RefusedError, match="to be adopted"):
        service.finish(rt, look(rt))


def test_an_index_that_an_interruption_left_invalid_is_built_anew(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 100)
    one = look(rt)
    for statement in (*ddl.columns(one), "UPDATE public.subscribers SET endpoint_hash = '\\x00'"):
        pg.execute(statement.encode())
    with pytest.raises(psycopg.errors.UniqueViolation):
        pg.execute(ddl.unique(one)[0].encode())
    assert pg.execute("SELECT indisvalid FROM pg_index WHERE NOT indisvalid").fetchone() == (False,)
    pg.execute("DROP INDEX public.subscribers_endpoint_hash_unique")
    pg.execute("UPDATE public.subscribers SET endpoint_hash = NULL")
    with pytest.raises(psycopg.errors.UniqueViolation):
        pg.execute("CREATE UNIQUE INDEX CONCURRENTLY subscribers_endpoint_hash_unique ON public.subscribers (endpoint)")
    assert adopt(rt).done
    assert_adopted(pg)


def test_duplicates_that_came_between_are_settled_before_the_index_is_built_again(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_legacy(pg, 50)
    build, came = service._build, []

    def late(rt: Runtime, one: Adoption, step: steps.Step) -> None:
        if step.name == "unique" and not came:  # from a transaction that began before the bridge
            came.append(1)
            pg.execute("ALTER TABLE public.subscribers DISABLE TRIGGER USER")
            pg.execute(
                """INSERT INTO public.subscribers (user_id, endpoint, p256dh, auth, endpoint_hash)
                   SELECT 'late', endpoint, 'late', auth, endpoint_hash FROM public.subscribers WHERE id = 5"""
            )
            pg.execute("ALTER TABLE public.subscribers ENABLE TRIGGER USER")
        build(rt, one, step)

    monkeypatch.setattr(service, "_build", late)
    assert adopt(rt).done
    assert came
    assert_adopted(pg)
    live = "SELECT user_id FROM public.subscribers WHERE endpoint = %s AND endpoint_hash IS NOT NULL"
    assert pg.execute(live, ["https://push.example.org/5"]).fetchall() == [("late",)]


@pytest.mark.long
@pytest.mark.parametrize("stop", [step.name for step in steps.STEPS])
def test_who_is_interrupted_before_a_step_goes_on_from_there(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    make_legacy(pg, 50)
    go = service._do_step

    def interrupted(rt: Runtime, one: Adoption, step: steps.Step, *rest: Any, **more: Any) -> None:
        if step.name == stop:
            raise KeyboardInterrupt
        go(rt, one, step, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(service, "_do_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            adopt(rt)
    pg.execute(INSERT, ["user", "https://push.example.org/10", "between"])
    assert adopt(rt).done
    assert_adopted(pg)


def test_a_row_that_went_past_the_trigger_is_refused(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 10)
    adopt(rt)
    pg.execute("ALTER TABLE public.subscribers DISABLE TRIGGER USER")
    with pytest.raises(psycopg.errors.CheckViolation):
        pg.execute(INSERT, ["user", "https://push.example.org/new", "without a hash"])


def test_a_superseded_row_stays_so_until_its_endpoint_changes(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 10)
    adopt(rt)
    marked = "SELECT count(*) FROM public.subscribers WHERE superseded_by IS NOT NULL"
    assert pg.execute(marked.encode()).fetchone() == (2,)
    pg.execute("UPDATE public.subscribers SET endpoint = endpoint, p256dh = 'all columns, always'")
    assert pg.execute(marked.encode()).fetchone() == (2,)
    pg.execute(
        """UPDATE public.subscribers SET endpoint = 'https://push.example.org/another'
            WHERE id = (SELECT min(id) FROM public.subscribers WHERE superseded_by IS NOT NULL)"""
    )
    assert pg.execute(marked.encode()).fetchone() == (1,)
    assert_adopted(pg)


def test_a_second_hash_comes_beside_the_first(rt: Runtime, pg: Pg, database_url: str) -> None:
    make_legacy(pg, 300)
    adopt(rt)
    with traffic(database_url, known=300) as written:
        assert adopt(rt, column="endpoint_hash_v2", hash_=Hash.SHA512).done
    assert_adopted(pg, "endpoint_hash_v2", "sha512")
    assert_adopted(pg)
    assert_nothing_lost(pg, written)


def test_the_script_for_psql_does_the_same(rt: Runtime, pg: Pg) -> None:
    make_legacy(pg, 100)
    one = look(rt)
    for statement in service.script(one, "pushops").split(";\n\n"):
        pg.execute(statement.replace("pg_sleep(0.1)", "pg_sleep(0)").encode())
    assert_adopted(pg)
    assert service.plan(rt, one).done


@pytest.mark.parametrize(
    ("ddl_", "changes", "said"),
    [
        ("CREATE TABLE public.subscribers (endpoint text)", {}, "a primary key of one column"),
        ("CREATE TABLE public.subscribers (a int, b int, endpoint text, PRIMARY KEY (a, b))", {}, "of one column"),
        ("CREATE TABLE public.subscribers (id int PRIMARY KEY, url text)", {}, "a column endpoint of type text"),
        ("CREATE TABLE public.subscribers (endpoint text PRIMARY KEY)", {}, "keyed by something else"),
        ("CREATE TABLE public.subscribers (id int PRIMARY KEY, endpoint text, endpoint_hash text)", {}, "or a bytea"),
        ("CREATE TABLE public.subscribers (id int PRIMARY KEY, endpoint text)", {"latest": "id"}, "column of a time"),
        (
            "CREATE TABLE public.subscribers (id int PRIMARY KEY, endpoint text) PARTITION BY RANGE (id)",
            {},
            "an ordinary table",
        ),
        (
            """CREATE TABLE public.subscribers (id int PRIMARY KEY, endpoint text);
               CREATE TABLE public.orders (subscriber int REFERENCES public.subscribers)""",
            {"losers": Losers.REMOVE},
            "no foreign key",
        ),
    ],
)
def test_a_table_that_is_not_fit_is_refused(rt: Runtime, pg: Pg, ddl_: str, changes: dict[str, Any], said: str) -> None:
    pg.execute(ddl_.encode())
    with pytest.raises(RefusedError, match=said):
        service.look(rt, NAME, **changes)


def test_neither_what_is_not_there_nor_a_table_of_our_own_is_adopted(rt: Runtime) -> None:
    with pytest.raises(NotFoundError):
        service.look(rt, NAME)
    with pytest.raises(RefusedError, match="one of pushops' own"):
        service.look(rt, "pushops.push_subscription")


@pytest.mark.parametrize(
    ("type_", "value"),
    [("uuid", "gen_random_uuid()"), ("text", "'Key ' || n || '-' || copy"), ("integer", "n * 10 + copy")],
)
@pytest.mark.parametrize("losers", [Losers.MARK, pytest.param(Losers.REMOVE, marks=pytest.mark.long)])
def test_names_of_mixed_case_and_keys_of_every_kind(
    rt: Runtime, pg: Pg, type_: str, value: str, losers: Losers
) -> None:
    columns = f'("Key" {type_} PRIMARY KEY, "endPoint" varchar(500), "at" timestamp)'
    pg.execute(f'CREATE TABLE public."webPush" {columns}'.encode())
    pg.execute(
        f"""INSERT INTO public."webPush" SELECT {value}, 'https://push.example.org/' || n, now()
              FROM generate_series(1, 50) AS n, generate_series(1, 2) AS copy""".encode()
    )
    pg.execute(
        f"""INSERT INTO public."webPush" SELECT {value}, NULL, NULL FROM (VALUES (0, 0)) AS v (n, copy)""".encode()
    )
    one = service.look(rt, "public.webPush", endpoint="endPoint", column="Hash", latest="at", losers=losers)
    assert service.run(rt, one, lambda *_: None, lambda _: None, actor="test").done
    live = 'SELECT count(*), count(DISTINCT "endPoint") FROM public."webPush" WHERE "Hash" IS NOT NULL'
    assert pg.execute(live.encode()).fetchone() == (50, 50)
    assert pg.execute('SELECT count(*) FROM public."webPush" WHERE "endPoint" IS NULL').fetchone() == (1,)
