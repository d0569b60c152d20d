"""Sending, end to end: a message becomes a push that the service decrypts, and its answers become ends."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pushops.delivery.pump import Outcome
from pushops.delivery.shift import NAME
from pushops.events import Level
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.sweeps import service as service_of_sweeps
from tests.outgoing import Outgoing, Pg, Recorded, ends, hurry, outgoing


@pytest.fixture
def service(pushed_to: PushService) -> PushService:
    return pushed_to


@pytest.fixture
def out(settings: Settings, service: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, service) as made:
        yield made


@pytest.mark.parametrize("vendor", ["fcm", "mozilla", "apple", "wns"])
def test_every_vendor_decrypts_what_was_sent(out: Outgoing, pg: Pg, vendor: str) -> None:
    (endpoint,) = out.subscribe(vendor)
    message = out.send("grüße", urgency="high", topic="news")
    assert out.pump_all() == 1
    assert ends(pg, message) == {"accepted": 1}
    (held,) = out.service.messages(endpoint)
    assert held["text"] == "grüße"
    state = pg.execute("SELECT state, last_success_at IS NOT NULL FROM pushops.push_subscription").fetchone()
    assert state == ("active", True)


def test_a_message_reaches_each_recipient_once(out: Outgoing, pg: Pg) -> None:
    for vendor in ("fcm", "mozilla", "apple", "wns"):
        out.subscribe(vendor, 25)
    message = out.send({"title": "hello"}, campaign="c1")
    assert out.pump_all() == 100
    assert ends(pg, message) == {"accepted": 100}
    assert out.service.accepted(out.endpoints) == [1] * 100


def answered(out: Outgoing, **script: Any) -> None:
    out.service.script("test", **script)


def test_410_revokes_and_the_message_ends_gone(out: Outgoing, pg: Pg) -> None:
    out.subscribe("mozilla", 30)
    gone = out.subscribe("mozilla", 1)
    out.service.unregister(gone)
    message = out.send(campaign="c2")
    out.pump_all()
    assert ends(pg, message) == {"accepted": 30, "gone": 1}
    query = "SELECT end_reason, deleted_at IS NOT NULL FROM pushops.push_subscription WHERE endpoint = %s"
    assert pg.execute(query, gone).fetchone() == ("gone", True)
    assert ends(pg, out.send()) == {"due": 30}


def test_503_waits_and_is_tried_again(out: Outgoing, pg: Pg) -> None:
    out.subscribe("fcm", 3)
    answered(out, host="fcm.googleapis.com", answers=["fcm-503", "as-usual"])
    message = out.send()
    assert out.pump_all() == 3
    waits = pg.execute(
        "SELECT DISTINCT state, wait, attempts, next_attempt_at > now() FROM pushops.push_dispatch"
    ).fetchall()
    assert waits == [("due", "retry", 1, True)]
    hurry(pg)
    assert out.pump_all() == 3
    assert ends(pg, message) == {"accepted": 3}
    assert out.service.accepted(out.endpoints) == [1, 1, 1]


def test_a_takeover_between_fan_out_and_send_keeps_the_message_from_the_new_owner(out: Outgoing, pg: Pg) -> None:
    (endpoint,) = out.subscribe("fcm", user_id="one")
    message = out.send(user="one")
    pg.execute("UPDATE pushops.push_subscription SET user_id = 'two' WHERE endpoint = %s", [endpoint])
    assert out.pump_all() == 0
    assert ends(pg, message) == {"owner_changed": 1}
    assert out.service.accepted([endpoint]) == [0]


def test_connections_that_die_under_their_requests_leave_the_next_ones_alone(out: Outgoing, pg: Pg) -> None:
    out.subscribe("fcm", 30)
    out.service.script("dies", host="fcm.googleapis.com", fault="close", kept=True, accept=True, times=3)
    message = out.send(on_ambiguous="drop")
    out.pump_all()
    found = ends(pg, message)
    assert found["accepted"] + found["ambiguous"] == 30
    assert found["ambiguous"] >= 1
    before = out.service.accepted(out.endpoints)
    assert set(before) <= {0, 1}  # what died with another's connection may have been read or not
    again = out.send()
    hurry(pg)  # so many streams died at once that the push service is only probed now
    out.pump_all()
    assert ends(pg, again) == {"accepted": 30}
    assert out.service.accepted(out.endpoints) == [count + 1 for count in before]


def test_an_operators_pause_and_the_stop_file_hold_sending_and_say_so(
    settings: Settings, service: PushService, pg: Pg, tmp_path: Path
) -> None:
    recorded: Recorded = []
    stop = tmp_path / "stop"

    def keep(level: Level, name: str, fields: Mapping[str, Any]) -> None:
        recorded.append((level, name, fields))

    with outgoing(settings, service, (keep,), stop_file=stop) as out:
        out.subscribe("fcm", 2)
        message = out.send()
        service_of_sweeps.pause_named(out.rt, NAME, actor="ann", why="a release")
        assert out.pump().outcome is Outcome.HELD
        service_of_sweeps.resume_named(out.rt, NAME, actor="ann")
        stop.touch()
        assert out.pump().outcome is Outcome.HELD
        stop.unlink()
        assert ends(pg, message) == {"due": 2}
        held = [fields for _, name, fields in recorded if name == "send.held"]
        assert [fields["valve"] for fields in held] == ["pause", "stop_file"]
        assert "a release" in held[0]["reason"]
        assert out.pump_all() == 2
    assert ends(pg, message) == {"accepted": 2}
