"""Undo: what evidence or ageing ended comes back, what a person ended never does."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions import service, undoing
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg


def ended(
    rt: Runtime, pg: Pg, reason: str, *, host: str = "fcm.googleapis.com/fcm/send", state: str = "revoked"
) -> str:
    endpoint = new_endpoint(host)
    service.save_subscription(rt, subscribe(endpoint), user_id="a")
    rows.put_in_state(pg, endpoint, state, reason)
    return endpoint


def states(pg: Pg, *endpoints: str) -> list[str]:
    return [rows.row(pg, endpoint)["state"] for endpoint in endpoints]


@pytest.mark.parametrize(("reason", "state", "back"), [
    ("gone", "revoked", "active"), ("voted_out", "revoked", "active"), ("aged_out", "expired", "stale"),
])  # fmt: skip
def test_a_row_comes_back_to_its_previous_state(reason: str, state: str, back: str, runtime: Runtime, pg: Pg) -> None:
    endpoint = ended(runtime, pg, reason, state=state)
    undone = service.undo(runtime, reason=reason, dry_run=False, actor="ops")
    row = rows.row(pg, endpoint)
    assert (undone.rows, row["state"], row["previous_state"]) == (1, back, state)
    assert [row[name] for name in ("deleted_at", "revoked_at", "end_reason", "first_vote_at")] == [None] * 4
    assert rows.owners(pg, endpoint) == [("a", reason), ("a", None)]
    assert rows.periods(pg, endpoint)[1]["reconnection"]


def test_by_default_it_only_says_what_it_would_do(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    endpoint = ended(runtime, pg, "gone")
    found = service.undo(runtime, service="fcm", actor="ops")
    assert (found.rows, found.eligible, found.dry_run) == (0, 1, True)
    assert [(group.push_service, group.end_reason, group.rows) for group in found.groups] == [("fcm", "gone", 1)]
    assert states(pg, endpoint) == ["revoked"]
    assert not [name for _, name, _ in recorded if name == "subscription.undone"]


@pytest.mark.parametrize("reason", ["unsubscribed", "rotated", "user_limit"])
def test_what_a_person_or_our_own_rule_ended_stays_ended(reason: str, runtime: Runtime, pg: Pg) -> None:
    endpoint = ended(runtime, pg, reason)
    undone = service.undo(runtime, since=rows.now(pg) - timedelta(days=1), dry_run=False, actor="ops")
    assert (undone.rows, states(pg, endpoint)) == (0, ["revoked"])
    with pytest.raises(RefusedError, match="expected a reason of"):
        service.undo(runtime, reason=reason, actor="ops")


def test_each_filter_narrows(runtime: Runtime, pg: Pg) -> None:
    """B17 of the features: all revocations since T for provider P, or of one run."""
    fcm, mozilla = (
        ended(runtime, pg, "gone"),
        ended(runtime, pg, "gone", host="updates.push.services.mozilla.com/wpush/v2"),
    )
    early, by_run = ended(runtime, pg, "gone"), ended(runtime, pg, "aged_out", state="expired")
    rows.age(pg, early, timedelta(hours=20), "revoked_at", "deleted_at")
    run = uuid4()
    pg.execute("UPDATE push_subscription SET end_run_id = %s WHERE id = %s", [run, rows.row(pg, by_run)["id"]])

    assert service.undo(runtime, run=run, dry_run=False, actor="ops").rows == 1
    assert states(pg, by_run, fcm, mozilla, early) == ["stale", "revoked", "revoked", "revoked"]
    assert service.undo(runtime, service="mozilla", dry_run=False, actor="ops").rows == 1
    assert states(pg, by_run, fcm, mozilla, early) == ["stale", "revoked", "active", "revoked"]
    until = rows.now(pg) - timedelta(hours=10)
    assert service.undo(runtime, service="fcm", until=until, dry_run=False, actor="ops").rows == 1
    assert states(pg, fcm, early) == ["revoked", "active"]
    assert service.undo(runtime, since=until, reason="gone", dry_run=False, actor="ops").rows == 1
    assert states(pg, fcm) == ["active"]


def test_outside_the_window_or_without_credentials_nothing_comes_back(runtime: Runtime, pg: Pg) -> None:
    late, scrubbed = ended(runtime, pg, "gone"), ended(runtime, pg, "gone")
    rows.age(pg, late, timedelta(hours=72), "revoked_at", "deleted_at")
    pg.execute(
        "UPDATE push_subscription SET endpoint = NULL, p256dh = NULL, auth_sealed = NULL, auth_key_version = NULL,"
        " scrubbed_at = now() WHERE id = %s",
        [rows.row(pg, scrubbed)["id"]],
    )
    assert service.undo(runtime, reason="gone", dry_run=False, actor="ops").rows == 0
    assert states(pg, late, scrubbed) == ["revoked", "revoked"]


def test_evidence_from_before_the_undo_cannot_end_the_row_again(runtime: Runtime, pg: Pg) -> None:
    endpoint = ended(runtime, pg, "gone")
    old = rows.claim(pg, endpoint)
    service.undo(runtime, reason="gone", dry_run=False, actor="ops")
    outcome = service.record_evidence(runtime, Evidence(old[0], old[1], Finding.GONE, old[2], 410))
    assert (outcome, states(pg, endpoint)) == (EvidenceOutcome.SUPERSEDED, ["active"])


def test_many_rows_come_back_page_by_page(runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that ended in one transaction share their time: the page goes on by id."""
    monkeypatch.setattr(undoing, "PAGE", 3)
    for _ in range(10):
        service.save_subscription(runtime, subscribe())
    pg.execute(
        "UPDATE push_subscription SET state = 'revoked', previous_state = 'pending', end_reason = 'gone',"
        " revoked_at = now(), deleted_at = now()"
    )
    assert service.undo(runtime, service="fcm", dry_run=False, actor="ops").rows == 10
    assert pg.execute("SELECT count(*) FROM audit WHERE verb = 'undo' AND actor = 'ops'").fetchone() == (10,)


@pytest.mark.parametrize("which", [{}, {"since": "naive"}])
def test_an_undo_of_everything_or_at_an_unclear_time_is_refused(
    which: dict[str, Any], runtime: Runtime, pg: Pg
) -> None:
    if which:
        which = {"since": rows.now(pg).replace(tzinfo=None)}
    with pytest.raises(RefusedError):
        service.undo(runtime, **which, actor="ops")
