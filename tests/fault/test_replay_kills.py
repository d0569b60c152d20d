"""A worker killed at every step of a replay: each letter has a named end or is parked, and goes out at most once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replay_faults import (
    CLAIMED,
    OPENED,
    PARKED,
    Reaped,
    as_counted,
    ask,
    at_most_once,
    changed_after_its_end,
    holding,
    reap,
    replaying,
    standing,
    watch_ends,
)
from tests.replaying import drain, due, parked, states
from tests.sweeping import count, publishing, wait_until, workers

LETTERS: Final = 20


@dataclass(frozen=True)
class Step:
    """How a worker is made to stand at a step, what is seen of it there, and what is left of the letters.

    ``lock``: what the test holds. ``script``: of the push service. ``claimed``, ``opened``, ``accepted``: letters.
    """

    lock: str | None = None
    script: dict[str, Any] | None = None
    outage: str | None = None
    claimed: int = LETTERS
    opened: int = LETTERS
    accepted: Sequence[int] = (0,)
    received: int = 0
    done: int = 0

    @property
    def reaped(self) -> Reaped:
        return Reaped(self.claimed - self.opened, self.opened)

    @contextmanager
    def staged(self, settings: Settings, service: PushService) -> Iterator[None]:
        if self.script is not None:
            service.script("step", **self.script)
        service.outage(self.outage)
        with holding(settings, self.lock) if self.lock else nullcontext():
            yield
        service.clear()
        service.outage(None)

    def reached(self, pg: Pg, out: Outgoing) -> bool:
        if count(pg, CLAIMED) != self.claimed or count(pg, OPENED) != self.opened:
            return False
        if sum(out.service.accepted(out.endpoints)) not in self.accepted:
            return False
        if sum(out.service.received(out.endpoints)) < self.received:
            return False
        return bool(standing(pg)) if self.lock else True


HANGS: Final = {"fault": "hang"}
FEW: Final = 8  # requests that are out before the first answer
STEPS: Final = {
    "before the claim": Step(lock="LOCK TABLE pushops.push_rate IN SHARE MODE", claimed=0, opened=0),
    "after the claim": Step(lock="LOCK TABLE pushops.push_dlq_attempt IN SHARE MODE", claimed=0, opened=0),
    "after the key": Step(outage="deaf"),
    "in mid-body": Step(script=HANGS | {"at": "body"}),
    "during the POST": Step(script=HANGS, received=1),
    "after it was taken": Step(script=HANGS | {"accept": True}, accepted=range(1, FEW + 1), received=1),
    "after the answer": Step(lock="LOCK TABLE pushops.push_provider IN SHARE MODE", accepted=(LETTERS,)),
    "in the settling": Step(lock="LOCK TABLE pushops.push_subscription IN SHARE MODE", accepted=(LETTERS,)),
    "after the settling": Step(
        lock="LOCK TABLE pushops.sweep_receipt IN SHARE MODE", claimed=0, opened=0, accepted=(LETTERS,), done=LETTERS
    ),
}


@pytest.fixture
def hurried(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    return replaying(settings, pushed_to, valkey_url)


# Every step stands for others here that are tried before a release.
MARKS: Final = dict.fromkeys(
    (
        "before the claim",
        "after the claim",
        "after the key",
        "in mid-body",
        "after it was taken",
        "in the settling",
        "after the settling",
    ),
    pytest.mark.long,
)


@pytest.fixture
def out(hurried: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(hurried, pushed_to) as made:
        yield made


def kill_at(step: Step, hurried: Settings, out: Outgoing, pg: Pg, **fault: Any) -> None:
    """Doubled tasks for two children, one of which comes to the step; then SIGKILL for all of them."""
    with publishing(hurried), step.staged(hurried, out.service), workers(hurried, 2, **fault) as victim:
        for _ in range(3):
            ask()
        wait_until(lambda: step.reached(pg, out), expected=lambda: f"the step\n{victim.tail()}")
        victim.kill()


@pytest.mark.parametrize("step", [pytest.param(STEPS[name], id=name, marks=MARKS.get(name, ())) for name in STEPS])
def test_a_worker_killed_at_any_step_leaves_letters_that_are_parked_or_in_doubt(
    step: Step, hurried: Settings, out: Outgoing, pg: Pg
) -> None:
    """What was not begun is parked as it was, what may have been sent is in doubt; the rest goes out (D05, E06)."""
    parked(out, pg, LETTERS)
    watch_ends(pg)
    kill_at(step, hurried, out, pg)
    assert reap(out.rt, pg) == step.reaped
    assert states(pg) == expected_after(step)
    unchanged = "SELECT count(*) FROM pushops.push_dlq WHERE replay_count = 0 AND attempt_count = 10"
    assert count(pg, unchanged) == LETTERS - step.opened - step.done
    at_most_once(pg, out.service)
    due(pg)
    assert drain(out.rt, options={}, error_class="retry_exhausted").state == "done"
    assert count(pg, PARKED) == 0
    at_most_once(pg, out.service)
    as_counted(pg)
    assert changed_after_its_end(pg) == 0


def expected_after(step: Step) -> dict[tuple[str, str | None], int]:
    ends = {
        ("parked", None): LETTERS - step.opened - step.done,
        ("discarded", "in_doubt"): step.opened,
        ("replayed", "replayed"): step.done,
    }
    return {end: letters for end, letters in ends.items() if letters}
