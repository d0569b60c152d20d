"""One letter sent once more on an operator's word: whatever was, but to nobody who is not there any more."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

import pushops
from pushops.deadletters import service as replays
from pushops.errors import NotFoundError, RefusedError
from pushops.ops import Ops
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.letters import letter
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replaying import attempts, change, drain, parked

WHY = "the customer called"


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def resend(out: Outgoing, dlq_id: UUID, reason: str = WHY) -> str:
    return replays.resend(out.rt, dlq_id, reason=reason, actor="ann").outcome


def test_a_letter_that_was_replayed_goes_out_once_more_and_says_who_wanted_it(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    drain(out.rt)
    assert resend(out, one) == "replayed"
    assert out.service.accepted(out.endpoints) == [2]
    found = letter(pg, one)
    assert (found["replay_state"], found["close_reason"], found["closed_by"]) == ("replayed", "resent", "ann")
    assert [(attempt["forced"], attempt["outcome"]) for attempt in attempts(pg, one)] == [
        (None, "accepted"),
        (WHY, "accepted"),
    ]
    noted = pg.execute("SELECT actor, detail FROM pushops.audit WHERE verb = 'dead_letter_resend'").fetchall()
    assert noted == [("ann", {"letter": str(one), "why": WHY})]


def test_a_letter_in_doubt_goes_out_on_an_operators_word(out: Outgoing, pg: Pg) -> None:
    (parked_one,) = parked(out, pg)
    (closed_one,) = parked(out, pg)
    change(pg, [parked_one, closed_one], in_doubt="true")
    assert resend(out, parked_one) == "replayed"
    assert drain(out.rt).outcomes == {"in_doubt": 1}
    assert resend(out, closed_one) == "replayed"
    assert out.service.accepted(out.endpoints) == [1, 1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"replayable": "false"}, "not_replayable"),
        ({"expires_at": "now() + interval '30 seconds'"}, "ttl_expired"),
        ({"owner_no": "99"}, "subscription_gone"),
    ],
)
def test_the_other_gates_hold_and_nothing_changes(out: Outgoing, pg: Pg, columns: dict[str, str], said: str) -> None:
    (one,) = parked(out, pg)
    change(pg, [one], **columns)
    before = letter(pg, one)
    with pytest.raises(RefusedError, match=said):
        resend(out, one)
    assert letter(pg, one) == before
    assert out.service.received(out.endpoints) == [0]
    assert pg.execute("SELECT count(*) FROM pushops.audit WHERE verb = 'dead_letter_resend'").fetchone() == (0,)


def test_what_another_gate_has_closed_stays_closed(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    change(pg, [one], replayable="false")
    drain(out.rt)
    change(pg, [one], replayable="true")
    with pytest.raises(RefusedError, match="not_replayable"):
        resend(out, one)


def test_a_letter_that_a_replay_has_in_hand_is_left_to_it(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    change(
        pg,
        [one],
        replay_state="'claimed'",
        claim_token="gen_random_uuid()",  # noqa: S106  (an expression)
        claimed_until="now() + interval '5 minutes'",
    )
    with pytest.raises(RefusedError, match="in hand"):
        resend(out, one)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_without_a_reason_nothing_is_sent(out: Outgoing, pg: Pg, reason: str) -> None:
    (one,) = parked(out, pg)
    with pytest.raises(RefusedError, match="reason"):
        resend(out, one, reason)


def test_an_unknown_letter_is_named(out: Outgoing) -> None:
    with pytest.raises(NotFoundError, match="dead letter"):
        resend(out, uuid4())


def test_a_parked_letter_that_is_not_taken_is_parked_again(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    change(pg, [one], in_doubt="true", next_replay_at="now() + interval '1 hour'")
    out.service.script("fails", answers=["fcm-503"])
    assert resend(out, one) == "failed"
    found = letter(pg, one)
    assert (found["replay_state"], found["replay_count"], found["claim_token"]) == ("parked", 1, None)


def test_a_closed_letter_is_never_reopened_whatever_comes_of_it(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    drain(out.rt)
    before = letter(pg, one)
    out.service.script("fails", answers=["fcm-503"])
    assert resend(out, one) == "failed"
    after = letter(pg, one)
    tried = {"attempt_count": before["attempt_count"] + 1, "last_attempt_at": after["last_attempt_at"]}
    assert after == before | tried
    assert [attempt["outcome"] for attempt in attempts(pg, one)] == ["accepted", "unavailable"]
    assert drain(out.rt).outcomes == {}


def test_a_closed_letter_that_somebody_is_sending_is_left_to_them(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    drain(out.rt)
    pg.execute(
        "INSERT INTO pushops.push_dlq_attempt (replay_key, attempt, kind) SELECT replay_key, 50, 'replay'"
        " FROM pushops.push_dlq"
    )
    before = letter(pg, one)
    with pytest.raises(RefusedError, match="nobody is sending"):
        resend(out, one)
    assert letter(pg, one) == before
    assert out.service.accepted(out.endpoints) == [1]


def test_the_verbs_stand_on_an_opened_runtime(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg, campaign="spring")
    ops = Ops(out.rt)
    assert isinstance(ops, pushops.Ops)
    assert ops.preview_replay(campaign="spring").would_send == 1
    done = ops.drain_dlq(campaign="spring", rate=1000)
    assert (done.opened, done.batches) == (True, 1)
    assert ops.resend_dead_letter(one, reason=WHY, actor="ann").outcome == "replayed"
    assert drain(out.rt, options={"rate": 1000}, campaign="spring").outcomes == {}
