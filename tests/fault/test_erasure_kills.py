"""An erasure whose workers are killed over and over ends all the same, and counts every row once."""

from typing import Any, Final

import psycopg
import pytest

from pushops import tasks
from pushops.erasure import service as erasures
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from tests.browser import new_endpoint, subscribe
from tests.sweepdb import opened, scalar
from tests.sweeping import count, expire_leases, publishing, quick, tend, wait_until, workers

Pg = psycopg.Connection[Any]
MESSAGES: Final = 40_000
THEIRS: Final = 4_000

pytestmark = pytest.mark.long

# Messages that are over, to ten recipients each; ann is one of them in every tenth.
FILL: Final = """
INSERT INTO push_message (message_id, ttl, state, closed_at, fanned_out_at, recipients)
SELECT pushops.id_floor(now() + n * interval '1 millisecond'), 60, 'closed', now(), now(), 10
  FROM generate_series(1, %(count)s) AS n"""
RECEIVE: Final = """
INSERT INTO push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority, state, outcome,
                           ended_at, next_attempt_at, expires_at, user_id)
SELECT m.message_id, s.endpoint_hash, s.id, 1, 1, 1, 'ended', 'accepted', now(), now(), now(), 'ann'
  FROM (SELECT message_id, row_number() OVER (ORDER BY message_id) AS n FROM push_message) AS m, push_subscription AS s
 WHERE m.n % 10 = 0"""


def walked(pg: Pg) -> Any:
    return scalar(pg, "SELECT cursor FROM erasure_request WHERE done_at IS NULL")


def asked(rt: Runtime, pg: Pg) -> Any:
    service.save_subscription(rt, subscribe(new_endpoint()), user_id="ann")
    pg.execute(FILL, {"count": MESSAGES})
    pg.execute(RECEIVE)
    pg.execute("ANALYZE push_message, push_dispatch")
    return erasures.erase(rt, user="ann", actor="test").request_id


def test_an_erasure_whose_workers_are_killed_ends_and_counts_every_row_once(
    settings: Settings, pg: Pg, valkey_url: str
) -> None:
    hurried = quick(settings, valkey_url)
    with opened(hurried) as rt, publishing(hurried):
        request = asked(rt, pg)
        for _ in range(2):
            with workers(hurried, 1) as pool:
                before = walked(pg)
                tasks.apply_erasures.delay()
                wait_until(lambda: walked(pg) != before, expected=pool.tail, poll=0.005)  # noqa: B023  (asked at once)
                pool.kill()
            assert erasures.show_request(rt, request).state == "open"
            expire_leases(pg)
        with workers(hurried, 1) as pool:
            wait_until(
                lambda: tend(rt) is not None and erasures.show_request(rt, request).state == "done",
                expected=pool.tail,
                poll=0.2,
            )
        receipt = erasures.show_request(rt, request).receipt
    assert receipt["ledger"] == THEIRS
    assert receipt["subscriptions"] == 1
    assert count(pg, "SELECT count(*) FROM push_dispatch") == THEIRS
    assert count(pg, "SELECT count(*) FROM push_dispatch WHERE user_id IS NOT NULL") == 0
