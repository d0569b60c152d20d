"""Every SQL constant plans against the migrated schema, so that none first fails at night."""

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, LiteralString

import psycopg
import pytest

import pushops
from pushops.db import Database
from pushops.db.transaction import render
from pushops.deadletters.replay.draining import DRAIN
from pushops.deadletters.store import replaying
from pushops.retention import store as retention_store
from pushops.retention.own import archiving
from pushops.retention.policies import SWEEPS
from pushops.rolling import store as rolling_store
from pushops.rolling.resealing import RESEAL_AUTH
from pushops.sweeps import sql
from pushops.sweeps.sql import Held, HeldPage
from pushops.sweeps.sweep import Sweep, Walk

# Public constants are whole statements; private ones are pieces of them. What EXPLAIN refuses stands here.
UTILITY: Final = {
    "pushops.db.lease.TABLE": "CREATE TABLE",
    "pushops.db.migrate.SCHEMA": "CREATE SCHEMA",
    "pushops.db.migrate.VERSION": "CREATE TABLE",
}
# Statements that are completed at run time, by name: what completes each. RENDERED plans the whole ones.
TEMPLATES: Final = {
    f"{retention_store.__name__}.{name}": "the engine's ranges, in RENDERED"
    for name in vars(retention_store).get("__annotations__", {})
} | {
    f"{archiving.__name__}.{name}": "a table of somebody's own: tests/db/test_own_archive.py runs them"
    for name in ("READ", "DELETE", "LEFT")
}

Named = tuple[str, str]


# Functions that yield (name, statement) for SQL put together at run time; the statement may still name {schema}.
def sweep_statements() -> Iterator[Named]:
    """Whatever the engine runs for each built-in sweep, along the index and along the blocks."""
    held = Held(["x"], [HeldPage(None, ["x"] * 2, Walk.INDEX)])
    for sweep in (sweep for sweep in SWEEPS.values() if sweep.effect):
        yield f"{sweep.name}.page_ends", sql.page_ends(sweep, has_cursor=True)
        yield f"{sweep.name}.eligible", sql.eligible(sweep)
        yield f"{sweep.name}.oldest", sql.oldest(sweep)
        for walk in (Walk.INDEX, Walk.BLOCKS) if sweep.blocks else (Walk.INDEX,):
            clause = sql.page_clause(sweep, walk, has_lo=True, held=Held() if walk is Walk.BLOCKS else held)
            yield f"{sweep.name}.{walk}.free", sql.effect(sweep, sql.free_rows(clause))
            yield f"{sweep.name}.{walk}.lock", sql.effect(sweep, sql.rows_that_lock(sweep, clause))
            yield f"{sweep.name}.{walk}.left", sql.count_left(sweep, clause)
            yield f"{sweep.name}.{walk}.middle", sql.middle(sweep, walk, clause)


def acting_statements() -> Iterator[Named]:
    """Whatever the engine runs for each sweep that acts, and what these read of a page."""
    for sweep in (sweep for sweep in SWEEPS.values() if sweep.acting):
        yield f"{sweep.name}.page_ends", sql.page_ends(sweep, has_cursor=True)
        yield f"{sweep.name}.eligible", sql.eligible(sweep)
        yield f"{sweep.name}.middle", sql.middle(sweep, Walk.INDEX, clause_of(sweep))
    yield "replaying.sift", replaying.sifting(clause_of(DRAIN))
    yield "rolling.taking", rolling_store.taking(clause_of(RESEAL_AUTH))


def clause_of(sweep: Sweep) -> str:
    return sql.page_clause(sweep, Walk.INDEX, has_lo=True, held=Held(["x"]))


RENDERED: Final[list[Callable[[], Iterator[Named]]]] = [sweep_statements, acting_statements]


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(pushops.__path__, "pushops."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def constants() -> Iterator[Named]:
    for module in modules():
        for name, kind in vars(module).get("__annotations__", {}).items():
            if kind == Final[LiteralString] and not name.startswith("_"):
                yield f"{module.__name__}.{name}", getattr(module, name)


def statements() -> Iterator[Named]:
    left_out = UTILITY | TEMPLATES
    yield from ((name, text) for name, text in constants() if name not in left_out)
    yield from itertools.chain.from_iterable(make() for make in RENDERED)


def numbered(query: str) -> str:
    """Named parameters as PostgreSQL's own: EXPLAIN (GENERIC_PLAN) takes no values."""
    names: dict[str, int] = {}
    text = re.sub(r"%\((\w+)\)[sbt]", lambda match: f"${names.setdefault(match[1], len(names) + 1)}", query)
    return text.replace("%%", "%")


@pytest.fixture(scope="module")
def planner(shared_database: Database) -> Iterator[psycopg.Connection[Any]]:
    with shared_database.borrowed() as conn:
        yield conn


@pytest.mark.parametrize("statement", [pytest.param(text, id=name) for name, text in statements()])
def test_the_statement_plans_against_the_migrated_schema(statement: str, planner: psycopg.Connection[Any]) -> None:
    query = numbered(render(statement, "pushops").decode())
    planner.execute(f"EXPLAIN (GENERIC_PLAN) {query}".encode())


def test_what_is_left_out_still_exists() -> None:
    assert (UTILITY | TEMPLATES).keys() <= {name for name, _ in constants()}


def test_a_statement_on_an_unknown_column_would_be_found(planner: psycopg.Connection[Any]) -> None:
    query = numbered(
        render("SELECT no_such FROM {schema}.push_subscription WHERE id = %(id)s::uuid", "pushops").decode()
    )
    with pytest.raises(psycopg.errors.UndefinedColumn):
        planner.execute(f"EXPLAIN (GENERIC_PLAN) {query}".encode())
