"""``pushops subscription erase, hold, release, export`` and ``pushops erasure``: counted first, then done."""

import json
from typing import Any

import psycopg

from pushops.erasure.sweeping import APPLY_ERASURES
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from tests.browser import new_endpoint, subscribe
from tests.commands import call
from tests.sweepdb import drive

Pg = psycopg.Connection[Any]


def test_a_user_is_counted_held_erased_and_leaves_a_receipt(settings: Settings, runtime: Runtime) -> None:
    """G1, F36."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="ann")

    counted = call("subscription", "erase", "--user", "ann", settings=settings)
    assert counted.code == 0
    assert "1 subscription(s)" in counted.out
    assert "--yes does it" in counted.out
    assert service.touch(runtime, endpoint).advice == "keep"

    exported = call("subscription", "export", "--user", "ann", settings=settings)
    rows = [json.loads(line) for line in exported.out.splitlines()]
    assert {row["store"] for row in rows} >= {"export", "subscriptions", "consent periods", "audit"}
    assert endpoint in exported.out
    assert "auth_sealed" not in exported.out

    held = call("subscription", "hold", "--user", "ann", "--reason", "case 12", "--json", settings=settings)
    assert json.loads(held.out) == {"rows": 1, "requests": 0}
    asked = call("subscription", "erase", "--user", "ann", "--yes", settings=settings)
    assert "under legal hold and waits" in asked.out
    released = call("subscription", "release", "--user", "ann", "--reason", "closed", settings=settings)
    assert "1 erasure(s) go on" in released.out

    drive(runtime, APPLY_ERASURES)
    listed = json.loads(call("erasure", "list", "--all", "--json", settings=settings).out)
    (one,) = listed["requests"]
    assert one["state"] == "done"
    shown = call("erasure", "show", one["request_id"][:8], settings=settings)
    assert "receipt: subscriptions" in shown.out
    assert "ann" not in shown.out.replace("cannot", "")


def test_neither_or_both_of_user_and_endpoint_are_refused(settings: Settings) -> None:
    for which in ((), ("--user", "ann", "--endpoint", "https://fcm.googleapis.com/x")):
        refused = call("subscription", "erase", *which, "--yes", settings=settings)
        assert refused.code == 1
        assert "expected one of user and endpoint" in refused.err
