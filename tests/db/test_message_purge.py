"""What outlived its purpose goes, and nothing that somebody still needs: messages, evidence, counts, audit."""

from datetime import timedelta
from typing import Any

import pytest

from pushops.delivery import partitions, retiring
from pushops.retention.policies import PURGE_ANSWERS, PURGE_AUDIT, PURGE_EVIDENCE, PURGE_MESSAGES
from pushops.runtime import Runtime
from pushops.sweeps.sweep import Sweep
from tests.sending import Pg
from tests.sweepdb import drive


def add_message(pg: Pg, made: timedelta, *, expired: timedelta | None, closed: timedelta | None) -> Any:
    row = pg.execute(
        """INSERT INTO push_message (message_id, ttl, state, first_dispatched_at, expires_at, closed_at)
           VALUES (id_floor(now() - %(made)s), 60, %(state)s, now() - %(expired)s::interval,
                   now() - %(expired)s::interval, now() - %(closed)s::interval) RETURNING message_id""",
        {"made": made, "expired": expired, "closed": closed, "state": "closed" if closed else "sending"},
    ).fetchone()
    assert row is not None
    return row[0]


def left(pg: Pg) -> set[Any]:
    return {row[0] for row in pg.execute("SELECT message_id FROM push_message")}


def days(number: float) -> timedelta:
    return timedelta(days=number)


def test_a_message_goes_when_it_and_its_recipients_are_over(runtime: Runtime, pg: Pg) -> None:
    kept = {
        "young": add_message(pg, days(89), expired=days(89), closed=days(89)),
        "expired lately": add_message(pg, days(110), expired=days(89), closed=days(110)),
        "closed lately": add_message(pg, days(111), expired=days(111), closed=days(1)),
        "open": add_message(pg, days(112), expired=days(112), closed=None),
        "cancelled lately": add_message(pg, days(113), expired=None, closed=days(89)),
    }
    add_message(pg, days(91), expired=days(91), closed=days(91))
    add_message(pg, days(114), expired=None, closed=days(91))
    drive(runtime, PURGE_MESSAGES)
    assert left(pg) == set(kept.values())


def test_a_message_stays_as_long_as_its_week_of_the_ledger(runtime: Runtime, pg: Pg) -> None:
    message_id = add_message(pg, days(120), expired=days(120), closed=days(120))
    partitions.make_for(runtime, message_id)
    pg.execute(
        """INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority, state,
                  outcome, ended_at, next_attempt_at, expires_at)
           VALUES (%(id)s, '\\x00', %(id)s, 1, 1, 1, 'ended', 'accepted', now(), now(), now())""",
        {"id": message_id},
    )
    drive(runtime, PURGE_MESSAGES)
    assert left(pg) == {message_id}
    retiring.retire(runtime)
    drive(runtime, PURGE_MESSAGES)
    assert left(pg) == set()


EVIDENCE = """
INSERT INTO push_evidence
       (at, push_service, subscription_id, endpoint_hash, registration_no, finding, started_at, state)
SELECT now() - ago, 'fcm', gen_random_uuid(), '\\x00', 1, 'gone', now(), state
  FROM (VALUES (interval '89 days', 'applied'), ('91 days', 'applied'), ('91 days', 'pending'),
               ('91 days', 'discarded')) AS v (ago, state)"""
ANSWERS = "INSERT INTO push_answer (push_service, minute) VALUES ('fcm', now() - interval '91 days'), ('fcm', now())"
AUDIT = """
INSERT INTO audit (audit_id, at, verb, actor)
SELECT id_floor(now() - ago), now() - ago, 'touch', 'me' FROM (VALUES (interval '89 days'), ('91 days')) AS v (ago)"""


@pytest.mark.parametrize(
    ("sweep", "rows", "table", "kept"),
    [
        (PURGE_EVIDENCE, EVIDENCE, "push_evidence", 2),
        (PURGE_ANSWERS, ANSWERS, "push_answer", 1),
        (PURGE_AUDIT, AUDIT, "audit", 1),
    ],
)
def test_old_rows_go_and_young_ones_stay(
    runtime: Runtime, pg: Pg, sweep: Sweep, rows: str, table: str, kept: int
) -> None:
    pg.execute(rows.encode())
    drive(runtime, sweep)
    assert len(pg.execute(f"SELECT FROM {table}".encode()).fetchall()) == kept
