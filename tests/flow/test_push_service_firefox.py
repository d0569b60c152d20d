"""A real Firefox subscribes to the sandbox's push service; runs where Firefox is installed."""

import time

import pytest

from tests.firefox import PROGRAM, firefox
from tests.pushing import Sender, push, push_service

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Firefox is not installed")


@pytest.mark.long
def test_a_real_firefox_subscribes_receives_and_leaves() -> None:
    sender = Sender()
    with push_service() as service, firefox(service) as browser:
        subscription = browser.subscribe(sender.public)
        assert subscription["endpoint"].startswith("https://updates.push.services.mozilla.com/wpush/v2/")
        for text in ("first", "second \N{SNOWMAN}"):
            assert push(service, subscription, text.encode(), sender).status == 201
        assert browser.received(2) == ["first", "second \N{SNOWMAN}"]
        assert push(service, subscription).status == 401
        assert browser.unsubscribe()
        deadline = time.monotonic() + 30
        while push(service, subscription, sender=sender).status != 410:
            assert time.monotonic() < deadline, "expected 410 after unsubscribing"
