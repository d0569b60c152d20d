"""A peer that reads the whole body on a kept connection and then goes: it gets that message once for each attempt."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, ends, hurry, outgoing, rows_of

COUNT: Final = 12  # fewer than would make a push service unhealthy
ENDINGS: Final = [{"fault": "reset"}, {"fault": "close"}, {"fault": "goaway"}, {"fault": "rst_stream"}]
HTTP1: Final = {"handshake": "http1"}


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def out(request: pytest.FixtureRequest, settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    """A sender whose connections are open: its first message has been accepted."""
    if request.param == "HTTP/1.1":
        pushed_to.script("version", **HTTP1)
    with outgoing(settings, pushed_to) as made:
        yield made


def warm(out: Outgoing) -> None:
    out.send("first")
    out.pump_all()
    out.service.reset_counts()


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: str(ending["fault"]))
@pytest.mark.parametrize("accept", [True, False])
def test_a_body_that_was_read_whole_is_not_sent_again_by_itself(
    out: Outgoing, pg: Pg, ending: dict[str, Any], accept: bool
) -> None:
    """One request for each attempt of the ledger's, and whether it was accepted is counted as unknown (B28)."""
    endpoints = out.register(pg, "fcm", COUNT)
    warm(out)
    out.service.script("ending", kept=True, at="end", accept=accept, **ending)
    message = out.send("second")
    out.pump_all()
    assert rows_of(pg, message, "ambiguous")[1] > 0, "the script did strike"
    out.service.clear("ending")
    for _ in range(2):
        hurry(pg)
        out.pump_all()
    assert ends(pg, message) == {"accepted": COUNT}
    received, accepted = out.service.received(endpoints), out.service.accepted(endpoints)
    said = told(pg, endpoints)
    assert [times <= tried for times, (tried, _) in zip(received, said, strict=True)] == [True] * COUNT
    assert [times <= 1 + unsure for times, (_, unsure) in zip(accepted, said, strict=True)] == [True] * COUNT


def told(pg: Pg, endpoints: list[str]) -> list[tuple[int, int]]:
    """Attempts and how many of them are ambiguous, of each endpoint's second message."""
    query = """
    SELECT d.attempts, d.ambiguous FROM unnest(%s::text[]) WITH ORDINALITY AS e (endpoint, n)
      JOIN pushops.push_dispatch AS d ON d.endpoint_hash = sha256(convert_to(e.endpoint, 'UTF8'))
     WHERE d.message_id = (SELECT max(message_id::text)::uuid FROM pushops.push_dispatch) ORDER BY e.n"""
    return pg.execute(query, [endpoints]).fetchall()


@pytest.mark.parametrize("fault", ["reset", "close", "hang"])
def test_a_message_that_says_drop_ends_with_its_first_unknown_answer(
    settings: Settings, pushed_to: PushService, pg: Pg, fault: str
) -> None:
    with outgoing(settings, pushed_to, read_timeout=timedelta(seconds=1)) as out:
        endpoints = out.register(pg, "fcm", COUNT)
        warm(out)
        out.service.script("ending", kept=True, at="end", accept=True, fault=fault)
        message = out.send("second", on_ambiguous="drop")
        out.pump_all()
        out.service.clear()
        hurry(pg)
        out.pump_all()
        found = ends(pg, message)
        assert found["ambiguous"] > 0
        assert found["accepted"] + found["ambiguous"] == COUNT
        assert rows_of(pg, message, "ambiguous")[1] == found["ambiguous"]
        assert max(out.service.accepted(endpoints)) == 1
