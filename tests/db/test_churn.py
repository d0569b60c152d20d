"""Who left and what told us so: by push service, by reason, by the campaign that found out."""

from datetime import datetime, timedelta

import pytest

from pushops.delivery import guard
from pushops.delivery.churn import By, Churn, churn
from pushops.delivery.observing import Kind
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Finding
from tests import ledger, rows
from tests.answering import observe, settle, subscribers
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

A, G, V = Finding.ACCEPTED, Finding.GONE, Finding.VOTE


def by(rt: Runtime, pg: Pg, what: By) -> dict[str, Churn]:
    now = rows.now(pg)
    return {one.name: one for one in churn(rt, what, now - timedelta(days=1), now + timedelta(minutes=1))}


def test_each_revocation_is_its_campaigns_and_out_of_its_recipients(runtime: Runtime, pg: Pg) -> None:
    lane = ledger.lane(pg)
    ids = subscribers(pg, 20)
    ledger.message(pg, campaign_id="'spring'", recipients="150")
    ledger.message(pg, campaign_id="'spring'", recipients="50")
    settle(runtime, lane, [(ids[0], G), (ids[1], G), (ids[2], V), (ids[9], A)], campaign_id="spring")
    settle(runtime, lane, [(ids[0], G), (ids[3], G), (ids[9], A)], campaign_id="summer")
    found = by(runtime, pg, By.CAMPAIGN)
    spring, summer = found["spring"], found["summer"]
    assert (spring.left, spring.out_of, spring.share, spring.parts) == (2, 200, 0.01, {"revoked": 2, "voted": 1})
    assert (summer.left, summer.out_of, summer.share, summer.parts) == (1, 0, None, {"revoked": 1})


def test_what_the_guard_took_back_did_not_leave(runtime: Runtime, pg: Pg) -> None:
    lane = ledger.lane(pg)
    ids = subscribers(pg, 30)
    settle(runtime, lane, [(row, G) for row in ids[:5]] + [(ids[29], A)], campaign_id="spring")
    assert by(runtime, pg, By.SERVICE)["fcm"].left == 5
    settle(runtime, lane, [(row, G) for row in ids[5:25]], campaign_id="spring")
    assert by(runtime, pg, By.SERVICE)["fcm"].left == 0
    found = by(runtime, pg, By.CAMPAIGN)["spring"]
    assert (found.left, found.parts) == (0, {"pending": 25})
    guard.accept(runtime, "fcm", reason="r", actor="ann", dry_run=False)
    assert by(runtime, pg, By.SERVICE)["fcm"].left == 25
    assert by(runtime, pg, By.CAMPAIGN)["spring"].left == 25
    assert by(runtime, pg, By.REASON)["gone"].parts == {"fcm": 25}


def test_people_who_leave_count_by_service_and_reason_and_rotation_is_no_leaving(runtime: Runtime, pg: Pg) -> None:
    lane = ledger.lane(pg)
    first, second, third = (new_endpoint() for _ in range(3))
    for endpoint in (first, second, third):
        service.save_subscription(runtime, subscribe(endpoint), user_id="u")
    service.unsubscribe(runtime, endpoint=first)
    settle(runtime, lane, [(rows.claim(pg, second)[0], G)])
    service.rotate(runtime, third, subscribe())
    subscribers(pg, 6, "mozilla")
    services, reasons = by(runtime, pg, By.SERVICE), by(runtime, pg, By.REASON)
    assert (services["fcm"].left, services["fcm"].out_of) == (2, 3)
    assert services["fcm"].parts == {"unsubscribed": 1, "gone": 1}
    assert (services["mozilla"].left, services["mozilla"].out_of) == (0, 6)
    assert {name: one.left for name, one in reasons.items()} == {"gone": 1, "unsubscribed": 1}
    assert reasons["gone"].out_of == 9


def test_nothing_outside_the_span_counts(runtime: Runtime, pg: Pg) -> None:
    lane = ledger.lane(pg)
    ids = subscribers(pg, 3)
    settle(runtime, lane, [(ids[0], G)], campaign_id="spring")
    observe(runtime, lane, Kind.ACCEPTED)
    later = rows.now(pg) + timedelta(hours=1)
    assert churn(runtime, By.CAMPAIGN, later, later + timedelta(hours=1)) == []
    assert [one.left for one in churn(runtime, By.SERVICE, later, later + timedelta(hours=1))] == [0]
    with pytest.raises(RefusedError):
        churn(runtime, By.REASON, datetime(2026, 1, 1), later)  # noqa: DTZ001  (that it has no zone is the point)
