"""Looking at, and ageing, the rows that a test made."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from pushops.subscriptions.identity import endpoint_hash

Pg = psycopg.Connection[Any]

# A set of column values in which each state is a possible row.
STATES: dict[str, dict[str, Any]] = {
    "pending": {},
    "active": {"last_success_at": "now"},
    "stale": {"last_success_at": "now"},
    "expired": {"ended": "aged_out", "previous_state": "stale", "last_success_at": "now"},
    "revoked": {"ended": "gone", "previous_state": "active", "last_success_at": "now"},
}


def row(pg: Pg, endpoint: str) -> dict[str, Any]:
    """The one row of an endpoint."""
    with pg.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(
            "SELECT * FROM push_subscription WHERE endpoint_hash = %s", [endpoint_hash(endpoint)]
        ).fetchall()
    (only,) = found
    return only


def periods(pg: Pg, endpoint: str) -> list[dict[str, Any]]:
    """The consent trail of an endpoint, oldest first."""
    with pg.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT * FROM subscription_period WHERE endpoint_hash = %s ORDER BY period_id", [endpoint_hash(endpoint)]
        ).fetchall()


def owners(pg: Pg, endpoint: str) -> list[tuple[str | None, str | None]]:
    """(user, how it ended) for each period, oldest first."""
    return [(period["user_id"], period["end_reason"]) for period in periods(pg, endpoint)]


def put_in_state(pg: Pg, endpoint: str, state: str, reason: str | None = None) -> None:
    """Make the endpoint's row one of that state, with what the state implies, as if an hour ago."""
    values = STATES[state]
    ended = reason or values.get("ended")
    pg.execute(
        """UPDATE push_subscription
              SET state = %(state)s, previous_state = %(previous)s, state_since = now() - interval '1 hour',
                  last_success_at = CASE WHEN %(proven)s THEN now() - interval '1 day' END,
                  revoked_at = CASE WHEN %(ended)s::text IS NULL THEN NULL ELSE now() - interval '1 hour' END,
                  deleted_at = CASE WHEN %(ended)s::text IS NULL THEN NULL ELSE now() - interval '1 hour' END,
                  end_reason = %(ended)s::text
            WHERE endpoint_hash = %(hash)s""",
        {
            "state": state,
            "previous": values.get("previous_state"),
            "proven": "last_success_at" in values,
            "ended": ended,
            "hash": endpoint_hash(endpoint),
        },
    )
    if ended:
        pg.execute(
            """UPDATE subscription_period SET ended_at = greatest(began_at, now() - interval '1 hour'), end_reason = %s
                WHERE endpoint_hash = %s AND ended_at IS NULL""",
            [ended, endpoint_hash(endpoint)],
        )


def age(pg: Pg, endpoint: str, by: timedelta, *columns: str) -> None:
    """Move the named times of an endpoint's row into the past."""
    for column in columns:
        pg.execute(
            f"UPDATE push_subscription SET {column} = {column} - %s WHERE endpoint_hash = %s",  # type: ignore[arg-type]
            [by, endpoint_hash(endpoint)],
        )


def age_periods(pg: Pg, endpoint: str, by: timedelta) -> None:
    """Move a whole consent trail into the past; its trigger would not let anybody else."""
    with pg.transaction():
        pg.execute("ALTER TABLE subscription_period DISABLE TRIGGER subscription_period_keep")
        pg.execute(
            "UPDATE subscription_period SET began_at = began_at - %(by)s, ended_at = ended_at - %(by)s"
            " WHERE endpoint_hash = %(hash)s",
            {"by": by, "hash": endpoint_hash(endpoint)},
        )
        pg.execute("ALTER TABLE subscription_period ENABLE TRIGGER subscription_period_keep")


def now(pg: Pg) -> datetime:
    found: datetime = pg.execute("SELECT clock_timestamp()").fetchone()[0]  # type: ignore[index]
    return found


def claim(pg: Pg, endpoint: str) -> tuple[UUID, int, datetime]:
    """What a sender captures before it sends: id, registration number, database time."""
    found = pg.execute(
        "SELECT id, registration_no, clock_timestamp() FROM push_subscription WHERE endpoint_hash = %s",
        [endpoint_hash(endpoint)],
    ).fetchone()
    assert found is not None
    return found[0], found[1], found[2]
