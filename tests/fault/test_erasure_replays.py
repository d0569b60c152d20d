"""A replay that runs at the moment of an erasure sends nothing to who was erased, whatever it has in hand."""

from collections.abc import Iterator
from typing import Final

import pytest

from pushops.erasure import service as erasures
from pushops.erasure.sweeping import APPLY_ERASURES
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replay_faults import OPENED, ask, holding, replaying, run_over, standing
from tests.replaying import park
from tests.sweepdb import drive
from tests.sweeping import count, publishing, wait_until, workers

# Where a worker stands meanwhile: it has sifted its page, or has claimed the letters and is about to open them.
MOMENTS: Final = {
    "sifted": "LOCK TABLE pushops.push_rate IN SHARE MODE",
    "opening": "LOCK TABLE pushops.push_dlq_attempt IN SHARE MODE",
}


@pytest.fixture
def hurried(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return replaying(settings, pushed_to, valkey_url)


@pytest.fixture
def out(hurried: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(hurried, pushed_to) as made:
        yield made


@pytest.mark.parametrize(
    "lock",
    [
        pytest.param(MOMENTS["sifted"], marks=pytest.mark.long, id="sifted"),
        pytest.param(MOMENTS["opening"], id="opening"),
    ],
)
def test_a_replay_that_runs_sends_nothing_to_who_was_erased_meanwhile(
    lock: str, hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    erased, other = out.service.issue("fcm", 2)
    for subscription, user in ((erased, "ann"), (other, "bob")):
        subscriptions.save_subscription(out.rt, subscription, user_id=user)
        found = pg.execute("SELECT id FROM push_subscription WHERE endpoint = %s", [subscription["endpoint"]])
        park(pg, out.send(f"for {user}", ids=[row[0] for row in found]))
    with publishing(hurried), workers(hurried, 1) as pool:
        with holding(hurried, lock):
            ask()
            wait_until(lambda: standing(pg), expected=pool.tail)
            erasures.erase(out.rt, user="ann", actor="test")
        wait_until(lambda: run_over(pg), expected=pool.tail)
    assert out.service.accepted([erased["endpoint"], other["endpoint"]]) == [0, 1]
    assert count(pg, OPENED) == 0
    drive(out.rt, APPLY_ERASURES)
    assert count(pg, "SELECT count(*) FROM pushops.push_dlq WHERE owner = 'ann'") == 0
    assert count(pg, "SELECT count(*) FROM pushops.push_dlq WHERE owner = 'bob'") == 1
