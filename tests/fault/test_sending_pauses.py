"""Operators stop sending: to a push service, under a key, of a campaign, altogether; and all of it goes out after."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pushops.delivery import providers
from pushops.delivery.providers import Pausable
from pushops.delivery.shift import NAME
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.sweeps import service as sweeps
from tests.outgoing import Outgoing, Pg, ends, outgoing, rows_of

Verb = Callable[[Outgoing], object]


@pytest.fixture
def stop_file(tmp_path: Path) -> Path:
    return tmp_path / "stop"


@pytest.fixture
def out(settings: Settings, pushed_to: PushService, stop_file: Path) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to, stop_file=stop_file) as made:
        yield made


def paused(kind: Pausable, name: str) -> tuple[Verb, Verb]:
    return (
        lambda out: providers.pause(out.rt, kind, name, actor="test", why="test"),
        lambda out: providers.resume(out.rt, kind, name, actor="test"),
    )


PAUSES = {
    "push service": paused(Pausable.PROVIDER, "fcm"),
    "key": paused(Pausable.KEY, "test"),
    "campaign": paused(Pausable.CAMPAIGN, "c"),
}


@pytest.mark.parametrize(("pause", "resume"), PAUSES.values(), ids=PAUSES.keys())
def test_what_is_paused_is_not_sent_and_all_of_it_is_after(out: Outgoing, pg: Pg, pause: Verb, resume: Verb) -> None:
    """Not before a look, not between two; no attempt is spent, and nothing is sent twice."""
    endpoints = out.register(pg, "fcm", 50)
    proven = out.send("proven")  # a push service that nobody was sent to is none that can be paused
    out.pump_all()
    assert ends(pg, proven) == {"accepted": 50}
    assert pause(out)
    message = out.send("paused", campaign="c")
    assert out.pump_all() == 0
    assert rows_of(pg, message, "outcome", "attempts") == {(None, 0): 50}
    assert out.service.accepted(endpoints) == [1] * 50
    assert resume(out)
    assert out.pump_all() == 50
    assert ends(pg, message) == {"accepted": 50}
    assert out.service.accepted(endpoints) == [2] * 50


def test_a_paused_campaign_keeps_no_other_from_being_sent(out: Outgoing, pg: Pg) -> None:
    out.register(pg, "fcm", 50)
    providers.pause(out.rt, Pausable.CAMPAIGN, "c", actor="test")
    waits, goes = out.send("waits", campaign="c"), out.send("goes", campaign="d")
    assert out.pump_all() == 50
    assert (ends(pg, waits), ends(pg, goes)) == ({"paused": 50}, {"accepted": 50})


def test_a_paused_push_service_keeps_no_other_from_being_sent_to(out: Outgoing, pg: Pg) -> None:
    out.register(pg, "fcm", 5)
    out.register(pg, "apple", 5)
    message = out.send()
    providers.pause(out.rt, Pausable.PROVIDER, "fcm", actor="test")
    assert out.pump_all() == 5
    assert rows_of(pg, message, "lane_id", "coalesce(outcome, state)").total() == 10
    assert ends(pg, message) == {"accepted": 5, "due": 5}


def test_the_sweep_s_pause_and_the_stop_file_hold_everything(out: Outgoing, pg: Pg, stop_file: Path) -> None:
    """The file works without the database, and both say why nothing goes out."""
    out.register(pg, "fcm", 20)
    message = out.send()
    sweeps.pause_named(out.rt, NAME, actor="test", why="maintenance")
    done = out.pump()
    assert (done.outcome, done.rows) == ("held", 0)
    assert done.reading is not None
    assert "maintenance" in done.reading.reason
    sweeps.resume_named(out.rt, NAME, actor="test")
    stop_file.touch()
    assert out.pump().outcome == "held"
    assert ends(pg, message) == {"due": 20}
    stop_file.unlink()
    assert out.pump_all() == 20
    assert ends(pg, message) == {"accepted": 20}
