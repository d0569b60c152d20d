"""No verb reads a whole table, however many subscriptions there are."""

import re
from collections.abc import Iterator
from typing import Any, Final, LiteralString

import psycopg
import pytest

from pushops.db.transaction import render
from pushops.subscriptions.store import (
    churn,
    detaching,
    ending,
    evidence,
    periods,
    reading,
    registration,
    rotation,
    touching,
    undoing,
)
from tests.db.test_every_statement import numbered

MODULES: Final = (churn, detaching, ending, evidence, periods, reading, registration, rotation, touching, undoing)
ARBITER: Final = "Conflict Arbiter Indexes: push_subscription_endpoint_hash_key"

# What a statement must walk; for all others it is enough that they walk no table.
INDEXES: Final = {
    "ending.LOCK_USER": ["push_subscription_live_user", "push_subscription_ended_user"],
    "ending.LOCK_SURPLUS": ["push_subscription_live_user"],
    "detaching.LOCK_OWNED_BY": ["push_subscription_live_user", "push_subscription_ended_user"],
    "reading.LIST_USER": ["push_subscription_live_user", "push_subscription_ended_user"],
    "reading.LIST": ["push_subscription_pkey"],
    "touching.SEEN": ["push_subscription_endpoint_hash_key"],
    "evidence.ACCEPT": ["push_subscription_pkey"],
    "evidence.REVOKE": ["push_subscription_pkey"],
    "periods.CLOSE": ["subscription_period_open"],
    "periods.OPEN": ["subscription_period_open", "subscription_period_hash", "subscription_period_user"],
    "churn.COUNT": ["subscription_period_began", "subscription_period_purge"],
    "registration.UPSERT": [ARBITER],
}


def constants() -> Iterator[tuple[str, LiteralString]]:
    for module in MODULES:
        for name, kind in module.__annotations__.items():
            if kind == Final[LiteralString] and not name.startswith("_"):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name)


@pytest.fixture(scope="module")
def filled(postgres_server: Any, template: str, admin: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Twenty thousand rows of every kind, so that the planner has a reason to use an index."""
    admin.execute(f"CREATE DATABASE plans TEMPLATE {template}")
    with psycopg.connect(postgres_server.url("plans"), autocommit=True) as conn:
        conn.execute(
            """INSERT INTO pushops.push_subscription (endpoint_hash, endpoint, push_service, p256dh, auth_sealed,
                      auth_key_version, user_id, state, previous_state, revoked_at, deleted_at, end_reason)
               SELECT sha256(n::text::bytea), 'e' || n, 'fcm', repeat('p', 87), 'x', 1, 'u' || n / 3,
                      CASE WHEN ended THEN 'revoked' ELSE 'active' END, CASE WHEN ended THEN 'active' END, at, at,
                      CASE WHEN ended THEN 'gone' END
                 FROM (SELECT n, n % 2 = 0 AS ended, CASE WHEN n % 2 = 0 THEN now() - n * interval '1 h' END AS at
                         FROM generate_series(1, 20000) AS n) AS made"""
        )
        conn.execute(
            """INSERT INTO pushops.subscription_period
                      (endpoint_hash, user_id, push_service, began_at, ended_at, end_reason)
               SELECT endpoint_hash, user_id, push_service, now() - row_number() OVER () * interval '1 h',
                      CASE WHEN deleted_at IS NOT NULL THEN now() END, end_reason FROM pushops.push_subscription"""
        )
        conn.execute("ANALYZE pushops.push_subscription, pushops.subscription_period")
        yield conn
    admin.execute("DROP DATABASE plans WITH (FORCE)")


@pytest.mark.parametrize(("name", "statement"), [pytest.param(*each, id=each[0]) for each in constants()])
def test_the_statement_walks_an_index(name: str, statement: LiteralString, filled: psycopg.Connection[Any]) -> None:
    query = numbered(render(statement, "pushops").decode())
    plan = "\n".join(line for (line,) in filled.execute(f"EXPLAIN (GENERIC_PLAN) {query}".encode()).fetchall())
    assert not re.findall(r"Seq Scan on (?:push_subscription|subscription_period)", plan), plan
    assert [index for index in INDEXES.get(name, []) if index not in plan] == [], plan


def test_every_named_statement_exists() -> None:
    assert INDEXES.keys() <= dict(constants()).keys()
