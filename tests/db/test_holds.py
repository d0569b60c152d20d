"""Holds on a host under a key, and a push service's health: what stops sending, what starts it, who is woken."""

from datetime import timedelta
from typing import Any

import pytest

from pushops.delivery import holds, providers
from pushops.delivery.observing import Kind
from pushops.errors import NotFoundError
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.subscriptions.evidence import EvidenceOutcome, Finding
from tests import ledger
from tests.answering import observe, pages, settle, subscribers, table
from tests.rows import Pg

A, MISMATCH = Finding.ACCEPTED, Finding.MISMATCH


@pytest.fixture
def lane(pg: Pg) -> int:
    return ledger.lane(pg)


def test_five_refusals_of_our_key_hold_its_lane_and_wake_somebody_once(
    runtime: Runtime, lane: int, recorded: list[Any]
) -> None:
    """B13, B15, B16: a wrong clock, an unusable subject or a lost right is one hold row, and no row's fault."""
    assert not observe(runtime, lane, Kind.DENIED, 4).held_lanes
    found = observe(runtime, lane, Kind.DENIED, 1, code="vapid_auth")
    assert found.held_lanes == {lane}
    assert [hold.code for hold in found.opened_holds] == ["vapid_auth"]
    assert not found.waits, "the push service itself is well"
    again = observe(runtime, lane, Kind.DENIED, 50)
    assert (again.held_lanes, again.opened_holds) == ({lane}, ())
    assert pages(recorded) == ["hold.opened"]


def test_a_success_under_the_key_means_that_a_refusal_is_the_rows_own(runtime: Runtime, lane: int) -> None:
    """One visitor never holds a provider."""
    for _ in range(10):
        assert not observe(runtime, lane, Kind.DENIED, 4).held_lanes
        assert not observe(runtime, lane, Kind.ACCEPTED).held_lanes


def test_one_visitor_on_a_quiet_lane_holds_nothing_however_often_it_is_tried(
    runtime: Runtime, pg: Pg, lane: int
) -> None:
    ids = subscribers(pg, 2)
    for _ in range(8):
        assert not settle(runtime, lane, [(ids[0], MISMATCH)]).observed.held_lanes
    assert settle(runtime, lane, [(ids[1], MISMATCH)]).observed.held_lanes == {lane}


def test_refusals_that_are_far_apart_hold_nothing(runtime: Runtime, pg: Pg, lane: int) -> None:
    for _ in range(3):
        assert not observe(runtime, lane, Kind.DENIED, 3).held_lanes
        pg.execute("UPDATE push_lane SET faults = ARRAY(SELECT f - interval '5 minutes' FROM unnest(faults) AS f)")


def test_other_lanes_of_the_push_service_go_on(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B18: two keys, of which one is refused."""
    other = ledger.lane(pg, key="new")
    observe(runtime, lane, Kind.DENIED, 5)
    assert observe(runtime, other, Kind.ACCEPTED).held_lanes == frozenset()
    observe(runtime, other, Kind.DENIED, 4)
    held = pg.execute("SELECT lane_id FROM push_lane WHERE hold_id IS NOT NULL").fetchall()
    assert held == [(lane,)]


def test_a_probes_success_releases_the_lane(runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]) -> None:
    observe(runtime, lane, Kind.DENIED, 5)
    observe(runtime, lane, Kind.DENIED, probe=True)
    assert pg.execute("SELECT answers, probes FROM push_hold").fetchone() == (6, 1)
    message = ledger.message(pg)
    ledger.queue(pg, message, subscribers(pg, 3), lane)
    found = observe(runtime, lane, Kind.ACCEPTED, probe=True)
    assert (found.held_lanes, [one.members for one in found.released_holds]) == (frozenset(), [3])
    assert pg.execute("SELECT released_by, members FROM push_hold").fetchone() == ("probe", 3)
    assert recorded[-1][1] == "hold.released"


def test_a_lane_that_is_held_again_within_the_hour_wakes_nobody_again(
    runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]
) -> None:
    """B38: an outage that comes and goes is reported, not repeated."""
    for _ in range(3):
        observe(runtime, lane, Kind.DENIED, 5)
        observe(runtime, lane, Kind.ACCEPTED)
    assert pages(recorded) == ["hold.opened"]
    assert pg.execute("SELECT count(*) FROM push_hold").fetchone() == (3,)
    pg.execute("UPDATE push_hold SET opened_at = opened_at - interval '61 minutes'")
    observe(runtime, lane, Kind.DENIED, 5)
    assert pages(recorded) == ["hold.opened"] * 2


def test_opening_a_hold_lifts_the_blocks_set_since_the_last_success(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B17 in bulk: our key was swapped. The first rows looked foreign; then it shows that it is us."""
    ids = subscribers(pg, 8)
    settle(runtime, lane, [(ids[0], A)])
    message = ledger.message(pg)
    for row in ids[1:5]:
        done = settle(runtime, lane, [(row, MISMATCH)], message_id=message)
        assert done.outcomes == [EvidenceOutcome.BLOCKED]
    done = settle(runtime, lane, [(ids[5], MISMATCH)], message_id=message)
    assert done.outcomes == [EvidenceOutcome.COUNTED], "the fifth opens the hold before it is judged"
    assert done.observed.held_lanes == {lane}
    assert {one.message_id for one in done.observed.lifted} == {message}
    assert len(done.observed.lifted) == 4
    assert {row[7] for row in table(pg).values()} == {None}
    assert pg.execute("SELECT DISTINCT state, outcome FROM push_evidence WHERE outcome <> 'counted'").fetchall() == [
        ("discarded", "lifted")
    ]


def test_blocks_of_before_the_last_success_stay(runtime: Runtime, pg: Pg, lane: int) -> None:
    foreign, sibling, *others = subscribers(pg, 8)
    settle(runtime, lane, [(sibling, A)])
    settle(runtime, lane, [(foreign, MISMATCH)])
    settle(runtime, lane, [(sibling, A)])
    found = settle(runtime, lane, [(row, MISMATCH) for row in others[:5]])
    assert found.observed.lifted == ()
    assert table(pg)[foreign][7] == "key_mismatch"
    assert {table(pg)[row][7] for row in others} == {None}


def test_a_block_of_a_registration_before_is_not_lifted(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 6)
    settle(runtime, lane, [(ids[0], A)])
    settle(runtime, lane, [(ids[1], MISMATCH)])
    pg.execute("UPDATE push_subscription SET registration_no = 2 WHERE id = %s", [ids[1]])
    settle(runtime, lane, [(row, MISMATCH) for row in ids[2:6]])
    assert table(pg)[ids[1]][7] == "key_mismatch"


def test_an_operator_releases_a_hold_with_a_reason(runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]) -> None:
    observe(runtime, lane, Kind.DENIED, 5)
    (hold,) = holds.list_holds(runtime)
    assert (hold.code, hold.members, hold.released_at) == ("code", 0, None)
    assert holds.release(runtime, hold.hold_id, actor="ann", why="new subject").host == ledger.HOST
    assert pg.execute("SELECT hold_id, probe_at FROM push_lane").fetchone() == (None, None)
    assert holds.list_holds(runtime) == []
    assert holds.list_holds(runtime, released=True)[0].released_by == "ann"
    assert pg.execute("SELECT verb, actor, detail ->> 'why' FROM audit").fetchone() == (
        "hold_release",
        "ann",
        "new subject",
    )
    assert recorded[-1][2]["actor"] == "ann"
    with pytest.raises(NotFoundError):
        holds.release(runtime, hold.hold_id, actor="ann", why="again")


def test_a_missing_key_holds_its_lane_until_it_is_back(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    """B18: rows of a key that was taken away wait; putting it back lets them go."""
    gone, here = ledger.lane(pg, key="gone"), ledger.lane(pg, key="test")
    assert holds.open_for_cause(runtime, gone, holds.NO_KEY) is not None
    assert holds.open_for_cause(runtime, gone, holds.NO_KEY) is None
    assert pages(recorded) == ["hold.opened"]
    assert holds.release_by_cause(runtime) == 0
    holds.open_for_cause(runtime, here, holds.NO_KEY)
    assert holds.release_by_cause(runtime) == 1
    held = pg.execute("SELECT lane_id FROM push_lane WHERE hold_id IS NOT NULL").fetchall()
    assert held == [(gone,)]


def test_a_key_that_cannot_sign_is_told_from_one_that_is_missing(runtime: Runtime, pg: Pg) -> None:
    gone, here = ledger.lane(pg, key="gone"), ledger.lane(pg, key="test")
    for lane in (gone, here):
        observe(runtime, lane, Kind.DENIED, 5, code="vapid_sign")
    codes = pg.execute("SELECT vapid_key_id, code FROM push_hold ORDER BY 1").fetchall()
    assert codes == [("gone", "unknown_vapid_key"), ("test", "vapid_sign")]


def test_a_push_service_that_fails_waits_for_a_success_and_is_probed(
    runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]
) -> None:
    assert not observe(runtime, lane, Kind.FAULTY, 19).waits
    found = observe(runtime, lane, Kind.FAULTY, 1, code="dns")
    assert (found.waits, found.became_unhealthy, found.code) == (True, "faults", "dns")
    assert pg.execute("SELECT probe_at - unhealthy_at > interval '29 s' FROM push_provider").fetchone() == (True,)
    assert observe(runtime, lane, Kind.FAULTY, 1, probe=True).became_unhealthy is None
    back = observe(runtime, lane, Kind.ACCEPTED, 1, probe=True)
    assert (back.recovered, back.waits) == (True, False)
    assert not observe(runtime, lane, Kind.FAULTY, 19).waits, "what failed before counts no more"
    assert observe(runtime, lane, Kind.FAULTY, 1).waits
    assert pages(recorded) == ["provider.unhealthy"]
    assert [level for level, name, _ in recorded if name == "provider.unhealthy"] == [Level.PAGE, Level.WARNING]


def test_faults_older_than_the_window_do_not_count(runtime: Runtime, pg: Pg, lane: int) -> None:
    observe(runtime, lane, Kind.FAULTY, 19)
    pg.execute("UPDATE push_answer SET minute = minute - interval '6 minutes'")
    assert not observe(runtime, lane, Kind.FAULTY, 19).waits


def test_a_third_of_successes_keeps_a_push_service_going(runtime: Runtime, lane: int) -> None:
    observe(runtime, lane, Kind.ACCEPTED, 31)
    assert not observe(runtime, lane, Kind.FAULTY, 69).waits


def test_throttling_is_no_fault(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B25: 429 on everything slows, and neither holds nor opens anything."""
    found = observe(runtime, lane, Kind.THROTTLED, 500)
    assert (found.waits, found.guard_open, found.held_lanes) == (False, False, frozenset())
    assert pg.execute("SELECT throttled, faults, terminal FROM push_answer").fetchone() == (500, 0, 0)


def test_enough_others_that_succeed_make_a_failing_message_its_own_fault(runtime: Runtime, lane: int) -> None:
    observe(runtime, lane, Kind.ACCEPTED, 19)
    assert not observe(runtime, lane, Kind.FAULTY).others_succeed
    observe(runtime, lane, Kind.ACCEPTED)
    assert observe(runtime, lane, Kind.FAULTY).others_succeed


def test_the_list_of_push_services_says_why_each_waits(runtime: Runtime, pg: Pg, lane: int) -> None:
    message = ledger.message(pg)
    ledger.queue(pg, message, subscribers(pg, 4), lane)
    observe(runtime, lane, Kind.DENIED, 5, code="vapid_jwt")
    observe(runtime, lane, Kind.TERMINAL, 20)
    providers.pause(runtime, providers.Pausable.PROVIDER, "fcm", actor="ann", why="release")
    (found,) = providers.list_providers(runtime)
    assert (found.now.due, found.now.attempts, found.now.terminal) == (4, 25, 20)
    text = "; ".join(found.waits)
    for part in ("paused by ann: release", "guard open", "unhealthy: guard", "fcm.googleapis.com test: vapid_jwt"):
        assert part in text


@pytest.mark.parametrize("kind", providers.Pausable)
def test_pausing_is_done_once_audited_and_undone(
    kind: providers.Pausable, runtime: Runtime, pg: Pg, recorded: list[Any]
) -> None:
    name = {"provider": "apple", "key": "test", "campaign": "spring"}[kind]
    assert [providers.pause(runtime, kind, name, actor="ann") for _ in range(2)] == [True, False]
    (pause,) = providers.list_pauses(runtime)
    assert (pause.kind, pause.name, pause.paused_by) == (kind, name, "ann")
    assert [providers.resume(runtime, kind, name, actor="bob") for _ in range(2)] == [True, False]
    assert providers.list_pauses(runtime) == []
    assert pg.execute("SELECT verb, actor FROM audit ORDER BY audit_id").fetchall() == [
        ("pause", "ann"),
        ("resume", "bob"),
    ]
    assert [fields["verb"] for _, event, fields in recorded if event == "send.paused"] == ["pause", "resume"]


def test_a_slip_of_the_pen_pauses_nothing(runtime: Runtime) -> None:
    with pytest.raises(NotFoundError, match="fcm"):
        providers.pause(runtime, providers.Pausable.PROVIDER, "fmc", actor="ann")
    with pytest.raises(NotFoundError, match="test"):
        providers.pause(runtime, providers.Pausable.KEY, "tset", actor="ann")


def test_rows_of_a_campaign_wake_when_it_goes_on_and_no_others(
    runtime: Runtime, pg: Pg, lane: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "PAGE", 3)
    for campaign in ("spring", "summer"):
        providers.pause(runtime, providers.Pausable.CAMPAIGN, campaign, actor="ann")
        message = ledger.message(pg, campaign_id=f"'{campaign}'", state="'sending'")
        ledger.queue(pg, message, subscribers(pg, 8), lane, state="'paused'")
    providers.resume(runtime, providers.Pausable.CAMPAIGN, "spring", actor="ann")
    query = "SELECT campaign_id, d.state, count(*) FROM push_dispatch AS d JOIN push_message USING (message_id)"
    assert pg.execute(f"{query} GROUP BY 1, 2 ORDER BY 1".encode()).fetchall() == [
        ("spring", "due", 8),
        ("summer", "paused", 8),
    ]
    assert providers.wake(runtime, timedelta(seconds=1)) == 0
