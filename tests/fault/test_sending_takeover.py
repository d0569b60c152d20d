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


def taken_over(out: Outgoing, made: Made, _user: str) -> str:
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "owner_changed"


def taken_over_and_back(out: Outgoing, made: Made, user: str) -> str:
    for owner in ("bob", user):
        subscriptions.save_subscription(out.rt, made, user_id=owner)
    return "owner_changed"


def reposted_by_nobody(out: Outgoing, made: Made, _user: str) -> str:
    subscriptions.save_subscription(out.rt, made)
    return "owner_changed"


def detached(out: Outgoing, made: Made, _user: str) -> str:
    subscriptions.detach(out.rt, made["endpoint"])
    return "owner_changed"


def detached_and_signed_in_again(out: Outgoing, made: Made, user: str) -> str:
    subscriptions.detach(out.rt, made["endpoint"])
    subscriptions.save_subscription(out.rt, made, user_id=user)
    return "owner_changed"


def logged_out_everywhere(out: Outgoing, _made: Made, user: str) -> str:
    subscriptions.detach_all(out.rt, user)
    return "owner_changed"


def rotated(out: Outgoing, made: Made, _user: str) -> str:
    (heir,) = out.service.issue("fcm", 1)
    subscriptions.rotate(out.rt, made["endpoint"], heir)
    return "subscription_gone"


def unsubscribed(out: Outgoing, made: Made, _user: str) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    return "subscription_gone"


def unsubscribed_and_taken_by_another(out: Outgoing, made: Made, _user: str) -> str:
    subscriptions.unsubscribe(out.rt, endpoint=made["endpoint"])
    subscriptions.save_subscription(out.rt, made, user_id="bob")
    return "owner_changed"


CHANGES: Final = (
    taken_over,
    taken_over_and_back,
    reposted_by_nobody,
    detached,
    detached_and_signed_in_again,
    logged_out_everywhere,
    rotated,
    unsubscribed,
    unsubscribed_and_taken_by_another,
)


def before_sending(_out: Outgoing, _pg: Pg) -> str | None:
    """The rows are in the ledger, and nobody has tried them."""
    return None


def before_a_retry(out: Outgoing, _pg: Pg) -> str | None:
    """They were answered 503 once."""
    out.service.script("busy", answer="*-503")
    assert out.pump_all() == len(CHANGES)
    return "retry"


def behind_a_hold(out: Outgoing, _pg: Pg) -> str | None:
    """Our key was refused, and a probe is what would go out first."""
    out.service.script("refused", answer={"status": 403})
    assert out.pump_all() == len(CHANGES)
    return "held"


@pytest.mark.parametrize("when", [before_sending, before_a_retry, behind_a_hold])
def test_what_was_queued_for_the_former_owner_is_not_sent(
    out: Outgoing, pg: Pg, when: Callable[[Outgoing, Pg], str | None]
) -> None:
    made = out.service.issue("fcm", len(CHANGES))
    queued = {}
    for number, (change, subscription) in enumerate(zip(CHANGES, made, strict=True)):
        subscriptions.save_subscription(out.rt, subscription, user_id=f"alice{number}")
        queued[change] = out.send(PRIVATE, user=f"alice{number}")
    waiting = when(out, pg)
    assert {one_row(pg, subscription["endpoint"])["wait"] for subscription in made} == {waiting}
    expected = {
        change.__name__: {change(out, subscription, f"alice{number}"): 1}
        for number, (change, subscription) in enumerate(zip(CHANGES, made, strict=True))
    }
    out.service.clear()
    for _ in range(2):
        hurry(pg)
        out.pump_all()
    assert {change.__name__: ends(pg, queued[change]) for change in CHANGES} == expected
    assert out.service.counts()["accepted"] == 0
    assert [out.service.messages(subscription["endpoint"]) for subscription in made] == [[]] * len(made)


def test_one_who_signs_in_again_at_the_same_browser_still_gets_what_was_queued(out: Outgoing, pg: Pg) -> None:
    """The same owner posts the same subscription at each visit, which changes nobody."""
    (made,) = out.service.issue("fcm", 1)
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    message = out.send(PRIVATE, user="alice")
    subscriptions.save_subscription(out.rt, made, user_id="alice")
    assert out.pump_all() == 1
    assert ends(pg, message) == {"accepted": 1}
