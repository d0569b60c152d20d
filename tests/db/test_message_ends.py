"""The end of messages: what is left is ended with its reason, what is through is closed, what is out stays as it is."""

from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pushops.delivery import finishing
from pushops.delivery.cancelling import cancel
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from tests.ledger import age_freely
from tests.outgoing import ends
from tests.sending import Pg, ledger, make_live, message, send_to, sent


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "PAGE", 4)


def finish(rt: Runtime, pg: Pg) -> finishing.Finished:
    """What beat does once the time to look has come."""
    pg.execute("UPDATE push_message SET look_at = now() - interval '1 s' WHERE look_at IS NOT NULL")
    return finishing.finish(rt)


def settle(pg: Pg, message_id: UUID, count: int, outcome: str = "accepted") -> None:
    """End the first rows as senders do, which go by the hashes."""
    pg.execute(
        """UPDATE push_dispatch SET state = 'ended', outcome = %s, ended_at = now()
            WHERE message_id = %s AND endpoint_hash IN (SELECT endpoint_hash FROM push_dispatch
                  WHERE message_id = %s AND state = 'due' ORDER BY endpoint_hash LIMIT %s)""",
        [outcome, message_id, message_id, count],
    )


def claim(pg: Pg, message_id: UUID, number: int) -> bytes:
    """Take one row in hand, counted from 0 in the order of hashes."""
    chosen: bytes = ledger(pg, message_id)[number]["endpoint_hash"]
    pg.execute(
        """UPDATE push_dispatch SET state = 'claimed', claim_token = gen_random_uuid(),
                  claimed_until = now() + interval '1 min' WHERE message_id = %s AND endpoint_hash = %s""",
        [message_id, chosen],
    )
    return chosen


def expire(pg: Pg, message_id: UUID) -> None:
    age_freely(pg)
    pg.execute("UPDATE push_message SET expires_at = now() - interval '1 s' WHERE message_id = %s", [message_id])


def test_a_message_is_closed_once_all_its_rows_have_ended(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 11)
    message_id = sent(runtime)
    settle(pg, message_id, 10)
    assert finish(runtime, pg).closed == 0
    found = message(pg, message_id)
    assert (found["state"], found["finish_cursor"]) == ("sending", ledger(pg, message_id)[10]["endpoint_hash"])
    settle(pg, message_id, 1)
    assert finish(runtime, pg) == finishing.Finished(closed=1, ended=0, more=False)
    found = message(pg, message_id)
    assert found["state"] == "closed"
    assert found["closed_at"] is not None


def test_a_row_that_waits_in_the_middle_keeps_a_message_open(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 20)
    message_id = sent(runtime)
    claim(pg, message_id, 9)
    settle(pg, message_id, 19)
    assert finish(runtime, pg).closed == 0
    assert message(pg, message_id)["finish_cursor"] == ledger(pg, message_id)[9]["endpoint_hash"]


def test_a_message_of_nobody_is_closed(runtime: Runtime, pg: Pg) -> None:
    message_id = sent(runtime)
    assert finish(runtime, pg).closed == 1
    assert message(pg, message_id)["state"] == "closed"


def test_the_older_a_message_the_longer_between_two_looks(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 1)
    message_id = sent(runtime, ttl=86_400)
    waits = []
    for age in ("0 s", "5 min", "10 h"):
        pg.execute("UPDATE push_message SET first_dispatched_at = now() - %s::interval", [age])
        finish(runtime, pg)
        row = pg.execute("SELECT look_at - now() FROM push_message WHERE message_id = %s", [message_id]).fetchone()
        assert row is not None
        waits.append(round(row[0].total_seconds()))
    assert waits == [10, 30, 600]


def test_what_is_left_of_an_expired_message_ends_by_what_it_waited_for(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 24)
    message_id = sent(runtime)
    settle(pg, message_id, 4)
    hashes = [row["endpoint_hash"] for row in ledger(pg, message_id)][4:]
    waits = [("due", "throttled"), ("due", "held"), ("paused", "paused"), ("due", "retry"), ("due", None)]
    for number, found in enumerate(hashes):
        pg.execute(
            "UPDATE push_dispatch SET state = %s, wait = %s WHERE endpoint_hash = %s", [*waits[number % 5], found]
        )
    assert finish(runtime, pg).ended == 0
    expire(pg, message_id)
    assert finish(runtime, pg) == finishing.Finished(closed=1, ended=20, more=False)
    expected = Counter({"accepted": 4, "throttled": 4, "held": 4, "paused": 4, "expired": 8})
    assert ends(pg, message_id) == expected


@pytest.mark.parametrize(
    ("circumstance", "outcome"),
    [
        ("UPDATE push_lane SET hold_id = gen_random_uuid()", "held"),
        ("INSERT INTO push_provider (push_service, unhealthy_at) VALUES ('fcm', now())", "held"),
        ("INSERT INTO push_pause (kind, name, paused_by) VALUES ('provider', 'fcm', 'me')", "paused"),
        ("INSERT INTO push_pause (kind, name, paused_by) VALUES ('key', 'test', 'me')", "paused"),
        ("INSERT INTO push_pause (kind, name, paused_by) VALUES ('provider', 'mozilla', 'me')", "expired"),
    ],
)
def test_what_was_never_tried_ends_by_what_its_lane_waited_for(
    runtime: Runtime, pg: Pg, circumstance: str, outcome: str
) -> None:
    make_live(pg, 3, hosts=("fcm.googleapis.com",), services=("fcm",))
    message_id = sent(runtime)
    pg.execute(circumstance.encode())
    expire(pg, message_id)
    finish(runtime, pg)
    assert ends(pg, message_id) == {outcome: 3}


def test_cancelling_ends_what_nobody_has_in_hand(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 20)
    message_id = sent(runtime)
    settle(pg, message_id, 3)
    in_hand = claim(pg, message_id, 6)
    done = cancel(runtime, message_id, actor="me")
    assert (done.messages, done.rows) == ((message_id,), 16)
    assert ends(pg, message_id) == {"accepted": 3, "cancelled": 16, "claimed": 1}
    found = message(pg, message_id)
    assert (found["state"], found["cancelled_by"], found["finish_cursor"]) == ("cancelling", "me", in_hand)
    pg.execute(
        """UPDATE push_dispatch SET state = 'due', claim_token = NULL, claimed_until = NULL, wait = 'retry'
            WHERE state = 'claimed'"""
    )
    assert finish(runtime, pg) == finishing.Finished(closed=1, ended=1, more=False)
    assert ends(pg, message_id) == {"accepted": 3, "cancelled": 17}
    assert message(pg, message_id)["state"] == "closed"


def test_a_row_that_a_claim_has_locked_is_left_to_it(runtime: Runtime, pg: Pg, database_url: str) -> None:
    make_live(pg, 9)
    message_id = sent(runtime)
    locked = ledger(pg, message_id)[2]["endpoint_hash"]
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM pushops.push_dispatch WHERE endpoint_hash = %s FOR UPDATE", [locked])
        assert cancel(runtime, message_id).rows == 8
    assert finish(runtime, pg).ended == 1
    assert ends(pg, message_id) == {"cancelled": 9}


def test_cancelling_twice_or_too_late_does_nothing(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 2)
    message_id = sent(runtime)
    cancel(runtime, message_id, actor="first")
    again = cancel(runtime, message_id, actor="second")
    assert (again.messages, again.rows) == ((), 0)
    assert message(pg, message_id)["cancelled_by"] == "first"


def test_a_message_that_waits_is_cancelled_without_any_row(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 2)
    message_id = send_to(runtime).message_id
    assert cancel(runtime, message_id).messages == (message_id,)
    assert message(pg, message_id)["state"] == "closed"
    assert ledger(pg, message_id) == []


def test_a_campaign_is_cancelled_as_a_whole(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3)
    mine = {sent(runtime, campaign="spring"), send_to(runtime, campaign="spring").message_id}
    other = sent(runtime, campaign="autumn")
    assert set(cancel(runtime, campaign="spring").messages) == mine
    assert ends(pg, other) == {"due": 3}
    assert cancel(runtime, campaign="spring").messages == ()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({}, RefusedError), ({"message_id": UUID(int=1), "campaign": "x"}, RefusedError),
     ({"message_id": UUID(int=1)}, NotFoundError)],
)  # fmt: skip
def test_cancelling_needs_one_that_is_here(runtime: Runtime, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        cancel(runtime, **wrong)


def test_a_callers_transaction_that_is_rolled_back_cancels_nothing(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 2)
    message_id = sent(runtime)
    with pg.transaction(force_rollback=True):
        assert cancel(runtime, message_id, conn=pg).messages == (message_id,)
    assert message(pg, message_id)["state"] == "sending"


def test_rows_that_are_due_again_reopen_their_message(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 2)
    message_id = sent(runtime)
    settle(pg, message_id, 2, "key_mismatch")
    assert finish(runtime, pg).closed == 1
    pg.execute("UPDATE push_dispatch SET state = 'due', outcome = NULL, ended_at = NULL")
    with runtime.db.transaction() as tx:
        assert finishing.reopen(tx, [message_id]) == 1
    assert finish(runtime, pg).closed == 0
    assert message(pg, message_id)["state"] == "sending"


def test_what_the_time_did_not_reach_is_left_to_the_next_look(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 10)
    message_id = sent(runtime)
    expire(pg, message_id)
    walk = finishing.finish_one(runtime, message_id, until=0)
    assert (walk.ended, walk.closed) == (4, False)
    assert finish(runtime, pg).ended == 6
    assert message(pg, message_id)["state"] == "closed"
