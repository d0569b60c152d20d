"""Debian's Firefox as a subscriber of ours: registered, sent to by a real worker, revoked once it has unsubscribed."""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pytest

import pushops
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.firefox import PROGRAM, Firefox, firefox
from tests.outgoing import Pg, ends, rows_of
from tests.sweeping import Process, wait_until
from tests.system.conftest import key_of, sent
from tests.unsettled import sending

ORIGIN: Final = "https://shop.pushops.dev"
TEXT: Final = "gr\u00fc\u00dfe \N{SNOWMAN}"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Firefox is not installed")


@pytest.fixture
def settings(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return sending(settings, pushed_to, valkey_url)


@pytest.fixture
def browser(pushed_to: PushService) -> Iterator[Firefox]:
    with firefox(pushed_to) as started:
        yield started


def register(ops: pushops.Ops, browser: Firefox) -> UUID:
    """What a page and its site do: subscribe, and post what ``toJSON()`` gave."""
    key = key_of(ops)
    saved = ops.save_subscription(browser.subscribe(key), user_id="ann", origin=ORIGIN, application_server_key=key)
    return saved.id


def test_a_real_firefox_is_registered_sent_to_by_a_worker_and_revoked_once_it_left(
    ops: pushops.Ops, pg: Pg, worker: Process, browser: Firefox
) -> None:
    subscription_id = register(ops, browser)
    assert ops.show(subscription_id=subscription_id).state == "pending"
    first = sent(ops, pg, worker, TEXT)
    assert browser.received(1) == [TEXT]
    assert rows_of(pg, first, "outcome", "status", "subscription_id") == {("accepted", 201, subscription_id): 1}
    assert ops.show(subscription_id=subscription_id).state == "active"

    assert browser.unsubscribe()
    last = sent(ops, pg, worker, "too late")
    assert rows_of(pg, last, "outcome", "status", "subscription_id") == {("gone", 410, subscription_id): 1}
    row = ops.show(subscription_id=subscription_id)
    assert (row.state, row.end_reason) == ("revoked", "gone")
    assert browser.received(1) == [TEXT]
    assert ends(pg, ops.send("to nobody", user="ann").message_id) == {}


def test_a_real_firefox_whose_user_was_erased_is_told_to_unsubscribe_and_does(
    ops: pushops.Ops, pg: Pg, worker: Process, browser: Firefox
) -> None:
    """G7: what a page does with the advice, and what its site tells us then."""
    key = key_of(ops)
    subscription = browser.subscribe(key)
    endpoint = subscription["endpoint"]
    ops.save_subscription(subscription, user_id="ann", origin=ORIGIN, application_server_key=key)
    asked = ops.erase(user="ann")  # the worker is rung
    wait_until(lambda: ops.show_erasure(asked.request_id).state == "done", expected=worker.tail)
    assert pg.execute("SELECT count(*) FROM pushops.push_subscription").fetchone() == (0,)

    assert ops.touch(endpoint).advice == "unsubscribe"
    with pytest.raises(pushops.SubscriptionRefused) as refused:
        ops.save_subscription(subscription, user_id="ann", origin=ORIGIN, application_server_key=key)
    assert refused.value.advice == "unsubscribe"
    assert browser.unsubscribe()
    assert ops.confirm_unsubscribed(endpoint)
    assert pg.execute("SELECT count(*) FROM pushops.suppression").fetchone() == (0,)

    again = browser.subscribe(key)
    assert again["endpoint"] != endpoint
    ops.save_subscription(again, user_id="ann", origin=ORIGIN, application_server_key=key)
    assert browser.received(0) == []
