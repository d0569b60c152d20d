"""The heartbeat: throttled in Redis, fresh in its advice, and a way back for stale rows."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

from pushops.errors import NotFoundError
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.rejection import Advice
from pushops.subscriptions.touching import Touched
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg


@pytest.fixture
def with_redis(runtime: Runtime, valkey_url: str) -> Iterator[Runtime]:
    client = redis.Redis.from_url(valkey_url)
    yield Runtime(runtime.settings, runtime.db, client, runtime.events)
    client.close()


@pytest.fixture
def endpoint(runtime: Runtime) -> str:
    found = new_endpoint()
    service.save_subscription(runtime, subscribe(found), user_id="a")
    return found


def test_a_heartbeat_writes_once_an_hour(with_redis: Runtime, pg: Pg, endpoint: str) -> None:
    """A24 of the features."""
    rows.age(pg, endpoint, timedelta(days=1), "last_seen_at")
    assert service.touch(with_redis, endpoint) == Touched("pending", Advice.KEEP, written=True)
    seen = rows.row(pg, endpoint)["last_seen_at"]
    assert service.touch(with_redis, endpoint) == Touched("pending", Advice.KEEP, written=False)
    assert rows.row(pg, endpoint)["last_seen_at"] == seen > rows.now(pg) - timedelta(minutes=5)
    (key,) = with_redis.redis.keys("*")  # type: ignore[union-attr, misc]
    assert 0 < with_redis.redis.pttl(key) <= 3_600_000  # type: ignore[union-attr, operator]
    assert endpoint not in key.decode()


def test_without_redis_every_heartbeat_writes(runtime: Runtime, endpoint: str) -> None:
    assert [service.touch(runtime, endpoint).written for _ in range(2)] == [True, True]


def test_a_dead_redis_only_costs_a_write(runtime: Runtime, endpoint: str) -> None:
    client = redis.Redis.from_url("unix:///nowhere/valkey.sock")
    broken = Runtime(runtime.settings, runtime.db, client, runtime.events)
    assert [service.touch(broken, endpoint).written for _ in range(2)] == [True, True]
    client.close()


def test_a_stale_row_comes_back_even_inside_the_hour(with_redis: Runtime, pg: Pg, endpoint: str) -> None:
    service.touch(with_redis, endpoint)
    rows.put_in_state(pg, endpoint, "stale")
    assert service.touch(with_redis, endpoint) == Touched("active", Advice.KEEP, written=True)


def test_success_and_sight_are_kept_apart(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    service.touch(runtime, endpoint)
    assert rows.row(pg, endpoint)["last_success_at"] is None


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("unsubscribed", Advice.UNSUBSCRIBE), ("gone", Advice.RESUBSCRIBE), ("rotated", Advice.RESUBSCRIBE)],
)
def test_an_ended_row_is_answered_at_once_and_stays_ended(
    reason: str, advice: Advice, with_redis: Runtime, pg: Pg, endpoint: str
) -> None:
    """G2 of the features: the client hears that it should let go."""
    service.touch(with_redis, endpoint)
    rows.put_in_state(pg, endpoint, "revoked", reason)
    assert service.touch(with_redis, endpoint) == Touched("revoked", advice, written=False)


def test_a_key_mismatch_or_a_past_expiration_asks_for_a_new_subscription(
    runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    pg.execute("UPDATE push_subscription SET send_block = 'key_mismatch'")
    assert service.touch(runtime, endpoint).advice is Advice.RESUBSCRIBE
    pg.execute("UPDATE push_subscription SET send_block = NULL, expiration_time = now() - interval '1 s'")
    assert service.touch(runtime, endpoint).advice is Advice.RESUBSCRIBE


def test_an_unknown_endpoint_is_told_to_register(runtime: Runtime) -> None:
    assert service.touch(runtime, new_endpoint()) == Touched(None, Advice.RESUBSCRIBE, written=False)
    with pytest.raises(NotFoundError):
        service.show(runtime, endpoint=new_endpoint())


def test_rows_are_listed_page_by_page_in_the_order_of_their_making(runtime: Runtime) -> None:
    made = [service.save_subscription(runtime, subscribe(), user_id="u", origin="o").id for _ in range(7)]
    service.save_subscription(runtime, subscribe(), user_id="v", origin="p")
    found, after = [], None
    while True:
        page = service.list_subscriptions(runtime, origin="o", state="pending", service="fcm", after=after, limit=3)
        found += [row.id for row in page.rows]
        after = page.next
        if after is None:
            break
    assert found == made
    assert [row.user_id for row in service.list_subscriptions(runtime, user="v").rows] == ["v"]
