"""A probe tells of its host or push service, not of the one row or the one host that is at fault."""

from collections.abc import Iterator

import pytest

from pushops.delivery import holds
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.outgoing import Outgoing, Pg, ends, outgoing

OTHERS = 5


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def probe(out: Outgoing, pg: Pg) -> None:
    """What waits does so for longer than between two probes; the next one is due, and what was the last is not."""
    pg.execute("UPDATE pushops.push_dispatch SET next_attempt_at = now() - interval '1 minute' WHERE attempts = 0")
    pg.execute("UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE wait = 'held'")
    for table in ("push_lane", "push_provider"):
        pg.execute(f"UPDATE pushops.{table} SET probe_at = now() WHERE probe_at IS NOT NULL".encode())
    out.pump_all()


def test_an_urgent_row_that_is_at_fault_alone_does_not_keep_a_hold(out: Outgoing, pg: Pg) -> None:
    others = out.register(pg, "fcm", OTHERS)
    message = out.send()
    (bad,) = out.register(pg, "fcm", 1, user_id="bad")
    out.service.script("bad", endpoints=[bad], answer={"status": 401})
    urgent = out.send(user="bad", urgency="high")
    for (lane,) in pg.execute("SELECT lane_id FROM pushops.push_lane").fetchall():
        holds.open_for_cause(out.rt, lane, "vapid_auth")
    probe(out, pg)
    pg.execute("UPDATE pushops.push_dispatch SET attempts = 1 WHERE message_id = %s", [urgent])
    probe(out, pg)
    assert holds.list_holds(out.rt) == []
    assert out.service.accepted(others) == [1] * OTHERS
    assert ends(pg, message) == {"accepted": OTHERS}


def test_one_host_that_is_away_does_not_keep_its_push_service_waiting(out: Outgoing, pg: Pg) -> None:
    """Its lane is the oldest, and was always looked at first."""
    for subscription in out.service.issue("apple", 2, host="away.push.apple.com"):
        subscriptions.save_subscription(out.rt, subscription)
    out.service.script("away", host="away.push.apple.com", answer={"status": 503})
    first = out.send()
    others = out.register(pg, "apple", OTHERS)
    message = out.send()
    pg.execute(
        "INSERT INTO pushops.push_provider (push_service, unhealthy_at, unhealthy_why, probe_at)"
        " VALUES ('apple', now(), 'faults', now())"
    )
    for _ in range(40):  # one of two lanes, by chance
        probe(out, pg)
        if out.service.accepted(others) == [1] * OTHERS:
            break
    assert ends(pg, message)["accepted"] == OTHERS
    assert ends(pg, first)["accepted"] == 0


def test_a_hold_is_probed_however_much_goes_through_another_lane(out: Outgoing, pg: Pg) -> None:
    """As much as the push service's rate allows, and more."""
    settings = out.rt.settings.model_copy(update={"provider_rate": 20.0})
    with outgoing(settings, out.service, provider_rate=20.0) as slow:
        slow.register(pg, "apple", 200)
        busy = slow.send()
        (held,) = slow.service.issue("apple", 1, host="other.push.apple.com")
        saved = subscriptions.save_subscription(slow.rt, held)
        message = slow.send(ids=[saved.id])
        query = "SELECT lane_id FROM pushops.push_lane WHERE host = 'other.push.apple.com'"
        ((lane,),) = pg.execute(query).fetchall()
        holds.open_for_cause(slow.rt, lane, "vapid_auth")
        pg.execute("UPDATE pushops.push_lane SET probe_at = now() WHERE hold_id IS NOT NULL")
        slow.pump()
        assert ends(pg, message) == {"accepted": 1}
        assert ends(pg, busy)["due"] > 0
