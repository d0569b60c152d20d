"""A row that its owner leaves while a batch is about to expire it."""

from pushops.retention.policies import AGE_EXPIRED
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg, periods, row
from tests.sweepdb import close_gate, drive, in_background, open_gate, opened, wait_at_gate


def test_a_period_that_a_detach_opened_meanwhile_ends_with_its_row(
    runtime: Runtime, settings: Settings, pg: Pg
) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="ann")
    pg.execute("UPDATE push_subscription SET registered_at = now() - interval '200 days'")
    pg.execute("UPDATE push_subscription SET last_seen_at = registered_at, state_since = registered_at")
    close_gate(pg, "BEFORE UPDATE")
    with opened(settings) as rt, in_background(lambda: drive(rt, AGE_EXPIRED)):
        wait_at_gate(pg)  # the batch has its snapshot, and has not seen the row yet
        service.detach(runtime, endpoint)
        open_gate(pg)
    assert row(pg, endpoint)["state"] == "expired"
    assert [(period["user_id"], period["end_reason"]) for period in periods(pg, endpoint)] == [
        ("ann", "detached"),
        (None, "aged_out"),
    ]
