"""The consent trail, and what is counted from it."""

from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest

from pushops.runtime import Runtime
from pushops.subscriptions import service
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

DAY = timedelta(days=1)
OVERLAPS: LiteralString = """
SELECT p.user_id, q.user_id FROM subscription_period AS p JOIN subscription_period AS q USING (endpoint_hash)
 WHERE p.period_id < q.period_id AND tstzrange(p.began_at, p.ended_at) && tstzrange(q.began_at, q.ended_at)"""


def test_a_repost_by_the_same_owner_adds_nothing(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    for _ in range(3):
        service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    (period,) = rows.periods(pg, endpoint)
    assert (period["user_id"], period["ended_at"], period["reconnection"]) == ("a", None, False)


@pytest.mark.parametrize(("days", "reconnection"), [(29, True), (31, False)])
def test_coming_back_is_a_reconnection_within_thirty_days(
    days: int, reconnection: bool, runtime: Runtime, pg: Pg
) -> None:
    """A16 of the features: a reconnection is no acquisition."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    service.unsubscribe(runtime, endpoint=endpoint)
    rows.age_periods(pg, endpoint, timedelta(days=days))
    assert service.save_subscription(runtime, subscribe(endpoint)).reconnection is reconnection
    assert [period["reconnection"] for period in rows.periods(pg, endpoint)] == [False, reconnection]


def test_a_user_who_comes_back_with_another_endpoint_reconnects(runtime: Runtime) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    service.unsubscribe(runtime, endpoint=endpoint)
    assert service.save_subscription(runtime, subscribe(), user_id="a").reconnection
    assert not service.save_subscription(runtime, subscribe(), user_id="b").reconnection


def test_a_second_device_is_no_reconnection(runtime: Runtime) -> None:
    service.save_subscription(runtime, subscribe(), user_id="a")
    assert not service.save_subscription(runtime, subscribe(), user_id="a").reconnection


def test_an_endpoint_that_changed_hands_did_not_end(runtime: Runtime) -> None:
    """The second owner is new here; whoever signs in again is not."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    assert not service.save_subscription(runtime, subscribe(endpoint), user_id="b").reconnection
    assert service.save_subscription(runtime, subscribe(endpoint), user_id="a").reconnection


def test_a_period_ends_once_and_keeps_its_beginning(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    service.unsubscribe(runtime, endpoint=endpoint)
    for change in ("end_reason = 'gone'", "ended_at = now()", "began_at = now()", "user_id = 'b'"):
        with pytest.raises(psycopg.errors.RaiseException):
            pg.execute(f"UPDATE subscription_period SET {change}")  # type: ignore[arg-type]


def test_starts_and_ends_are_counted_by_day_and_service(runtime: Runtime, pg: Pg) -> None:
    left, stayed = new_endpoint(), new_endpoint("updates.push.services.mozilla.com/wpush/v2")
    for endpoint in (left, stayed):
        service.save_subscription(runtime, subscribe(endpoint))
    service.unsubscribe(runtime, endpoint=left)
    for endpoint in (left, stayed):
        rows.age_periods(pg, endpoint, 2 * DAY)
    service.save_subscription(runtime, subscribe(left))
    pg.execute(
        "INSERT INTO subscription_ended VALUES"
        " ((now() AT TIME ZONE 'UTC')::date - 2, 'fcm', '', 'gone', 0, 4, 0, 3, 0, 0)"
    )
    pg.execute(  # what a batch counted a moment ago, on that day and on one that was not asked for
        "INSERT INTO subscription_ended_batch (push_service, origin, end_reason, slots, ended)"
        " SELECT 'fcm', '', reason, ARRAY[(today - 2) * 8 + bucket, (today - 9) * 8 + bucket], ended"
        "   FROM (SELECT (now() AT TIME ZONE 'UTC')::date - date '2000-01-01' AS today) AS days,"
        "        (VALUES ('gone', 2, '{3,90}'::int[]), ('aged_out', 5, '{4,0}')) AS kinds (reason, bucket, ended)"
    )
    today = rows.now(pg).date()
    found = service.stats(runtime, rows.now(pg) - 3 * DAY, rows.now(pg) + DAY)
    told = [
        ((today - day.day).days, day.push_service, day.started, day.reconnected, dict(day.ended), dict(day.purged))
        for day in found
    ]
    assert told == [
        (2, "fcm", 1, 0, {"unsubscribed": 1}, {"gone": 10, "aged_out": 4}),
        (2, "mozilla", 1, 0, {}, {}),
        (0, "fcm", 0, 1, {}, {}),
    ]


def test_an_heir_never_held_the_endpoint_while_another_did(runtime: Runtime, pg: Pg) -> None:
    old, new = new_endpoint(), subscribe()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    rows.age_periods(pg, old, 50 * DAY)
    service.save_subscription(runtime, new, user_id="b")
    service.detach(runtime, new["endpoint"])
    assert service.rotate(runtime, old, new).user_id == "a"
    assert pg.execute(OVERLAPS).fetchall() == []


def test_a_transaction_that_began_first_and_came_second_overlaps_nobody(
    runtime: Runtime, pg: Pg, database_url: str
) -> None:
    subscription = subscribe()
    service.save_subscription(runtime, subscription, user_id="a")
    with psycopg.connect(database_url) as late:
        late.execute("SELECT now()")
        service.save_subscription(runtime, subscription, user_id="b")
        service.save_subscription(runtime, subscription, user_id="c", conn=late)
    assert rows.owners(pg, subscription["endpoint"]) == [("a", "owner_changed"), ("b", "owner_changed"), ("c", None)]
    assert pg.execute(OVERLAPS).fetchall() == []
