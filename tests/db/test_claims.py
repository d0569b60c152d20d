"""Claiming: which rows a sender may take, which end on the way, and whose they are then."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pushops.delivery.store import lanes, ledger
from pushops.runtime import Runtime
from tests import ledger as made
from tests.ledger import Conn
from tests.sweepdb import add_live, add_tombstones


def outcomes(pg: Conn, message_id: Any) -> list[tuple[str, str | None]]:
    return [(row["state"], row["outcome"]) for row in made.rows_of(pg, message_id)]


def test_a_claim_takes_what_is_due_and_counts_the_attempt(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 3, vapid_key_id="'test'"), lane)
    found = made.claim(runtime, [lane], limit=2)
    assert [row.attempts for row in found] == [1, 1]
    assert {row.picked for row in found} == {2}
    assert [row["state"] for row in made.rows_of(pg, message)].count("claimed") == 2


def test_two_claims_share_nothing(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 10), lane)
    first, second = made.claim(runtime, [lane], limit=6), made.claim(runtime, [lane], limit=6)
    assert (len(first), len(second)) == (6, 4)
    assert not {row.endpoint_hash for row in first} & {row.endpoint_hash for row in second}


def test_the_urgent_goes_first_and_what_is_not_due_not_at_all(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    slow, urgent, later = add_live(pg, 3)
    made.queue(pg, message, [slow], lane, priority="3", next_attempt_at="now() - interval '1 hour'")
    made.queue(pg, message, [urgent], lane, priority="0")
    made.queue(pg, message, [later], lane, priority="0", next_attempt_at="now() + interval '1 hour'")
    assert [row.subscription_id for row in made.claim(runtime, [lane], limit=1)] == [urgent]
    assert [row.subscription_id for row in made.claim(runtime, [lane])] == [slow]


@pytest.mark.parametrize(
    ("change", "outcome"),
    {
        "taken over": ("user_id = 'another'", "owner_changed"),
        "blocked": ("send_block = 'key_mismatch'", "key_mismatch"),
        "ended": (
            "state = 'revoked', deleted_at = now(), revoked_at = now(), end_reason = 'gone'",
            "subscription_gone",
        ),
    }.values(),
)
def test_what_may_not_be_sent_any_more_ends_on_the_way(runtime: Runtime, pg: Conn, change: str, outcome: str) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 1, user_id="'one'"), lane)
    pg.execute(f"UPDATE pushops.push_subscription SET {change}")
    assert made.claim(runtime, [lane]) == []
    assert outcomes(pg, message) == [("ended", outcome)]


def test_a_message_of_the_owner_before_last_stays_unsent(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 1, user_id="'one'"), lane)
    for owner in ("another", "one"):
        pg.execute("UPDATE pushops.push_subscription SET user_id = %s", [owner])
    assert made.claim(runtime, [lane]) == []
    assert outcomes(pg, message) == [("ended", "owner_changed")]


@pytest.mark.parametrize(("wait", "outcome"), [(None, "expired"), ("throttled", "throttled"), ("held", "held")])
def test_what_expired_is_named_by_what_it_waited_for(
    runtime: Runtime, pg: Conn, wait: str | None, outcome: str
) -> None:
    lane, message = made.lane(pg), made.message(pg)
    named = "NULL" if wait is None else f"'{wait}'"
    made.queue(pg, message, add_live(pg, 1), lane, expires_at="now()", wait=named)
    assert made.claim(runtime, [lane]) == []
    assert outcomes(pg, message) == [("ended", outcome)]


def test_a_cancelled_message_and_a_purged_subscription_end_too(runtime: Runtime, pg: Conn) -> None:
    lane, cancelled, orphaned = made.lane(pg), made.message(pg), made.message(pg)
    ids = add_live(pg, 2)
    made.queue(pg, cancelled, ids[:1], lane)
    made.queue(pg, orphaned, ids[1:], lane)
    pg.execute("UPDATE pushops.push_message SET cancelled_at = now() WHERE message_id = %s", [cancelled])
    pg.execute("DELETE FROM pushops.push_subscription WHERE id = %s", [ids[1]])
    assert made.claim(runtime, [lane]) == []
    assert outcomes(pg, cancelled) == [("ended", "cancelled")]
    assert outcomes(pg, orphaned) == [("ended", "subscription_gone")]


def test_an_endpoint_that_asked_for_a_pause_waits_for_its_end(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 2), lane)
    one = made.rows_of(pg, message)[0]["endpoint_hash"]
    with runtime.db.transaction() as tx:
        until = tx.now + timedelta(minutes=2)
        ledger.throttle(tx, [one, one], [tx.now, until])
    assert [row.endpoint_hash == one for row in made.claim(runtime, [lane])] == [False]
    waiting = made.rows_of(pg, message)[0]
    assert (waiting["state"], waiting["wait"], waiting["next_attempt_at"]) == ("due", "throttled", until)


def test_a_paused_campaign_leaves_the_queue_and_no_attempt_is_counted(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg, campaign_id="'c'")
    made.queue(pg, message, add_live(pg, 1), lane)
    pg.execute("INSERT INTO pushops.push_pause (kind, name, paused_by) VALUES ('campaign', 'c', 'test')")
    assert made.claim(runtime, [lane]) == []
    (row,) = made.rows_of(pg, message)
    assert (row["state"], row["attempts"]) == ("paused", 0)
    assert made.due_lanes(runtime) == []


def test_only_the_holder_settles(runtime: Runtime, pg: Conn) -> None:
    lane, message, token = made.lane(pg), made.message(pg), uuid4()
    made.queue(pg, message, add_live(pg, 2), lane)
    rows = made.claim(runtime, [lane], token=token)
    with runtime.db.transaction() as tx:
        assert ledger.settle_accepted(tx, uuid4(), rows, [201, 201], [None, None]) == set()
        assert ledger.settle_accepted(tx, token, rows[:1], [201], [60]) == {(message, rows[0].endpoint_hash)}
        assert ledger.settle_accepted(tx, token, rows[:1], [201], [60]) == set()
    assert sorted(outcomes(pg, message)) == [("claimed", None), ("ended", "accepted")]


def test_what_is_given_back_costs_no_attempt(runtime: Runtime, pg: Conn) -> None:
    lane, message, token = made.lane(pg), made.message(pg), uuid4()
    made.queue(pg, message, add_live(pg, 1), lane)
    rows = made.claim(runtime, [lane], token=token)
    with runtime.db.transaction() as tx:
        assert ledger.release(tx, token, rows) == 1
    (row,) = made.rows_of(pg, message)
    assert (row["state"], row["attempts"], row["claim_token"]) == ("due", 0, None)


def lose_lease(pg: Conn) -> None:
    pg.execute("UPDATE pushops.push_dispatch SET claimed_until = now() - interval '1 second' WHERE state = 'claimed'")


def reap(rt: Runtime) -> list[ledger.Reaped]:
    with rt.db.transaction() as tx:
        return ledger.reap(tx, limit=100, wait=timedelta(0), deaths=3)


def test_a_lost_claim_is_ambiguous_and_tried_again(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 1), lane)
    for deaths in (1, 2):
        assert len(made.claim(runtime, [lane])) == 1
        lose_lease(pg)
        (reaped,) = reap(runtime)
        assert reaped.outcome is None
        (row,) = made.rows_of(pg, message)
        assert (row["state"], row["wait"], row["ambiguous"], row["attempts"]) == ("due", "ambiguous", deaths, deaths)
    made.claim(runtime, [lane])
    lose_lease(pg)
    assert [row.outcome for row in reap(runtime)] == ["worker_lost"]
    assert outcomes(pg, message) == [("ended", "worker_lost")]


def test_a_lost_claim_of_a_message_that_says_drop_ends(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg, on_ambiguous="'drop'")
    made.queue(pg, message, add_live(pg, 1), lane)
    made.claim(runtime, [lane])
    lose_lease(pg)
    assert [row.outcome for row in reap(runtime)] == ["ambiguous"]


def test_a_worker_lost_before_posting_leaves_nothing_ambiguous(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg, rendered="true")
    made.queue(pg, message, add_live(pg, 1), lane)
    for _ in range(2):
        made.claim(runtime, [lane])
        lose_lease(pg)
        assert [row.outcome for row in reap(runtime)] == [None]
    made.claim(runtime, [lane])
    lose_lease(pg)
    reap(runtime)
    (row,) = made.rows_of(pg, message)
    assert (row["outcome"], row["code"], row["ambiguous"]) == ("worker_lost", "worker_lost", 0)


def test_attempts_of_an_outage_are_given_back_and_only_those(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_live(pg, 2), lane, attempts="4", next_attempt_at="now() + interval '1 hour'")
    pg.execute(
        "UPDATE pushops.push_dispatch SET suspect = 3, last_attempt_at = now() WHERE subscription_id ="
        " (SELECT min(subscription_id::text)::uuid FROM pushops.push_dispatch)"
    )
    with runtime.db.transaction() as tx:
        assert ledger.give_back(tx, [lane], timedelta(minutes=5)) == 1
    assert sorted((row["attempts"], row["suspect"]) for row in made.rows_of(pg, message)) == [(1, 0), (4, 0)]


def test_lanes_are_listed_while_they_have_something_due(runtime: Runtime, pg: Conn) -> None:
    lane, idle, message = made.lane(pg), made.lane(pg, host="web.push.apple.com", service="apple"), made.message(pg)
    ids = add_live(pg, 2)
    made.queue(pg, message, ids[:1], lane)
    made.queue(pg, message, ids[1:], idle, next_attempt_at="now() + interval '1 hour'")
    assert [found.lane_id for found in made.due_lanes(runtime)] == [lane]
    pg.execute("UPDATE pushops.push_lane SET hold_id = gen_random_uuid() WHERE lane_id = %s", [idle])
    assert {(found.lane_id, found.held) for found in made.due_lanes(runtime)} == {(idle, True), (lane, False)}
    pg.execute("INSERT INTO pushops.push_pause (kind, name, paused_by) VALUES ('provider', 'fcm', 'test')")
    assert [found.lane_id for found in made.due_lanes(runtime)] == [idle]


def test_the_rate_is_one_bucket_for_all_and_throttling_halves_it(runtime: Runtime, pg: Conn) -> None:
    with runtime.db.transaction() as tx:
        assert lanes.lock_rate(tx, "fcm", 1000) == 1000
        lanes.take(tx, "fcm", 1000)
    with runtime.db.transaction() as tx:
        assert lanes.lock_rate(tx, "fcm", 1000) < 300
        lanes.slow(tx, "fcm")
    pg.execute("UPDATE pushops.push_rate SET refilled_at = now() - interval '1 minute'")
    with runtime.db.transaction() as tx:
        assert lanes.lock_rate(tx, "fcm", 1000) == 500


def test_a_tombstone_is_never_claimed(runtime: Runtime, pg: Conn) -> None:
    lane, message = made.lane(pg), made.message(pg)
    made.queue(pg, message, add_tombstones(pg, 2), lane)
    assert made.claim(runtime, [lane]) == []
    assert outcomes(pg, message) == [("ended", "subscription_gone")] * 2
