"""The end of a shift: what one push service's settling comes to is nobody else's trouble."""

import time
from datetime import timedelta
from typing import Any

import pytest

from pushops.delivery import settling
from pushops.errors import DataError
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Pg, ends, outgoing

HOSTS = {"fcm": "fcm.googleapis.com", "mozilla": "updates.push.services.mozilla.com"}
VENDORS = tuple(HOSTS)


@pytest.mark.parametrize("failing", VENDORS)
def test_a_settling_that_fails_leaves_the_answers_of_other_push_services_alone(
    settings: Settings, pushed_to: PushService, pg: Pg, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """It fails when the shift is over, and the others' last answers have only just come."""
    settle, (other,) = settling.settle, {*VENDORS} - {failing}

    def sometimes(rt: Any, service: str, *rest: Any) -> Any:
        if service == failing:
            time.sleep(1)  # under way when the others' answers come
            raise DataError("a fault on purpose")
        return settle(rt, service, *rest)

    with outgoing(settings, pushed_to) as out:
        for vendor in VENDORS:
            out.register(pg, vendor, 5)
        out.service.script("late", host=HOSTS[other], delay=0.6)
        message = out.send()
        monkeypatch.setattr(settling, "settle", sometimes)
        with pytest.raises(DataError):
            out.pump(timedelta(seconds=0.4))
    assert ends(pg, message) == {"accepted": 5, "claimed": 5}
    query = "SELECT DISTINCT push_service FROM pushops.push_lane JOIN pushops.push_dispatch USING (lane_id)"
    assert pg.execute(query + " WHERE state = 'claimed'").fetchall() == [(failing,)]
