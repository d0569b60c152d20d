"""Who left or logged out stays away: no repeated rotation, undo or anonymous repost brings them back."""

from typing import Any

import pytest

from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from pushops.subscriptions.evidence import Evidence, Finding
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg


def live_of(rt: Runtime, user: str) -> list[object]:
    return [row.id for row in service.list_subscriptions(rt, user=user).rows if row.deleted_at is None]


@pytest.fixture
def old(runtime: Runtime) -> str:
    """The endpoint from before the rotation."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="a", tags=["vip"])
    return endpoint


@pytest.fixture
def new(runtime: Runtime, old: str) -> dict[str, Any]:
    """What took its place."""
    subscription = subscribe()
    service.rotate(runtime, old, subscription)
    return subscription


def test_a_repeated_rotation_does_not_undo_an_unsubscribe(
    runtime: Runtime, pg: Pg, old: str, new: dict[str, Any]
) -> None:
    """The client did not hear the first answer, and its person left meanwhile."""
    service.unsubscribe(runtime, endpoint=new["endpoint"])
    with pytest.raises(SubscriptionRefused) as caught:
        service.rotate(runtime, old, new)
    assert (caught.value.reason, caught.value.field) == ("unsubscribed", "endpoint")
    row = rows.row(pg, new["endpoint"])
    assert (row["state"], row["user_id"]) == ("revoked", "a")


@pytest.mark.usefixtures("new")
def test_who_left_everywhere_leaves_no_rotated_endpoint_to_come_back_from(runtime: Runtime, old: str) -> None:
    assert service.unsubscribe(runtime, user="a") == 2
    with pytest.raises(SubscriptionRefused):
        service.rotate(runtime, old, subscribe())
    assert live_of(runtime, "a") == []


@pytest.mark.parametrize("known", [True, False])
def test_a_rotation_onto_what_a_person_ended_is_refused(known: bool, runtime: Runtime, pg: Pg, old: str) -> None:
    """Whether the old endpoint is the same or one that nobody knows."""
    service.unsubscribe(runtime, endpoint=old)
    with pytest.raises(SubscriptionRefused):
        service.rotate(runtime, old if known else new_endpoint(), subscribe(old))
    assert rows.row(pg, old)["state"] == "revoked"


@pytest.mark.parametrize("how", ["detach", "detach_all", "taken_over"])
def test_a_repeated_rotation_does_not_undo_a_logout(
    how: str, runtime: Runtime, pg: Pg, old: str, new: dict[str, Any]
) -> None:
    if how == "detach_all":
        service.detach_all(runtime, "a")
    else:
        if how == "taken_over":
            service.save_subscription(runtime, new, user_id="b")
        service.detach(runtime, new["endpoint"])
    created = rows.row(pg, new["endpoint"])["created_at"]
    service.rotate(runtime, old, new)
    row = rows.row(pg, new["endpoint"])
    assert (row["user_id"], row["tags"], row["created_at"]) == (None, [], created)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("back", ["undo", "keep_owner", "rotate"])
def test_logging_out_holds_for_what_had_ended_before(
    everywhere: bool, back: str, runtime: Runtime, pg: Pg, old: str
) -> None:
    row_id, registration_no, started_at = rows.claim(pg, old)
    service.record_evidence(runtime, Evidence(row_id, registration_no, Finding.GONE, started_at, 410))
    assert (service.detach_all(runtime, "a") if everywhere else service.detach(runtime, old)) == 1
    match back:
        case "undo":
            assert service.undo(runtime, reason="gone", dry_run=False, actor="test").rows == 1
        case "keep_owner":
            service.save_subscription(runtime, subscribe(old), keep_owner=True)
        case _:
            service.rotate(runtime, old, subscribe())
    found = service.list_subscriptions(runtime).rows
    assert [(row.user_id, row.tags) for row in found if row.deleted_at is None] == [(None, [])]


def test_logging_out_leaves_named_who_unsubscribed(runtime: Runtime, pg: Pg, old: str) -> None:
    service.unsubscribe(runtime, endpoint=old)
    assert (service.detach(runtime, old), service.detach_all(runtime, "a")) == (0, 0)
    assert rows.row(pg, old)["user_id"] == "a"
