"""Workers killed in mid-drain while others go on, every message doubled: at most once, but where twice is allowed."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from pushops.deadletters.replay.sending import FIRST_GROUP
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.hostile import CONFIG
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replay_faults import (
    CLAIMED,
    SCHEDULE,
    Reaped,
    as_counted,
    ask,
    at_most_once,
    changed_after_its_end,
    outcomes,
    reap,
    replaying,
    run_over,
    watch_ends,
)
from tests.replaying import due, parked, states
from tests.sweeping import beat, count, publishing, wait_until, workers

pytestmark = pytest.mark.long

TWICE: Final[dict[str, Any]] = {"config": CONFIG, "environment": {"FAULT": "twice"}}
# Two deaths of two children, each with the openings after which nothing had come back yet, and one that grew by that.
OPENED: Final = 4 * (FIRST_GROUP + 2 * 40)
DONE: Final = "SELECT count(*) FROM pushops.push_dlq WHERE replay_state IN ('replayed', 'discarded')"


@pytest.fixture
def hurried(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return replaying(settings, pushed_to, valkey_url)


@pytest.fixture
def out(hurried: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(hurried, pushed_to) as made:
        yield made


def test_workers_killed_again_and_again_in_mid_drain_send_nothing_twice(
    hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """Three pages of letters, two deaths somewhere in them, each with requests at the push service (D05, D07)."""
    parked(out, pg, 1200)
    watch_ends(pg)
    out.service.script("slow", delay=0.3)
    with publishing(hurried):
        for deaths in (1, 2):
            before = out.service.counts()["received"]
            with workers(hurried, 2, **TWICE) as victim, beat(hurried, SCHEDULE):
                ask()
                wait_until(lambda: out.service.counts()["received"] > before + 40, expected=victim.tail)  # noqa: B023
                victim.kill()
            assert count(pg, CLAIMED) > 0, f"expected letters in hand at death {deaths}"
            reap(out.rt, pg)
        out.service.clear()
        with workers(hurried, 2, **TWICE) as pool, beat(hurried, SCHEDULE):
            ask()
            wait_until(lambda: count(pg, DONE) == 1200 and run_over(pg), 60, pool.tail)
    at_most_once(pg, out.service)
    assert max(out.service.accepted(out.endpoints)) == 1
    assert changed_after_its_end(pg) == 0
    as_counted(pg)
    found = outcomes(pg)
    assert found.keys() == {"replayed", "in_doubt"}
    assert 0 < found["in_doubt"] <= OPENED, "what two children had opened, twice"


def test_what_was_killed_after_it_was_taken_goes_out_again_only_where_the_message_allows_it(
    hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """Of two messages one says that it may be sent twice: its letters wait like failed ones, in doubt (E07)."""
    parked(out, pg, 10)
    parked(out, pg, 10, on_in_doubt="resend")
    once, again = out.endpoints[:10], out.endpoints[10:]
    out.service.script("slow", delay=5.0)
    with publishing(hurried):
        with workers(hurried, 1, **TWICE) as victim:
            ask()
            wait_until(lambda: sum(out.service.accepted(out.endpoints)) > 0, expected=victim.tail)
            victim.kill()
        out.service.clear()
        taken = sum(out.service.accepted(again))
        assert reap(out.rt, pg) == Reaped(0, 20)
        assert states(pg) == {("discarded", "in_doubt"): 10, ("parked", None): 10}
        due(pg)
        with workers(hurried, 2, **TWICE) as pool, beat(hurried, SCHEDULE):
            wait_until(lambda: run_over(pg), expected=pool.tail)
            ask()
            wait_until(lambda: count(pg, DONE) == 20 and run_over(pg), expected=pool.tail)
    at_most_once(pg, out.service)
    assert max(out.service.accepted(once)) <= 1
    assert sum(out.service.accepted(again)) == 10 + taken
    assert states(pg) == {("discarded", "in_doubt"): 10, ("replayed", "replayed"): 10}
