"""One letter sent once more because an operator says so: the third gate is lifted, the others hold."""

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from pushops.deadletters.filters import read_reason
from pushops.deadletters.letter import CloseReason, ReplayOutcome, ReplayState
from pushops.deadletters.replay.sending import Group, Sender, make_lanes, opened
from pushops.deadletters.replay.settling import Hand
from pushops.deadletters.store import gates, replaying
from pushops.deadletters.store.replaying import Letter
from pushops.delivery.tools import Tools, open_tools
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.store import auditing
from pushops.sweeps.sql import PLAN_INDEX

PATIENCE: Final = timedelta(seconds=30)
# What the third gate says, and what came of a replay: an operator may know better. Other ends are what they are.
LIFTED: Final = frozenset(
    {CloseReason.ALREADY_REPLAYED, CloseReason.IN_DOUBT, CloseReason.REPLAYED, CloseReason.RESENT}
)


@dataclass(frozen=True)
class Resent:
    """``outcome``: replayed, or what came instead; held where it was not sent after all."""

    dlq_id: UUID
    outcome: ReplayOutcome


def resend(rt: Runtime, dlq_id: UUID, *, reason: str, actor: str) -> Resent:
    """Send a letter once more, parked or closed by the third gate; who said so and why is kept with the attempt.

    What is not taken is parked again, or closed as it was. Raises NotFoundError, and RefusedError where somebody has
    it in hand, where another gate keeps it, and where nothing says why.
    """
    why = read_reason(reason)
    tools = open_tools(rt)
    try:
        outcome = _send(rt, tools, dlq_id, Hand(uuid4(), actor, why=why))
    finally:
        tools.close()
    rt.events.emit("replay.resent", letter=dlq_id, outcome=outcome, actor=actor, why=why)
    return Resent(dlq_id, outcome)


def _send(rt: Runtime, tools: Tools, dlq_id: UUID, hand: Hand) -> ReplayOutcome:
    group, hand = _open(rt, tools, dlq_id, hand)
    sender = Sender(rt, tools, hand, stop_at=time.monotonic() + PATIENCE.total_seconds(), forced=True)
    sent = sender.run_opened(group)
    return next((outcome for outcome, letters in sent.counted.items() if letters), ReplayOutcome.HELD)


def _open(rt: Runtime, tools: Tools, dlq_id: UUID, hand: Hand) -> tuple[Group, Hand]:
    """A parked letter is claimed and opened, a closed one only opened: it is never reopened."""
    known = gates.params(tools.chain.vapid, forced=True)
    since = time.monotonic()
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        letter = replaying.one(tx, dlq_id, known)
        if letter is None:
            raise NotFoundError(f"expected the id of a dead letter, got {dlq_id}: see pushops dlq list")
        _check(letter)
        make_lanes(tx, [letter])
        auditing.note(tx, "dead_letter_resend", hand.by, {"letter": str(dlq_id), "why": hand.why})
        if letter.close_reason is None:
            replaying.take(tx, dlq_id, token=hand.token, lease=rt.settings.replay_lease)
        hand = replace(hand, closed=letter.close_reason is not None)
        letters = opened(tx, rt, hand, [dlq_id], known)
        if not letters or letters[0].verdict is not None:
            raise RefusedError("expected a letter that nobody is sending and no gate keeps, got one that is: try later")
        return Group(letters, tx.now, since), hand


def _check(letter: Letter) -> None:
    if letter.replay_state == ReplayState.CLAIMED:
        raise RefusedError("expected a letter that nobody has in hand, got one that a replay has: try again later")
    if letter.close_reason is not None and letter.close_reason not in LIFTED:
        raise RefusedError(
            f"expected a letter that the third gate closed, got one that is closed: {letter.close_reason}"
        )
    if letter.verdict is not None:
        raise RefusedError(f"expected a letter that may be sent, got one that is kept by a gate: {letter.verdict}")
