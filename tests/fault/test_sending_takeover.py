"""A shared browser changes hands between fan-out, retry and send: the former owner's message is never received."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.outgoing import Outgoing, Pg, ends, hurry, one_row, outgoing

Made = dict[str, Any]
PRIVATE: Final = "for Alice only"


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def taken_over(out: Outgoing, made: Made) -> str:
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "owner_changed"


def taken_over_and_back(out: Outgoing, made: Made) -> str:
    for user in ("bob", "alice"):
        subscriptions.save_subscription(out.rt, made, user_id=user)
    return "owner_changed"


def reposted_by_nobody(out: Outgoing, made: Made) -> str:
    subscriptions.save_subscription(out.rt, made)
    return "owner_changed"


def detached(out: Outgoing, made: Made) -> str:
    subscriptions.detach(out.rt, made["endpoint"])
    return "owner_changed"


def detached_and_signed_in_again(out: Outgoing, made: Made) -> str:
    subscriptions.detach(out.rt, made["endpoint"])
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    return "owner_changed"


def logged_out_everywhere(out: Outgoing, _made: Made) -> str:
    subscriptions.detach_all(out.rt, "alice")
    return "owner_changed"


def rotated(out: Outgoing, made: Made) -> str:
    (heir,) = out.service.issue("fcm", 1)
    subscriptions.rotate(out.rt, made["endpoint"], heir)
    return "subscription_gone"


def unsubscribed(out: Outgoing, made: Made) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    return "subscription_gone"


def unsubscribed_and_taken_by_another(out: Outgoing, made: Made) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "owner_changed"


def before_sending(_out: Outgoing, _pg: Pg, _endpoint: str) -> None:
    """The row is in the ledger, and nobody has tried it."""


def before_a_retry(out: Outgoing, pg: Pg, endpoint: str) -> None:
    """It was answered 503 once."""
    out.service.script("busy", answer="*-503")
    assert out.pump_all() == 1
    assert one_row(pg, endpoint)["attempts"] == 1
    out.service.clear()


def behind_a_hold(out: Outgoing, pg: Pg, endpoint: str) -> None:
    """Our key was refused, and the probe is what would go out."""
    out.service.script("refused", answer={"status": 403})
    for _ in range(5):
        hurry(pg)
        out.pump_all()
    assert one_row(pg, endpoint)["wait"] == "held"
    out.service.clear()


@pytest.mark.parametrize("when", [before_sending, before_a_retry, behind_a_hold])
@pytest.mark.parametrize(
    "change",
    [
        taken_over,
        taken_over_and_back,
        reposted_by_nobody,
        detached,
        detached_and_signed_in_again,
        logged_out_everywhere,
        rotated,
        unsubscribed,
        unsubscribed_and_taken_by_another,
    ],
)
def test_what_was_queued_for_the_former_owner_is_not_sent(
    out: Outgoing,
    pg: Pg,
    change: Callable[[Outgoing, Made], str],
    when: Callable[[Outgoing, Pg, str], None],
) -> None:
    (made,) = out.service.issue("fcm", 1)
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    message = out.send(PRIVATE, user="alice")
    when(out, pg, made["endpoint"])
    outcome = change(out, made)
    hurry(pg)
    out.pump_all()
    assert ends(pg, message) == {outcome: 1}
    assert out.service.counts()["accepted"] == 0
    assert out.service.messages(made["endpoint"]) == []


def test_one_who_signs_in_again_at_the_same_browser_still_gets_what_was_queued(out: Outgoing, pg: Pg) -> None:
    """The same owner posts the same subscription at each visit, which changes nobody."""
    (made,) = out.service.issue("fcm", 1)
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    message = out.send(PRIVATE, user="alice")
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    assert out.pump_all() == 1
    assert ends(pg, message) == {"accepted": 1}
