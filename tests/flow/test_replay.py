"""Replays, end to end: letters go out again with what remains of their time, and once."""

from collections.abc import Iterator

import pytest

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replaying import attempts, drain, parked, states


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def test_a_letter_is_sent_again_and_closed(out: Outgoing, pg: Pg) -> None:
    (letter,) = parked(out, pg)
    done = drain(out.rt)
    assert (done.state, done.outcomes) == ("done", {"replayed": 1})
    assert states(pg) == {("replayed", "replayed"): 1}
    assert out.service.accepted(out.endpoints) == [1]
    (attempt,) = attempts(pg, letter)
    assert (attempt["outcome"], attempt["attempt"], attempt["run_id"]) == ("accepted", 11, done.run.run_id)
