"""What a push service's answer does to a row, and when it does nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pushops.runtime import Runtime
from pushops.settings import Cadence
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

HOUR = timedelta(hours=1)


@pytest.fixture
def endpoint(runtime: Runtime) -> str:
    found = new_endpoint()
    service.save_subscription(runtime, subscribe(found), user_id="a", user_agent="UA", locale="de")
    return found


def record(rt: Runtime, pg: Pg, endpoint: str, finding: Finding, **changes: Any) -> EvidenceOutcome:
    known = dict(zip(("subscription_id", "registration_no", "started_at"), rows.claim(pg, endpoint), strict=True))
    return service.record_evidence(rt, Evidence(**known | {"finding": finding, "status": 410} | changes))


def test_a_success_proves_the_row_and_clears_its_votes(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    assert record(runtime, pg, endpoint, Finding.VOTE) is EvidenceOutcome.VOTED
    assert record(runtime, pg, endpoint, Finding.ACCEPTED) is EvidenceOutcome.ACTIVATED
    row = rows.row(pg, endpoint)
    assert (row["state"], row["previous_state"], row["votes"], row["first_vote_at"]) == ("active", "pending", 0, None)
    assert row["last_success_at"] == row["last_tried_at"] == row["state_since"]
    since = row["state_since"]
    record(runtime, pg, endpoint, Finding.ACCEPTED)
    assert rows.row(pg, endpoint)["state_since"] == since
    assert rows.row(pg, endpoint)["last_success_at"] > since


def test_410_revokes_and_soft_deletes_at_once(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    record(runtime, pg, endpoint, Finding.ACCEPTED)
    assert record(runtime, pg, endpoint, Finding.GONE, campaign_id="c7") is EvidenceOutcome.REVOKED
    row = rows.row(pg, endpoint)
    assert (row["state"], row["previous_state"], row["end_reason"]) == ("revoked", "active", "gone")
    assert row["revoked_at"] == row["deleted_at"] == row["last_failure_at"]
    assert (row["user_agent"], row["locale"], row["last_status"]) == (None, None, 410)
    assert (row["user_id"], row["endpoint"]) == ("a", endpoint)
    (period,) = rows.periods(pg, endpoint)
    assert (period["end_reason"], period["campaign_id"]) == ("gone", "c7")


def test_the_same_410_twice_does_nothing_more(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    assert record(runtime, pg, endpoint, Finding.GONE) is EvidenceOutcome.REVOKED
    before = rows.row(pg, endpoint)
    assert record(runtime, pg, endpoint, Finding.GONE) is EvidenceOutcome.ALREADY_ENDED
    assert rows.row(pg, endpoint) == before


def test_a_success_on_an_ended_row_is_counted_and_nothing_more(
    runtime: Runtime, pg: Pg, endpoint: str, recorded: list[Any]
) -> None:
    record(runtime, pg, endpoint, Finding.GONE)
    before = rows.row(pg, endpoint)
    assert record(runtime, pg, endpoint, Finding.ACCEPTED) is EvidenceOutcome.ALREADY_ENDED
    assert rows.row(pg, endpoint) == before
    assert recorded[-1][2]["outcome"] == "already_ended"


@pytest.mark.parametrize("finding", [Finding.GONE, Finding.VOTE, Finding.ACCEPTED, Finding.NONE])
def test_evidence_about_an_old_registration_says_nothing_about_the_new_one(
    finding: Finding, runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    """C01."""
    old = rows.claim(pg, endpoint)
    service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    before = rows.row(pg, endpoint)
    evidence = Evidence(old[0], old[1], finding, old[2], 410)
    expected = EvidenceOutcome.NOTHING if finding is Finding.NONE else EvidenceOutcome.SUPERSEDED
    assert service.record_evidence(runtime, evidence) is expected
    assert rows.row(pg, endpoint) == before


@pytest.mark.parametrize("finding", [Finding.GONE, Finding.VOTE])
def test_bad_news_is_not_believed_when_a_success_came_since(
    finding: Finding, runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    started = rows.now(pg)
    record(runtime, pg, endpoint, Finding.ACCEPTED)
    assert record(runtime, pg, endpoint, finding, started_at=started) is EvidenceOutcome.SUPERSEDED
    assert rows.row(pg, endpoint)["state"] == "active"
    assert record(runtime, pg, endpoint, finding) in {EvidenceOutcome.REVOKED, EvidenceOutcome.VOTED}


def test_a_429_or_a_5xx_says_only_that_it_was_tried(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    """B5 of the features."""
    before = rows.row(pg, endpoint)
    assert before["last_tried_at"] is None
    assert record(runtime, pg, endpoint, Finding.NONE, status=503) is EvidenceOutcome.NOTHING
    after = rows.row(pg, endpoint)
    assert after["last_tried_at"] > before["registered_at"]
    assert after == before | {"last_tried_at": after["last_tried_at"]}


def test_a_vote_that_comes_too_soon_says_only_that_it_was_tried(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    record(runtime, pg, endpoint, Finding.VOTE)
    before = rows.row(pg, endpoint)
    assert record(runtime, pg, endpoint, Finding.VOTE) is EvidenceOutcome.TOO_SOON
    after = rows.row(pg, endpoint)
    assert after["last_tried_at"] > before["last_tried_at"]
    assert after == before | {"last_tried_at": after["last_tried_at"]}


def test_a_time_of_trying_never_goes_back(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    rows.age(pg, endpoint, -HOUR, "registered_at")
    pg.execute("UPDATE push_subscription SET last_tried_at = registered_at")
    before = rows.row(pg, endpoint)
    record(runtime, pg, endpoint, Finding.NONE)
    assert rows.row(pg, endpoint) == before


def test_an_attempt_at_an_ended_row_writes_nothing(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    record(runtime, pg, endpoint, Finding.GONE)
    before = rows.row(pg, endpoint)
    record(runtime, pg, endpoint, Finding.NONE)
    assert rows.row(pg, endpoint) == before


def test_evidence_about_a_purged_row_is_no_error(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    known = rows.claim(pg, endpoint)
    pg.execute("DELETE FROM push_subscription")
    assert service.record_evidence(runtime, Evidence(*known[:2], Finding.GONE, known[2])) is EvidenceOutcome.UNKNOWN


def vote_at(rt: Runtime, pg: Pg, endpoint: str, hours: float) -> tuple[EvidenceOutcome, str]:
    """One more vote, that many hours after the last call."""
    rows.age(pg, endpoint, timedelta(hours=hours), "first_vote_at", "last_vote_at")
    outcome = record(rt, pg, endpoint, Finding.VOTE, status=404)
    return outcome, rows.row(pg, endpoint)["state"]


@pytest.mark.parametrize(
    ("gaps", "outcomes"),
    [
        ([0, 5.9], ["voted", "too_soon"]),
        ([0, 6.1, 5.9, 12.5], ["voted", "voted", "too_soon", "voted_out"]),
        ([0, 6.1, 6.1, 6.1], ["voted", "voted", "too_soon", "too_soon"]),
        ([0, 6.1, 6.1, 12.1], ["voted", "voted", "too_soon", "voted_out"]),
        ([0, 12.1, 12.1], ["voted", "voted", "voted_out"]),
        ([0, 25], ["voted", "voted"]),
    ],
)
def test_only_three_spaced_votes_over_a_day_revoke(
    gaps: list[float], outcomes: list[str], runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    """B3 of the features."""
    found = [vote_at(runtime, pg, endpoint, gap) for gap in gaps]
    assert [outcome for outcome, _ in found] == outcomes
    assert [state == "revoked" for _, state in found] == [outcome == "voted_out" for outcome in outcomes]


@pytest.mark.parametrize(
    ("changes", "gaps", "outcomes"),
    [
        ({"cadence": Cadence.DAILY}, [0, 2.9], ["voted", "too_soon"]),
        ({"cadence": Cadence.DAILY}, [0, 3.1, 9.1], ["voted", "voted", "voted_out"]),
        ({"cadence": Cadence.MONTHLY}, [0, 11.9], ["voted", "too_soon"]),
        ({"cadence": Cadence.MONTHLY}, [0, 24.1, 23.8, 0.3], ["voted", "voted", "too_soon", "voted_out"]),
        ({"votes": 2}, [0, 24.1], ["voted", "voted_out"]),
        ({"votes": 4}, [0, 12.1, 12.1, 12.1], ["voted", "voted", "voted", "voted_out"]),
        ({"vote_min_gap": HOUR, "vote_min_span": 3 * HOUR}, [0, 1.1, 2.1], ["voted", "voted", "voted_out"]),
    ],
)
def test_the_rules_of_the_vote_are_settings_that_follow_the_cadence(
    changes: dict[str, Any], gaps: list[float], outcomes: list[str], runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    rt = replace(runtime, settings=runtime.settings.model_copy(update=changes))
    assert [vote_at(rt, pg, endpoint, gap)[0] for gap in gaps] == outcomes


def test_one_answer_is_one_vote_however_often_it_is_delivered(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    row_id, registration_no, started_at = rows.claim(pg, endpoint)
    outcomes = []
    for days in range(3):
        answer = Evidence(row_id, registration_no, Finding.VOTE, started_at - timedelta(hours=25 * days), 404)
        outcomes.append(service.record_evidence(runtime, answer))
        rows.age(pg, endpoint, timedelta(hours=25), "first_vote_at", "last_vote_at")
    assert outcomes == ["voted", "too_soon", "too_soon"]
    assert rows.row(pg, endpoint)["votes"] == 1


def test_the_row_explains_why_it_died(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    """B18 of the features: the votes stay on the tombstone."""
    for gap in (0, 12.1, 12.1):
        vote_at(runtime, pg, endpoint, gap)
    shown = service.show(runtime, endpoint=endpoint)
    assert (shown.end_reason, shown.votes, shown.last_status) == ("voted_out", 3, 404)
    assert shown.first_vote_at is not None
    assert shown.last_vote_at is not None
    assert shown.last_vote_at - shown.first_vote_at >= timedelta(hours=24)


def test_a_success_between_makes_the_votes_start_over(runtime: Runtime, pg: Pg, endpoint: str) -> None:
    vote_at(runtime, pg, endpoint, 0)
    vote_at(runtime, pg, endpoint, 12.1)
    record(runtime, pg, endpoint, Finding.ACCEPTED)
    assert vote_at(runtime, pg, endpoint, 12.1) == (EvidenceOutcome.VOTED, "active")
    assert rows.row(pg, endpoint)["votes"] == 1


def test_a_revocation_is_audited_with_its_campaign_and_a_success_is_not(
    runtime: Runtime, pg: Pg, endpoint: str
) -> None:
    record(runtime, pg, endpoint, Finding.ACCEPTED)
    record(runtime, pg, endpoint, Finding.GONE, campaign_id="c7")
    found = pg.execute("SELECT actor, user_id, detail FROM audit WHERE verb = 'evidence'").fetchall()
    assert [(actor, user, detail["reason"], detail["campaign"]) for actor, user, detail in found] == [
        ("push-service", "a", "gone", "c7")
    ]
