"""docs/adopting.md, line by line, on a legacy table with duplicates while an application writes to it."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from pushops.settings import Settings
from tests import adopting
from tests.adopting import Pg, Written, assert_adopted, assert_nothing_lost, make_legacy, traffic
from tests.commands import call
from tests.sweeping import ROOT, quick

PAGE = (ROOT / "docs" / "adopting.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}")[1].split("\n## ")[0]


def commands(title: str) -> list[str]:
    return re.findall(r"^ {4,7}(pushops .+)$", section(title), re.MULTILINE)


def statement(title: str) -> str:
    """The SQL of a section."""
    (found,) = re.findall(r"```sql\n(.+?)```", section(title), re.DOTALL)
    return str(found)


def do(step: str, settings: Settings) -> str:
    done = call(*shlex.split(step)[1:], settings=settings)
    assert done.code == 0, f"{step}: {done.text}"
    return done.out


@contextmanager
def changed_over(url: str, statement: str) -> Iterator[list[Written]]:
    """The application after its change: it writes what the page says."""
    query = re.sub(r":(user|endpoint|p256dh|auth)\b", r"%(\1)s", statement)
    with traffic(url, write=lambda conn, endpoint, key: adopting.upsert(conn, query, endpoint, key)) as written:
        yield written


def test_the_steps_of_the_page_lose_no_write_and_end_with_the_index_valid(
    settings: Settings, pg: Pg, database_url: str
) -> None:
    hurried = quick(settings, sweep_batch_rows=200)
    make_legacy(pg)
    look, script, run, finish, again = commands("Step by step")
    with traffic(database_url) as before:
        assert "endpoints have" in do(look, hurried)
        assert "CREATE UNIQUE INDEX CONCURRENTLY" in do(script, hurried)
        assert "the bridge is up" in do(run, hurried)
    assert_adopted(pg)
    assert_nothing_lost(pg, before)
    with changed_over(database_url, statement("Step by step")) as after:
        do(finish, hurried)
        shown = json.loads(do(f"{again} --json", hurried))
    assert ({step["done"] for step in shown["steps"]}, shown["bridged"]) == ({True}, False)
    assert_adopted(pg)
    assert_nothing_lost(pg, after)


def test_the_steps_of_the_page_lead_to_another_hash(settings: Settings, pg: Pg, database_url: str) -> None:
    hurried = quick(settings, sweep_batch_rows=200)
    make_legacy(pg, 200)
    do(commands("Step by step")[2], hurried)
    run, finish = commands("Another hash beside the first")
    with traffic(database_url, known=200) as written:
        do(run, hurried)
    do(finish, hurried)
    for each in statement("Another hash beside the first").split(";\n"):
        pg.execute(each.encode())
    assert_adopted(pg, "endpoint_hash_v2", "sha512")
    assert_nothing_lost(pg, written, "endpoint_hash_v2")


def test_nothing_is_changed_without_yes(settings: Settings, pg: Pg) -> None:
    make_legacy(pg, 20)
    done = call("adopt", "run", "public.subscribers", settings=settings)
    assert (done.code, "--yes does it" in done.out) == (0, True)
    columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'public.subscribers'::regclass AND attname ~ 'hash'"
    assert pg.execute(columns.encode()).fetchone() == (0,)
    assert call("adopt", "plan", "public.subscribers", "--json", settings=settings).json["too_many"] == 4
