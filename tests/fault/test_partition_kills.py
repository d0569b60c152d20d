"""Makers and retirers of partitions that die between any two of their steps: the next one ends what they began."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from pushops.retention.partitions import service
from pushops.retention.partitions.words import Did
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.commands import run_python
from tests.cutting import SECTION, Pg, attached, clicks, make_table, steps, tables
from tests.sweeping import as_environment, wait_until

pytestmark = pytest.mark.long

# Does both jobs, and is killed before, or after, the first call of one function of the store.
VICTIM = """
import os, signal, sys
from pushops.retention.partitions import service, store
from pushops.runtime import open_runtime

name, when = sys.argv[1:]
real = getattr(store, name)

def die(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(store, name, die)
rt = open_runtime()
service.create(rt, "clicks")
service.retire(rt, "clicks")
"""
IDLE = "from pushops.retention.partitions import service; from pushops.runtime import open_runtime;"


def environment(settings: Settings) -> dict[str, str]:
    return {**as_environment(settings), "PUSHOPS_PARTITIONS": json.dumps({"clicks": SECTION})}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["create", "note", "attach", "forget", "unfinished", "detach", "lock", "drop"])
def test_who_dies_at_a_step_is_made_good_by_the_next_one(
    settings: Settings, runtime: Runtime, pg: Pg, step: str, when: str
) -> None:
    make_table(pg, 30, 3)
    assert run_python(VICTIM, [step, when], environment(settings)).code == -9
    rt = clicks(runtime)
    service.create(rt, "clicks")
    service.retire(rt, "clicks")
    assert len(attached(pg)) == 4
    assert tables(pg) == attached(pg)
    assert "clicks_old_30" not in tables(pg)
    assert steps(pg) == []
    assert pg.execute("SELECT id FROM public.clicks").fetchall() == [(3,)]


@pytest.mark.parametrize("step", ["detach", "lock"])
def test_a_row_that_came_alive_while_its_retirer_was_dead_is_in_its_table_again(
    settings: Settings, runtime: Runtime, pg: Pg, step: str
) -> None:
    make_table(pg, 30, 3)
    assert run_python(VICTIM, [step, "before"], environment(settings)).code == -9
    pg.execute("UPDATE public.clicks_old_30 SET status = 'new'")
    assert [fate.did for fate in service.retire(clicks(runtime), "clicks")] == [Did.KEPT]
    assert pg.execute("SELECT status FROM public.clicks WHERE id = 30").fetchone() == ("new",)


def test_one_killed_while_it_detaches_is_made_good(
    settings: Settings, runtime: Runtime, pg: Pg, database_url: str
) -> None:
    make_table(pg, 30, 3)
    code = f"{IDLE} service.retire(open_runtime(), 'clicks')"
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM public.clicks")  # what detaching waits for
        with _process(code, environment(settings)) as victim:
            pending = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"
            wait_until(lambda: pg.execute(pending.encode()).fetchone() == (1,), expected="a detaching that waits")
            victim.kill()
    gone = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%DETACH%' AND pid <> pg_backend_pid()"
    wait_until(lambda: pg.execute(gone.encode()).fetchone() == (0,), expected="nobody who detaches")
    assert [fate.did for fate in service.retire(clicks(runtime), "clicks")] == [Did.DROPPED]
    assert tables(pg) == ["clicks_old_3"]
    assert steps(pg) == []


@contextmanager
def _process(code: str, environment: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environment}) as started:
        try:
            yield started
        finally:
            started.kill()
