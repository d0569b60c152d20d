"""Fan-out: every live recipient once, in hash order, whoever works on it and whatever stops it."""

from datetime import timedelta

import pytest

from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.sending import Pg, fan_out, ledger, make_live, message, send_to


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"sweep_batch_rows": 7})


def test_every_live_subscription_is_a_recipient_once(runtime: Runtime, pg: Pg) -> None:
    ids = make_live(pg, 30) + make_live(pg, 5, state="pending")
    make_live(pg, 4, block="bad_keys")
    made = send_to(runtime, ttl=3600, urgency="high")
    assert (made.created, made.state) == (True, "waiting")
    assert fan_out(runtime, made.message_id) == 35
    rows = ledger(pg, made.message_id)
    assert {row["subscription_id"] for row in rows} == set(ids)
    found = message(pg, made.message_id)
    assert (found["state"], found["recipients"]) == ("sending", 35)
    assert found["expires_at"] - found["first_dispatched_at"] == timedelta(hours=1)
    assert {row["next_attempt_at"] for row in rows} == {found["first_dispatched_at"]}
    assert {row["expires_at"] for row in rows} == {found["expires_at"]}
    assert {(row["state"], row["priority"]) for row in rows} == {("due", 0)}
