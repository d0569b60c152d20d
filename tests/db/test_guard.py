"""The guard against mass death: when it opens, what it gives back, what an operator makes of what it kept."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pushops.delivery import guard
from pushops.delivery.observing import Kind
from pushops.errors import NotFoundError
from pushops.events import Level
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.work import work
from tests import ledger
from tests.answering import Settled, evidence_states, observe, pages, settle, states, subscribers, table
from tests.rows import Pg

A, G, V = Finding.ACCEPTED, Finding.GONE, Finding.VOTE
ASK = {"reason": "looked", "actor": "ann"}


@pytest.fixture
def lane(pg: Pg) -> int:
    return ledger.lane(pg)


def batches(rt: Runtime, lane: int, ids: list[UUID], found: list[Finding], size: int = 25) -> list[Settled]:
    answers = list(zip(ids, found, strict=True))
    return [settle(rt, lane, answers[n : n + size], campaign_id="c") for n in range(0, len(answers), size)]


def pass_time(pg: Pg, span: str) -> None:
    """Age what was counted and kept, and the rows that it was about, as if that had been so long ago."""
    pg.execute(f"UPDATE push_answer SET minute = minute - interval '999 days' - interval '{span}'".encode())
    pg.execute("UPDATE push_answer SET minute = minute + interval '999 days'")
    pg.execute(
        f"UPDATE push_evidence SET at = at - interval '{span}', started_at = started_at - interval '{span}'".encode()
    )
    pg.execute(
        f"UPDATE push_subscription SET last_vote_at = last_vote_at - interval '{span}', first_vote_at ="
        f" first_vote_at - interval '{span}', revoked_at = revoked_at - interval '{span}', deleted_at ="
        f" deleted_at - interval '{span}', last_success_at = last_success_at - interval '{span}'".encode()
    )


def test_a_campaign_with_three_per_cent_dead_revokes_and_opens_nothing(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 1_000)
    done = batches(runtime, lane, ids, [G if n % 34 == 0 else A for n in range(1_000)], 100)
    assert not any(settled.observed.guard_open for settled in done)
    assert states(pg) == {"active": 970, "revoked": 30}


def test_a_share_that_cannot_be_opens_it_and_gives_back_what_it_took(
    runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]
) -> None:
    """B02: half of all answers are 404 or 410 from one minute to the next."""
    ids = subscribers(pg, 400)
    before = table(pg)
    done = batches(runtime, lane, ids, [(A, G, A, V)[n % 4] for n in range(400)])
    opened = [settled.observed.opened_guard for settled in done if settled.observed.opened_guard]
    assert len(opened) == 1
    assert pages(recorded) == ["guard.opened"]
    assert states(pg) == {"active": 400}
    after = table(pg)
    assert {row: after[row] for row in ids} == before
    assert evidence_states(pg) == {"pending": 200}
    open_periods = pg.execute("SELECT count(*) FROM subscription_period WHERE ended_at IS NULL").fetchone()
    assert open_periods == (400,)


def test_twenty_in_a_row_open_it_before_a_hundred_answers(
    runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]
) -> None:
    ids = subscribers(pg, 20)
    before = table(pg)
    done = batches(runtime, lane, ids, [G, V] * 10, 19)
    assert [settled.observed.guard_open for settled in done] == [False, True]
    assert table(pg) == before
    assert [fields["why"] for _, name, fields in recorded if name == "guard.opened"] == ["streak"]


def test_a_streak_is_that_of_all_workers_and_ends_with_a_success(runtime: Runtime, pg: Pg, lane: int) -> None:
    for _ in range(4):
        observe(runtime, lane, Kind.TERMINAL, 19)
        assert not observe(runtime, lane, Kind.ACCEPTED, 5).guard_open
    assert pg.execute("SELECT streak FROM push_provider").fetchone() == (0,)


def test_a_streak_of_days_is_no_streak(runtime: Runtime, pg: Pg, lane: int) -> None:
    """A push service with a handful of subscribers that are all gone."""
    for _ in range(4):
        assert not observe(runtime, lane, Kind.TERMINAL, 10).guard_open
        pg.execute("UPDATE push_answer SET minute = minute - interval '1 day'")
    assert observe(runtime, lane, Kind.TERMINAL, 20).guard_open


def test_the_usual_share_is_the_median_of_days_8_to_35_without_guarded_minutes(
    runtime: Runtime, pg: Pg, lane: int
) -> None:
    days = [(9, 1000, 15, False), (10, 1000, 15, False), (11, 1000, 900, True), (12, 10, 9, False)]
    days += [(13, 1000, 300, False), (2, 1000, 600, False), (40, 1000, 600, False)]
    for day, answers, terminal, guarded in days:
        pg.execute(
            "INSERT INTO push_answer (push_service, minute, answers, attempts, terminal, guarded)"
            " VALUES ('fcm', date_bin('1 minute', now(), '2000-01-01') - make_interval(days => %s), %s, %s, %s, %s)",
            [day, answers, answers, terminal, guarded],
        )
    observe(runtime, lane, Kind.ACCEPTED, 860)
    assert not observe(runtime, lane, Kind.TERMINAL, 19).guard_open
    assert pg.execute("SELECT usual_share FROM push_provider").fetchone() == (0.015,)
    observe(runtime, lane, Kind.ACCEPTED)
    for _ in range(7):
        observe(runtime, lane, Kind.TERMINAL, 19)
        opened = observe(runtime, lane, Kind.ACCEPTED).guard_open
        assert not opened, "15 % is what 1.5 % usual allows"
    observe(runtime, lane, Kind.TERMINAL, 19)
    observe(runtime, lane, Kind.ACCEPTED)
    for _ in range(3):
        observe(runtime, lane, Kind.TERMINAL, 19)
        observe(runtime, lane, Kind.ACCEPTED)
    assert observe(runtime, lane, Kind.TERMINAL, 1).guard_open


def test_while_it_is_open_evidence_waits_and_rows_stay_in_fan_out(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 60)
    batches(runtime, lane, ids[:20], [G] * 20, 20)
    before = table(pg)
    done = settle(runtime, lane, [(row, (G, V)[n % 2]) for n, row in enumerate(ids[20:])])
    assert set(done.outcomes) == {EvidenceOutcome.PENDING}
    assert table(pg) == before
    live = "SELECT count(*) FROM push_subscription WHERE deleted_at IS NULL AND send_block IS NULL AND state = 'active'"
    assert pg.execute(live.encode()).fetchone() == (60,)
    assert pg.execute("SELECT count(*) FROM push_subscription WHERE last_tried_at IS NULL").fetchone() == (0,)


def test_evidence_that_comes_one_by_one_waits_too(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 30)
    batches(runtime, lane, ids[:20], [G] * 20, 20)
    known = pg.execute("SELECT clock_timestamp()").fetchone()
    assert known is not None
    evidence = Evidence(ids[25], 1, G, known[0])
    assert [service.record_evidence(runtime, evidence) for _ in range(2)] == [EvidenceOutcome.PENDING] * 2
    waiting = pg.execute("SELECT count(*) FROM push_evidence WHERE subscription_id = %s", [ids[25]]).fetchone()
    assert waiting == (1,)
    assert states(pg) == {"active": 30}


def test_another_push_service_goes_on(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids, others = subscribers(pg, 20), subscribers(pg, 3, "mozilla")
    batches(runtime, lane, ids, [G] * 20, 20)
    there = ledger.lane(pg, "updates.push.services.mozilla.com", service="mozilla")
    done = settle(runtime, there, [(row, G) for row in others], service="mozilla")
    assert done.outcomes == [EvidenceOutcome.REVOKED] * 3


def test_a_success_discards_what_waits_for_its_row(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 20)
    batches(runtime, lane, ids, [G] * 20, 20)
    settle(runtime, lane, [(row, A) for row in ids[:5]])
    assert evidence_states(pg) == {"pending": 15, "discarded": 5}
    done = guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert done.outcomes == {"revoked": 15}
    assert states(pg) == {"active": 5, "revoked": 15}


def test_what_changed_since_is_not_turned_back(runtime: Runtime, pg: Pg, lane: int) -> None:
    """Back comes only what stands as the evidence made it: not who left, came back or was scrubbed meanwhile."""
    ids = subscribers(pg, 25)
    settle(runtime, lane, [(row, G) for row in ids[:5]])
    observe(runtime, lane, Kind.ACCEPTED)
    pg.execute("UPDATE push_subscription SET end_reason = 'unsubscribed' WHERE id = %s", [ids[0]])
    pg.execute("UPDATE push_subscription SET registration_no = 2 WHERE id = %s", [ids[1]])
    pg.execute(
        "UPDATE push_subscription SET endpoint = NULL, p256dh = NULL, auth_sealed = NULL, auth_key_version = NULL,"
        " scrubbed_at = now() WHERE id = %s",
        [ids[2]],
    )
    pg.execute("UPDATE push_subscription SET deleted_at = now() - interval '4 days' WHERE id = %s", [ids[3]])
    before = table(pg)
    done = settle(runtime, lane, [(row, V) for row in ids[5:]])
    assert done.observed.opened_why == "streak"
    after = table(pg)
    assert {row: after[row] for row in ids[:4]} == {row: before[row] for row in ids[:4]}
    assert after[ids[4]][0] == "active"
    assert evidence_states(pg) == {"pending": 21, "discarded": 4}


def test_evidence_of_before_the_hour_stands(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 30)
    settle(runtime, lane, [(row, G) for row in ids[:5]])
    observe(runtime, lane, Kind.ACCEPTED)
    pass_time(pg, "62 minutes")
    settle(runtime, lane, [(row, G) for row in ids[5:25]])
    assert states(pg) == {"active": 25, "revoked": 5}
    assert evidence_states(pg) == {"applied": 5, "pending": 20}


def test_a_vote_and_the_end_after_it_go_back_one_after_the_other(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 25)
    before = table(pg)
    settle(runtime, lane, [(ids[0], V)])
    settle(runtime, lane, [(ids[0], G)])
    observe(runtime, lane, Kind.ACCEPTED)
    assert table(pg)[ids[0]][:2] == ("revoked", 1)
    settle(runtime, lane, [(row, G) for row in ids[1:21]])
    assert table(pg) == before


def test_turning_back_goes_in_pages_and_on_after_an_interruption(
    runtime: Runtime, pg: Pg, lane: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = subscribers(pg, 120)
    before = table(pg)
    observe(runtime, lane, Kind.ACCEPTED, 2_000)
    for row in ids[:60]:
        settle(runtime, lane, [(row, G), (ids[119], A)])
    assert states(pg)["revoked"] == 60
    opened = observe(runtime, lane, Kind.TERMINAL, 20).opened_guard
    assert opened is not None
    monkeypatch.setattr(guard, "PAGE", 50)
    assert not guard.turn_back(runtime, opened, timedelta(seconds=-1))
    assert states(pg)["revoked"] == 10
    assert guard.tend(runtime) == 0
    assert guard.turn_back(runtime, opened, timedelta(seconds=-1))
    after = table(pg)
    assert {row: after[row] for row in ids[:119]} == {row: before[row] for row in ids[:119]}


@pytest.mark.parametrize("sweep", ["age-expired", "scrub-tombstones", "purge-tombstones"])
def test_no_sweep_ends_scrubs_or_purges_its_rows(sweep: str, runtime: Runtime, pg: Pg) -> None:
    old = "now() - interval '500 days'"
    for label in ("fcm", "mozilla"):
        if sweep == "age-expired":
            subscribers(
                pg,
                3,
                label,
                state="'pending'",
                last_seen_at=old,
                registered_at=old,
                last_success_at="NULL",
                state_since=old,
                last_tried_at="now() - interval '400 days'",
            )
        else:
            ended = {"state": "'revoked'", "end_reason": "'gone'", "revoked_at": old, "deleted_at": old}
            subscribers(pg, 3, label, **ended)
    pg.execute("INSERT INTO push_guard (push_service, window_from, why) VALUES ('fcm', now(), 'share')")
    run(runtime, sweep)
    touched = {
        "age-expired": "state = 'expired'",
        "scrub-tombstones": "scrubbed_at IS NOT NULL",
        "purge-tombstones": "false",
    }[sweep]
    left = dict(
        pg.execute(
            f"SELECT push_service, count(*) FROM push_subscription WHERE NOT ({touched}) GROUP BY 1".encode()
        ).fetchall()
    )
    assert left == {"fcm": 3}
    pg.execute("UPDATE push_guard SET closed_at = now(), closed_by = 'x', verdict = 'rejected'")
    run(runtime, sweep)
    assert pg.execute(f"SELECT count(*) FROM push_subscription WHERE NOT ({touched})".encode()).fetchone() == (0,)


def run(rt: Runtime, name: str) -> None:
    free = rt.settings.model_copy(update={"sweep_max_share": 1.0, "sweep_pause_ms": 0})
    opened = Runtime(free, rt.db, None, rt.events)
    found = dispatch(opened, SWEEPS[name], None, Order(started_by="test"))
    if found.run is not None and found.run.closed_at is None:
        work(opened, SWEEPS, found.run.run_id)


def test_accepting_is_shown_first_and_then_believes_what_waited(
    runtime: Runtime, pg: Pg, lane: int, recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B03: this time the deaths are true. In pages, and it opens nothing again."""
    monkeypatch.setattr(guard, "PAGE", 7)
    ids = subscribers(pg, 50)
    batches(runtime, lane, ids, [G] * 50)
    shown = guard.accept(runtime, "fcm", **ASK)
    assert (shown.answers, shown.dry_run, shown.done, states(pg)) == (50, True, False, {"active": 50})
    done = guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert (done.answers, done.outcomes, done.done) == (50, {"revoked": 50}, True)
    assert states(pg) == {"revoked": 50}
    ended = pg.execute("SELECT DISTINCT end_reason, campaign_id FROM subscription_period WHERE ended_at IS NOT NULL")
    assert ("gone", "c") in ended.fetchall()
    (audited,) = pg.execute("SELECT actor, detail FROM audit WHERE verb = 'guard_accepted'").fetchall()
    assert (audited[0], audited[1]["reason"], audited[1]["pending"]) == ("ann", "looked", 50)
    assert pages(recorded) == ["guard.opened"]
    observe(runtime, lane, Kind.ACCEPTED, 600)
    assert observe(runtime, lane, Kind.TERMINAL, 1).guard_open is False, "what was judged counts no more"
    observe(runtime, lane, Kind.ACCEPTED)
    assert observe(runtime, lane, Kind.TERMINAL, 19).guard_open is False
    assert observe(runtime, lane, Kind.TERMINAL, 1).guard_open is True, "it can open anew"
    with pytest.raises(NotFoundError):
        guard.accept(runtime, "mozilla", **ASK, dry_run=False)


def test_votes_that_waited_count_as_of_when_they_came(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B03: three campaigns over a day find 404 behind an open guard; accepted, the three are three votes."""
    ids = subscribers(pg, 25)
    batches(runtime, lane, ids, [V] * 25)
    for _ in range(2):
        pass_time(pg, "13 hours")
        batches(runtime, lane, ids[:10], [V] * 10)
    done = guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert done.outcomes == {"voted": 35, "voted_out": 10}
    assert states(pg) == {"active": 15, "revoked": 10}


def test_votes_that_waited_side_by_side_are_no_more_than_one(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 25)
    batches(runtime, lane, ids, [V] * 25)
    pass_time(pg, "1 hour")
    batches(runtime, lane, ids, [V] * 25)
    pass_time(pg, "12 hours")
    done = guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert done.outcomes == {"voted": 25, "too_soon": 25}


def test_rejecting_discards_and_leaves_every_row(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 30)
    before = table(pg)
    batches(runtime, lane, ids, [G, V] * 15)
    done = guard.reject(runtime, "fcm", **ASK, dry_run=False)
    assert (done.answers, done.outcomes, done.done) == (30, {}, True)
    assert table(pg) == before
    assert evidence_states(pg) == {"discarded": 30}
    assert settle(runtime, lane, [(ids[0], G)]).outcomes == [EvidenceOutcome.REVOKED]


def test_accepting_that_was_killed_half_way_goes_on(
    runtime: Runtime, pg: Pg, lane: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "PAGE", 10)
    ids = subscribers(pg, 45)
    batches(runtime, lane, ids, [G] * 45)
    page, calls = guard._settle_page, []

    def dies(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return page(*args)

    monkeypatch.setattr(guard, "_settle_page", dies)
    with pytest.raises(KeyboardInterrupt):
        guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert states(pg) == {"active": 25, "revoked": 20}
    assert guard.tend(runtime) == 0
    assert states(pg) == {"revoked": 45}
    assert guard.tend(runtime) == 0
    assert pg.execute("SELECT count(*) FROM push_guard WHERE settled_at IS NULL").fetchone() == (0,)


def test_what_is_accepted_waits_behind_a_guard_that_opened_since(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 60)
    batches(runtime, lane, ids[:30], [G] * 30)
    pg.execute("UPDATE push_guard SET closed_at = now(), closed_by = 'x', verdict = 'accepted'")
    pg.execute("UPDATE push_provider SET guard_id = NULL, streak = 0, counted_from = clock_timestamp()")
    settle(runtime, lane, [(row, G) for row in ids[30:50]])
    assert guard.tend(runtime) == 1
    assert states(pg) == {"active": 60}
    guard.reject(runtime, "fcm", **ASK, dry_run=False)
    assert guard.tend(runtime) == 0
    assert states(pg) == {"active": 30, "revoked": 30}


def test_what_an_operator_accepted_is_not_turned_back_by_the_next(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 50)
    batches(runtime, lane, ids[:20], [G] * 20, 20)
    guard.accept(runtime, "fcm", **ASK, dry_run=False)
    settle(runtime, lane, [(row, G) for row in ids[20:40]])
    assert states(pg) == {"active": 30, "revoked": 20}
    assert evidence_states(pg) == {"applied": 20, "pending": 20}


def test_undo_brings_back_what_was_accepted_wrongly(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 20)
    batches(runtime, lane, ids, [G] * 20, 20)
    guard.accept(runtime, "fcm", **ASK, dry_run=False)
    assert service.undo(runtime, service="fcm", dry_run=False, actor="ann").rows == 20
    assert states(pg) == {"active": 20}


def test_a_success_lets_sending_go_on_while_the_guard_stays_open(
    runtime: Runtime, lane: int, recorded: list[Any]
) -> None:
    assert observe(runtime, lane, Kind.TERMINAL, 20).waits
    found = observe(runtime, lane, Kind.ACCEPTED)
    assert (found.recovered, found.waits, found.guard_open) == (True, False, True)
    assert not observe(runtime, lane, Kind.TERMINAL, 19).waits
    again = observe(runtime, lane, Kind.TERMINAL)
    assert (again.waits, again.became_unhealthy, again.opened_guard) == (True, "guard", None)
    assert pages(recorded) == ["guard.opened"]
    assert [level for level, name, _ in recorded if name == "provider.unhealthy"] == [Level.WARNING]


def test_the_list_says_what_waits_and_why(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 25)
    batches(runtime, lane, ids, [G] * 25)
    (listed,) = guard.list_guards(runtime)
    assert (listed.push_service, listed.pending, listed.why, listed.detail["streak"]) == ("fcm", 25, "streak", 25)
    guard.reject(runtime, "fcm", **ASK, dry_run=False)
    assert guard.list_guards(runtime) == []
    (closed,) = guard.list_guards(runtime, closed=True)
    assert (closed.verdict, closed.closed_by, closed.reason, closed.pending) == ("rejected", "ann", "looked", 0)


def test_an_hour_of_404_then_410_loses_no_row(runtime: Runtime, pg: Pg, lane: int, recorded: list[Any]) -> None:
    """B02: a whole outage in database time, then recovery; one page."""
    ids = subscribers(pg, 500)
    before = table(pg)
    started = time.monotonic()
    for minute in range(12):
        batches(runtime, lane, ids[:100], [(V if minute < 6 else G)] * 100, 50)
        pass_time(pg, "5 minutes")
    settle(runtime, lane, [(row, A) for row in ids])
    assert states(pg) == {"active": 500}
    assert {row: now[1:6] for row, now in table(pg).items()} == {row: was[1:6] for row, was in before.items()}
    assert pages(recorded) == ["guard.opened"]
    assert evidence_states(pg).keys() == {"discarded"}
    assert time.monotonic() - started < 60
