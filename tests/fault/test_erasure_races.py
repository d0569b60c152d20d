"""Whatever is in flight while somebody is erased does not outlive it: registrations, rotations, senders, kills."""

import time
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pushops.delivery.store import ledger
from pushops.erasure import applying
from pushops.erasure import service as erasures
from pushops.erasure.words import Progress
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from pushops.subscriptions.identity import endpoint_hash
from tests import ledger as made
from tests.browser import new_endpoint, subscribe
from tests.erasing import apply
from tests.replay_faults import standing
from tests.sending import send_to
from tests.sweepdb import in_background, scalar
from tests.sweeping import wait_until

Pg = psycopg.Connection[Any]


def live(pg: Pg, endpoint: str) -> int:
    query = "SELECT count(*) FROM push_subscription WHERE endpoint_hash = %(hash)s AND deleted_at IS NULL"
    return int(scalar(pg, query, hash=endpoint_hash(endpoint)))


def outcome_of_saving(rt: Runtime, endpoint: str) -> str:
    try:
        return service.save_subscription(rt, subscribe(endpoint), user_id="ann").state
    except SubscriptionRefused as refused:
        return refused.reason


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_registration_that_commits_while_its_endpoint_is_erased_does_not_survive(
    known: bool, runtime: Runtime, pg: Pg, database_url: str
) -> None:
    endpoint = new_endpoint()
    if known:
        service.save_subscription(runtime, subscribe(endpoint), user_id="ann")
    with psycopg.connect(database_url) as conn:
        service.save_subscription(runtime, subscribe(endpoint), user_id="ann", conn=conn)
        with in_background(lambda: erasures.erase(runtime, endpoint=endpoint, actor="test")) as asked:
            wait_until(lambda: standing(pg))
            conn.commit()
            asked.result(timeout=30)
    assert live(pg, endpoint) == 0
    apply(runtime)
    assert scalar(pg, "SELECT count(*) FROM push_subscription") == 0


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_registration_that_waited_for_an_erasure_is_refused(
    known: bool, runtime: Runtime, pg: Pg, database_url: str
) -> None:
    endpoint = new_endpoint()
    if known:
        service.save_subscription(runtime, subscribe(endpoint), user_id="ann")
    with psycopg.connect(database_url) as conn:
        erasures.erase(runtime, endpoint=endpoint, actor="test", conn=conn)
        with in_background(lambda: outcome_of_saving(runtime, endpoint)) as saved:
            wait_until(lambda: standing(pg))
            conn.commit()
            assert saved.result(timeout=30) == "erased"
    assert live(pg, endpoint) == 0


def test_a_new_endpoint_of_the_user_that_commits_after_the_request_goes_with_the_rest(
    runtime: Runtime, pg: Pg, database_url: str
) -> None:
    endpoint = new_endpoint()
    with psycopg.connect(database_url) as conn:
        service.save_subscription(runtime, subscribe(endpoint), user_id="ann", conn=conn)
        erasures.erase(runtime, user="ann", actor="test")
        conn.commit()
    apply(runtime)
    assert scalar(pg, "SELECT count(*) FROM push_subscription") == 0
    assert service.touch(runtime, endpoint).advice == "unsubscribe"


def test_no_receipt_is_written_while_a_transaction_from_before_may_still_write(
    runtime: Runtime, pg: Pg, database_url: str
) -> None:
    """A page of a fan-out, or a registration, that had begun before the request and commits minutes after it."""
    endpoint = new_endpoint()
    with psycopg.connect(database_url) as conn:
        service.save_subscription(runtime, subscribe(endpoint), user_id="ann", conn=conn)
        request = erasures.erase(runtime, user="ann", actor="test").request_id
        for _ in range(3):
            assert applying.carry_on(runtime, request, time.monotonic() + 5) is Progress.WAITS
        assert erasures.show_request(runtime, request).waits == applying.UNSETTLED
        conn.commit()
    apply(runtime)
    assert scalar(pg, "SELECT count(*) FROM push_subscription") == 0
    assert erasures.show_request(runtime, request).receipt["subscriptions"] == 1


def test_an_old_snapshot_that_has_written_nothing_yet_is_waited_for_too(runtime: Runtime, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pushops.push_subscription")
        request = erasures.erase(runtime, user="ann", actor="test").request_id
        for _ in range(3):
            assert applying.carry_on(runtime, request, time.monotonic() + 5) is Progress.WAITS
        conn.execute("ROLLBACK")
    apply(runtime)
    assert erasures.show_request(runtime, request).state == "done"


def test_what_a_sender_has_in_hand_is_waited_for_and_then_forgotten(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="ann")
    send_to(runtime, b"hello", user="ann")
    token = uuid4()
    lanes = [lane.lane_id for lane in made.due_lanes(runtime)]
    claimed = made.claim(runtime, lanes, token=token)
    assert len(claimed) == 1
    request = erasures.erase(runtime, user="ann", actor="test").request_id
    assert applying.carry_on(runtime, request, time.monotonic() + 5) is Progress.WAITS
    assert erasures.show_request(runtime, request).waits == "a sender has a row in hand"
    with runtime.db.transaction() as tx:
        ledger.release(tx, token, claimed)
    apply(runtime)
    assert erasures.show_request(runtime, request).state == "done"
    rows = pg.execute("SELECT user_id, state, outcome FROM push_dispatch").fetchall()
    assert rows == [(None, "ended", "subscription_gone")]


def test_who_is_claimed_after_an_erasure_is_not_sent_to(runtime: Runtime, pg: Pg) -> None:
    service.save_subscription(runtime, subscribe(new_endpoint()), user_id="ann")
    send_to(runtime, b"hello", user="ann")
    lanes = [lane.lane_id for lane in made.due_lanes(runtime)]
    erasures.erase(runtime, user="ann", actor="test")
    assert made.claim(runtime, lanes) == []
    assert pg.execute("SELECT outcome FROM push_dispatch").fetchall() == [("subscription_gone",)]


def test_an_erasure_that_is_cut_off_after_every_page_ends_with_the_same_receipt(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "MESSAGES", 1)
    receipts = []
    for user, stop_at in (("ann", time.monotonic() + 60), ("bob", 0.0)):
        service.save_subscription(runtime, subscribe(new_endpoint()), user_id=user)
        for _ in range(5):
            send_to(runtime, b"hello", user=user)
        request = erasures.erase(runtime, user=user, actor="test").request_id
        looks = 0
        while applying.carry_on(runtime, request, stop_at) is not Progress.DONE:
            looks += 1
            assert looks < 100
        receipts.append((erasures.show_request(runtime, request).receipt, looks > 5))
    assert receipts[0][0] == receipts[1][0]
    assert [cut for _, cut in receipts] == [False, True]
    assert scalar(pg, "SELECT count(*) FROM push_dispatch WHERE user_id IS NOT NULL") == 0
