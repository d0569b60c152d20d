"""An hour in which a push service says that everybody is dead, and what is left of it: nothing is lost."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from pushops.delivery import guard
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.outgoing import Outgoing, Pg, Recorded, age, ends, outgoing, pages, subscriptions_of

FIRST: Final = 15  # whose deaths are believed, since a guard needs twenty
STANDING: Final = ("state", "votes", "deleted_at IS NULL", "send_block")


@pytest.fixture
def out(settings: Settings, pushed_to: PushService, recorded: Recorded) -> Iterator[Outgoing]:
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks) as made:
        yield made


def an_hour_of_404_then_410(out: Outgoing, pg: Pg) -> None:
    """Twelve looks five minutes apart, of which each finds one probe to send; then three more."""
    for look in range(15):
        if look == 12:
            out.service.script("outage", answer="*-410")
        age(pg, "5 minutes")
        assert out.pump().rows == 1, f"expected one probe at look {look}"


@pytest.mark.parametrize(
    ("verdict", "many"), [pytest.param("accept", 100_000, marks=pytest.mark.long), ("reject", 5_000)]
)
def test_an_hour_of_false_deaths_costs_no_subscription(
    out: Outgoing, pg: Pg, recorded: Recorded, verdict: str, many: int
) -> None:
    """The guard opens within twenty deaths, one page, and takes back what was believed before (B02, B03)."""
    first = out.register(pg, "fcm", FIRST, user_id="first")
    out.register(pg, "fcm", many - FIRST)
    out.service.script("outage", answer="*-404")
    out.send(user="first")
    assert out.pump().rows == FIRST
    assert subscriptions_of(pg, *STANDING, endpoints=first) == {("active", 1, True, None): FIRST}
    message = out.send(service="fcm", campaign="c")
    out.pump()
    assert pages(recorded) == [("guard.opened", "fcm", "streak")]
    asked = out.service.counts()["received"]
    assert asked <= FIRST + 20 + out.rt.settings.in_flight, "twenty, what was out already, and no more"
    assert evidence(pg) == {("pending", "turned_back"): FIRST, ("pending", "pending"): asked - FIRST}
    assert subscriptions_of(pg, *STANDING) == {("active", 0, True, None): many}

    an_hour_of_404_then_410(out, pg)
    assert out.service.counts()["received"] == asked + 15
    assert subscriptions_of(pg, *STANDING) == {("active", 0, True, None): many}

    out.service.clear()
    age(pg, "5 minutes")
    accepted = out.pump(timedelta(seconds=3)).rows
    assert accepted > 1, "a probe found it, and the others follow"
    assert pages(recorded) == [("guard.opened", "fcm", "streak")]
    found = ends(pg, message)
    dead = asked - FIRST + 12
    assert found == {"not_found": dead, "gone": 3, "accepted": accepted, "due": many - dead - 3 - accepted}
    assert accepted == out.service.counts()["accepted"]
    judged(out, pg, verdict, many)


def evidence(pg: Pg) -> Counter[Any]:
    """Votes and ends by what was done with them; what came after the guard opened did nothing."""
    return Counter(pg.execute("SELECT state, outcome FROM pushops.push_evidence").fetchall())


def judged(out: Outgoing, pg: Pg, verdict: str, many: int) -> None:
    judge = guard.accept if verdict == "accept" else guard.reject
    assert judge(out.rt, "fcm", reason="test", actor="test").answers > 0
    assert subscriptions_of(pg, "votes", "deleted_at IS NULL") == {(0, True): many}, "a dry run changes nothing"
    done = judge(out.rt, "fcm", reason="test", actor="test", dry_run=False)
    assert done.done
    alive = subscriptions_of(pg, "state", "deleted_at IS NULL")
    if verdict == "reject":
        assert subscriptions_of(pg, *STANDING) == {("active", 0, True, None): many}
        return
    assert alive == {("active", True): many - 3, ("revoked", False): 3}, "the 410s, and no 404"
    back = subscriptions.undo(out.rt, service="fcm", reason="gone", dry_run=False, actor="test")
    assert back.rows == 3
    assert subscriptions_of(pg, "state", "deleted_at IS NULL") == {("active", True): many}
