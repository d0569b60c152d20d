"""No statement of messages, fan-out or their end reads a whole table, however many rows there are."""

import re
from collections.abc import Iterator
from typing import Any, Final, LiteralString

import psycopg
import pytest

from pushops.db.transaction import render
from pushops.delivery.store import fanning, finishing, messages, partitions
from pushops.sweeps.sql import PLAN_PAGES
from tests.db.test_every_statement import numbered
from tests.sending import make_live

# What a statement must walk; for all others it is enough that they scan no table of size.
INDEXES: Final = {
    "fanning.DUE": ["push_message_fan_out"],
    "fanning.FAN_OUT": ["push_subscription_fan_out"],
    "fanning.MAKE_LANES": ["push_subscription_fan_out"],
    "fanning.COUNT": ["push_subscription_fan_out"],
    "fanning.FAN_OUT_USER": ["push_subscription_live_user"],
    "fanning.COUNT_USER": ["push_subscription_live_user"],
    "fanning.FAN_OUT_IDS": ["push_subscription_pkey"],
    "finishing.NEXT": ["push_message_open"],
    "finishing.FIND_OPEN": ["_pkey"],
    "finishing.PAGE_END": ["_pkey"],
    "finishing.END_PAGE": ["_pkey"],
    "messages.FIRST": ["push_message_idempotency"],
    "messages.OPEN_OF_CAMPAIGN": ["push_message_campaign"],
    "messages.LIST": ["push_message_pkey"],
    "messages.RESULTS": ["_pkey"],
    "partitions.OVER": ["push_message_pkey"],
}
# A page is read in the order of an index: what sorts first reads all that is left.
PAGED: Final = {"fanning.FAN_OUT", "fanning.MAKE_LANES", "fanning.COUNT", "finishing.FIND_OPEN", "finishing.PAGE_END",
                "finishing.END_PAGE", "messages.RESULTS"}  # fmt: skip
SCAN: Final = r"Seq Scan on (?:push_message|push_subscription|push_dispatch_\d+)\b"


def constants() -> Iterator[tuple[str, LiteralString]]:
    for module in (fanning, finishing, messages, partitions):
        for name, kind in module.__annotations__.items():
            if kind == Final[LiteralString] and not name.startswith("_"):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name)


@pytest.fixture(scope="module")
def filled(postgres_server: Any, template: str, admin: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Twenty thousand subscriptions, as many messages, most of them closed, and as many rows of a ledger."""
    admin.execute(f"CREATE DATABASE message_plans TEMPLATE {template}")
    url = postgres_server.url("message_plans")
    with psycopg.connect(url, autocommit=True, options="-c search_path=pushops") as conn:
        make_live(conn, 20_000)
        conn.execute("UPDATE push_subscription SET user_id = left(md5(endpoint), 3)")
        conn.execute(
            """INSERT INTO push_message (idempotency_key, campaign_id, ttl, state, look_at, closed_at)
               SELECT 'k' || n, 'c' || n / 20, 60, CASE WHEN open THEN 'sending' ELSE 'closed' END,
                      CASE WHEN open THEN now() END, CASE WHEN NOT open THEN now() END
                 FROM (SELECT n, n % 100 = 0 AS open FROM generate_series(1, 20000) AS n) AS rows"""
        )
        conn.execute(
            """INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority,
                      next_attempt_at, expires_at)
               SELECT m.message_id, s.endpoint_hash, s.id, 1, 1, 1, now(), now()
                 FROM (SELECT message_id FROM push_message LIMIT 10) AS m,
                      (SELECT id, endpoint_hash FROM push_subscription LIMIT 2000) AS s"""
        )
        conn.execute("VACUUM ANALYZE push_subscription, push_message, push_dispatch")
        yield conn
    admin.execute("DROP DATABASE message_plans WITH (FORCE)")


@pytest.mark.parametrize(("name", "statement"), [pytest.param(*each, id=each[0]) for each in constants()])
def test_the_statement_walks_an_index(name: str, statement: LiteralString, filled: psycopg.Connection[Any]) -> None:
    query = numbered(render(statement, "pushops").decode())
    with filled.transaction():
        for option, value in PLAN_PAGES.items():  # as their transactions do
            filled.execute(f"SET LOCAL {option} = {value}".encode())
        lines = filled.execute(f"EXPLAIN (GENERIC_PLAN) {query}".encode()).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert not re.findall(SCAN, plan), plan
    if name in PAGED:
        assert not re.findall(r"Sort Key: (?:s|push_dispatch\w*)\.endpoint_hash", plan), (
            f"more than a page is read:\n{plan}"
        )
    assert [index for index in INDEXES.get(name, []) if index not in plan] == [], plan


def test_every_named_statement_exists() -> None:
    assert INDEXES.keys() <= dict(constants()).keys()
