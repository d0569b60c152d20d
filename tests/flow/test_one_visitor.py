"""One browser that is sent much is one browser: what it answers, again and again, is no outage and no mass death."""

from collections.abc import Iterator
from typing import Any

import pytest

from pushops.delivery.observing import Kind, Observation, once
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, Recorded, ends, outgoing, pages

MANY = 25


@pytest.fixture
def out(settings: Settings, pushed_to: PushService, recorded: Recorded) -> Iterator[Outgoing]:
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks) as made:
        yield made


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("answer", "end"), [({"status": 404}, "not_found"), ({"status": 410}, "gone"), ({"status": 500}, "due")]
)
def test_one_browser_of_a_quiet_push_service_opens_no_guard_and_stops_nothing(
    out: Outgoing, pg: Pg, recorded: Recorded, answer: dict[str, Any], end: str, *, at_once: bool
) -> None:
    endpoints = out.register(pg, "wns", 1)
    out.service.script("one", endpoints=endpoints, answer=answer)
    sent = []
    for _ in range(MANY):
        sent.append(out.send())
        if not at_once and answer["status"] < 500:  # faults of many batches are an outage's
            out.pump_all()
    out.pump_all()
    assert ends(pg, sent[0]) == {end: 1}
    assert pages(recorded) == []
    query = "SELECT count(*) FROM pushops.push_provider WHERE guard_id IS NOT NULL OR unhealthy_at IS NOT NULL"
    assert pg.execute(query).fetchone() == (0,)


def test_deaths_of_many_are_many() -> None:
    def died(whose: bytes) -> Observation:
        return Observation(1, Kind.TERMINAL, answered=True, code="gone", endpoint_hash=whose)

    found = [died(b"a"), died(b"b"), died(b"a"), died(b"c"), died(b""), died(b"")]
    assert [one.endpoint_hash for one in once(found, {b"c"})] == [b"a", b"b", b"", b""]
