"""When an erasure is late, and what is kept of a user."""

from datetime import timedelta

import pytest

from pushops.cli.doctor.findings import Level
from pushops.cli.doctor.forgetting import judge
from pushops.erasure.deadlines import Standing
from pushops.subscriptions.identity import endpoint_tag, user_hmac

KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("late", "very_late", "level"), [(0, 0, Level.OK), (1, 0, Level.WARNING), (2, 1, Level.PROBLEM)]
)
def test_a_day_late_is_a_warning_and_three_days_a_problem(late: int, very_late: int, level: Level) -> None:
    found = judge(Standing(open=3, held=1, late=late, very_late=very_late, oldest=timedelta(days=4)))
    assert found.level is level
    assert "1 under legal hold" in found.found


def test_a_users_hmac_needs_the_key_and_is_no_endpoints_tag() -> None:
    made = user_hmac("ann", key=KEY)
    assert len(made) == 32
    assert made == user_hmac("ann", key=KEY)
    assert made != user_hmac("ann", key=bytes(32))
    assert made != user_hmac("bob", key=KEY)
    assert endpoint_tag("ann", key=KEY) not in made.hex()
