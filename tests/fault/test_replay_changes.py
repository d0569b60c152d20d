"""What changes between a run's opening and the request: owners, subscriptions, messages, and the run itself."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from pushops.delivery import cancelling
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from pushops.sweeps import service as sweeps
from tests.hostile import CONFIG
from tests.letters import letter
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replay_faults import (
    CLAIMED,
    OPENED,
    as_counted,
    ask,
    at_most_once,
    ends_of_runs,
    holding,
    outcomes,
    replaying,
    run_over,
    standing,
    the_run,
)
from tests.replaying import age_messages, park, parked, states
from tests.sweeping import count, publishing, tend, wait_until, workers

Made = dict[str, Any]
TWICE: Final[dict[str, Any]] = {"config": CONFIG, "environment": {"FAULT": "twice"}}


@pytest.fixture
def hurried(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return replaying(settings, pushed_to, valkey_url)


@pytest.fixture
def out(hurried: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(hurried, pushed_to) as made:
        yield made


def accepted(out: Outgoing) -> int:
    return int(out.service.counts()["accepted"])


def nothing(_out: Outgoing, _made: Made, _message: Any) -> str:
    return "replayed"


def posted_again(out: Outgoing, made: Made, _message: Any) -> str:
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    return "replayed"


def taken_over(out: Outgoing, made: Made, _message: Any) -> str:
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "subscription_gone"


def taken_over_and_back(out: Outgoing, made: Made, _message: Any) -> str:
    for owner in ("bob", "alice"):
        subscriptions.save_subscription(out.rt, made, user_id=owner)
    return "subscription_gone"


def detached(out: Outgoing, made: Made, _message: Any) -> str:
    subscriptions.detach(out.rt, made["endpoint"])
    return "subscription_gone"


def unsubscribed(out: Outgoing, made: Made, _message: Any) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    return "subscription_gone"


def unsubscribed_and_taken_by_another(out: Outgoing, made: Made, _message: Any) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "subscription_gone"


def rotated(out: Outgoing, made: Made, _message: Any) -> str:
    (heir,) = out.service.issue("fcm", 1)
    subscriptions.rotate(out.rt, made["endpoint"], heir)
    return "subscription_gone"


def cancelled(out: Outgoing, _made: Made, message: Any) -> str:
    cancelling.cancel(out.rt, message_id=message, actor="test")
    return "message_cancelled"


CHANGES: Final[tuple[Callable[[Outgoing, Made, Any], str], ...]] = (
    nothing,
    posted_again,
    taken_over,
    taken_over_and_back,
    detached,
    unsubscribed,
    unsubscribed_and_taken_by_another,
    rotated,
    cancelled,
)
# Where a worker stands meanwhile: it has sifted its page, or is about to claim the letters and to open them.
MOMENTS: Final = {
    "sifted": "LOCK TABLE pushops.push_rate IN SHARE MODE",
    "opening": "LOCK TABLE pushops.push_dlq_attempt IN SHARE MODE",
}


@pytest.mark.parametrize(
    "lock",
    [
        pytest.param(MOMENTS["sifted"], marks=pytest.mark.long, id="sifted"),
        pytest.param(MOMENTS["opening"], id="opening"),
    ],
)
def test_what_changes_after_the_run_was_opened_counts_at_the_moment_of_sending(
    lock: str, hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """The gates judge again when the attempt is opened: a former owner's message is not sent (E12)."""
    made = out.service.issue("fcm", len(CHANGES))
    letters = []
    for number, subscription in enumerate(made):
        subscriptions.save_subscription(out.rt, subscription, user_id="alice")
        found = pg.execute("SELECT id FROM push_subscription WHERE endpoint = %s", [subscription["endpoint"]])
        message = out.send(f"for Alice {number}", ids=[row[0] for row in found])
        letters.append((message, *park(pg, message)))
    with publishing(hurried), workers(hurried, 1) as pool:
        with holding(hurried, lock):
            ask()
            wait_until(lambda: standing(pg), expected=pool.tail)
            expected = [
                change(out, subscription, message)
                for change, subscription, (message, _) in zip(CHANGES, made, letters, strict=True)
            ]
        wait_until(lambda: run_over(pg), expected=pool.tail)
    ends = [letter(pg, dlq_id)["close_reason"] for _, dlq_id in letters]
    assert dict(zip(CHANGES, ends, strict=True)) == dict(zip(CHANGES, expected, strict=True))
    assert out.service.accepted([each["endpoint"] for each in made]) == [int(end == "replayed") for end in expected]
    assert count(pg, OPENED) == 0


@pytest.mark.long
def test_a_message_cancelled_in_mid_drain_is_sent_to_nobody_who_was_not_opened_yet(
    hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    parked(out, pg, 900)
    out.service.script("slow", delay=0.2)
    with publishing(hurried), workers(hurried, 2) as pool:
        ask()
        wait_until(lambda: accepted(out) > 20, expected=pool.tail)
        (message,) = pg.execute("SELECT message_id FROM push_message").fetchone() or ()
        cancelling.cancel(out.rt, message_id=message, actor="test")
        out.service.clear()
        wait_until(lambda: tend(out.rt) is not None and run_over(pg), expected=pool.tail, poll=0.2)
    at_most_once(pg, out.service)
    as_counted(pg)
    found = states(pg)
    assert found.keys() == {("replayed", "replayed"), ("discarded", "message_cancelled")}
    assert found["discarded", "message_cancelled"] > 100


@pytest.mark.long
def test_a_run_paused_resumed_and_cancelled_in_mid_drain_leaves_nothing_in_hand(
    hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """Paused and cancelled it stops within a moment, and what was claimed and not tried is as it was (E16)."""
    parked(out, pg, 1500)
    out.service.script("slow", delay=0.3)
    with publishing(hurried), workers(hurried, 2, **TWICE) as pool:
        ask()
        wait_until(lambda: accepted(out) > 20, expected=pool.tail)
        run = the_run(pg)
        sweeps.pause_run(out.rt, run, actor="test", why="to look")
        wait_until(lambda: count(pg, CLAIMED) == 0, expected=pool.tail)
        replayed = states(pg)["replayed", "replayed"]
        assert accepted(out) == replayed < 1500
        sweeps.resume_run(out.rt, run, actor="test")
        ask(run_id=str(run))
        wait_until(lambda: tend(out.rt) and accepted(out) > replayed + 20, expected=pool.tail, poll=0.1)
        sweeps.cancel_run(out.rt, run, actor="test", why="enough")
        wait_until(lambda: tend(out.rt) is not None and run_over(pg), expected=pool.tail)
        wait_until(lambda: count(pg, CLAIMED) == 0, expected=pool.tail)
    at_most_once(pg, out.service)
    as_counted(pg)
    assert ends_of_runs(pg)[0][0] == "cancelled"
    found = states(pg)
    assert found.keys() == {("replayed", "replayed"), ("parked", None)}
    untouched = (
        "SELECT count(*) FROM push_dlq WHERE replay_state = 'parked' AND replay_count = 0 AND attempt_count = 10"
    )
    assert count(pg, untouched) == found["parked", None] > 100
    assert count(pg, OPENED) == 0


def test_not_one_of_a_backlog_of_codes_is_sent_however_often_it_is_asked_for(
    hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """Three days old, and may be replayed as far as their message says; every task is doubled (E01, E02)."""
    parked(out, pg, 1200, ttl=600, campaign="codes")
    age_messages(pg, "3 days")
    before = pg.execute("SELECT dlq_id, expires_at FROM push_dlq ORDER BY 1").fetchall()
    with publishing(hurried), workers(hurried, 4, **TWICE) as pool:
        for words in ({"campaign": "codes"}, {"class": "retry_exhausted"}, {"code": "unavailable"}, {}):
            ask(**words)
        wait_until(lambda: tend(out.rt) is not None and run_over(pg), 40, pool.tail)
        wait_until(lambda: states(pg) == {("discarded", "ttl_expired"): 1200}, expected=pool.tail)
    assert outcomes(pg) == {"stale": 1200}
    assert out.service.counts()["begun"] == 0
    assert pg.execute("SELECT dlq_id, expires_at FROM push_dlq ORDER BY 1").fetchall() == before
