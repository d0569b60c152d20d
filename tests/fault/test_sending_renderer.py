"""An application's renderer fails for one recipient: that row ends, and everybody else gets the message."""

from typing import Any

import pytest

from pushops import tasks
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Pg, Recorded, ends, one_row, outgoing, subscriptions_of
from tests.renderers import BAD
from tests.sweeping import beat, publishing, wait_until, workers
from tests.unsettled import SCHEDULE, lose_leases, make_due, sending

pytestmark = pytest.mark.long

OTHERS = 60


@pytest.mark.parametrize("renderer", ["raises", "too_much", "no_bytes"])
def test_what_a_renderer_cannot_make_ends_one_row(
    settings: Settings, pushed_to: PushService, pg: Pg, recorded: Recorded, renderer: str
) -> None:
    """No status, no retry, and nothing of the exception's text (B30)."""
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks, renderer=f"tests.renderers:{renderer}") as out:
        others = out.register(pg, "fcm", OTHERS, user_id="good")
        (bad,) = out.register(pg, "fcm", 1, user_id=BAD)
        message = out.send("hello ")
        out.pump_all()
        assert ends(pg, message) == {"accepted": OTHERS, "poison": 1}
        assert out.service.accepted([*others, bad]) == [1] * OTHERS + [0]
        row = one_row(pg, bad)
        assert (row["code"], row["status"], row["attempts"], row["ambiguous"]) == ("render", None, 1, 0)
        assert "secret" not in str(row) + str(recorded)
        assert subscriptions_of(pg, "votes", "send_block", "deleted_at IS NULL", endpoints=[bad]) == {
            (0, None, True): 1
        }
        if renderer == "raises":
            assert out.service.messages(others[0])[0]["text"] == "hello good"


def test_a_row_whose_rendering_kills_its_worker_goes_no_further_than_three(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """The attempt is counted before the risk; who was claimed beside it was not begun, and loses nothing (D07)."""
    hurried = sending(settings, pushed_to, valkey_url, renderer="tests.renderers:kills")
    with outgoing(hurried, pushed_to) as out:
        others = out.register(pg, "fcm", OTHERS, user_id="good")
        (bad,) = out.register(pg, "fcm", 1, user_id=BAD)
        message = out.send("hello")

    def over() -> bool:
        """Lets go of what nobody has settled in the time of a hundred such answers."""
        lose_leases(pg, older_than="1 second")
        make_due(pg)
        return not ends(pg, message).keys() & {"due", "claimed"}

    config = "worker_lost_wait = 0.1\n"
    with publishing(hurried), workers(hurried, 1, config=config) as pool, beat(hurried, SCHEDULE):
        tasks.send_due.delay()
        wait_until(over, 40, lambda: f"an end of each row\n{pool.tail()}", poll=0.2)
        assert pool.popen.poll() is None
    found: dict[str, Any] = one_row(pg, bad)
    assert (found["outcome"], found["code"], found["ambiguous"]) == ("worker_lost", "worker_lost", 0)
    assert ends(pg, message) == {"accepted": OTHERS, "worker_lost": 1}
    assert pushed_to.accepted(others) == [1] * OTHERS
