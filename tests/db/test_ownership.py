"""One endpoint, one live owner: taking over, letting go, and who is never sent somebody else's messages."""

from datetime import timedelta
from typing import Any

import pytest

from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg


def save(rt: Runtime, endpoint: str, user: str | None = None, **options: Any) -> str | None:
    """Save and say whose the row is now."""
    return service.save_subscription(rt, subscribe(endpoint), user_id=user, **options).user_id


def live_of(rt: Runtime, user: str) -> list[object]:
    return [row.id for row in service.list_subscriptions(rt, user=user).rows if row.deleted_at is None]


def test_a_signed_in_user_takes_the_endpoint_over(runtime: Runtime, pg: Pg) -> None:
    """A22: no error, the first user's fan-out is empty, the first user's dates stay."""
    endpoint = new_endpoint()
    assert save(runtime, endpoint, "a") == "a"
    assert save(runtime, endpoint, "b") == "b"
    assert (live_of(runtime, "a"), len(live_of(runtime, "b"))) == ([], 1)
    assert rows.owners(pg, endpoint) == [("a", "owner_changed"), ("b", None)]
    first, second = rows.periods(pg, endpoint)
    assert second["began_at"] >= first["ended_at"] > first["began_at"]


@pytest.mark.parametrize(("keep", "owner"), [(False, None), (True, "a")])
def test_an_anonymous_repost_keeps_the_owner_only_when_told_to(keep: bool, owner: str | None, runtime: Runtime) -> None:
    """A23: at a shared computer the default must not send one person's messages to the next."""
    endpoint = new_endpoint()
    save(runtime, endpoint, "a")
    assert save(runtime, endpoint, keep_owner=keep) == owner
    assert len(live_of(runtime, "a")) == int(keep)


@pytest.mark.parametrize(("reason", "owner"), [("unsubscribed", None), ("gone", "a")])
def test_a_tombstones_owner_is_kept_only_where_no_person_ended_it(
    reason: str, owner: str | None, runtime: Runtime, pg: Pg
) -> None:
    endpoint = new_endpoint()
    save(runtime, endpoint, "a")
    rows.put_in_state(pg, endpoint, "revoked", reason)
    assert save(runtime, endpoint, keep_owner=True) == owner


def test_an_anonymous_row_is_linked_later(runtime: Runtime, pg: Pg) -> None:
    """A20 of the features."""
    endpoint = new_endpoint()
    save(runtime, endpoint, tags=["news"])
    assert save(runtime, endpoint, "a") == "a"
    assert rows.row(pg, endpoint)["tags"] == ["news"]
    assert rows.owners(pg, endpoint) == [(None, "owner_changed"), ("a", None)]


def test_tags_stay_with_their_owner(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    save(runtime, endpoint, "a", tags=["vip"])
    save(runtime, endpoint, "a")
    assert rows.row(pg, endpoint)["tags"] == ["vip"]
    save(runtime, endpoint, "b")
    assert rows.row(pg, endpoint)["tags"] == []


def test_logging_out_leaves_the_row_alive_and_anonymous(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    save(runtime, endpoint, "a", tags=["vip"])
    assert service.detach(runtime, endpoint) == 1
    row = rows.row(pg, endpoint)
    assert (row["user_id"], row["tags"], row["state"], row["deleted_at"]) == (None, [], "pending", None)
    assert rows.owners(pg, endpoint) == [("a", "detached"), (None, None)]
    assert service.detach(runtime, endpoint) == 0


def test_logging_out_everywhere_detaches_only_that_users_rows(runtime: Runtime) -> None:
    mine, other = [new_endpoint() for _ in range(3)], new_endpoint()
    for endpoint in mine:
        save(runtime, endpoint, "a")
    save(runtime, other, "b")
    assert service.detach_all(runtime, "a") == 3
    assert (live_of(runtime, "a"), len(live_of(runtime, "b"))) == ([], 1)


def test_unsubscribing_ends_the_row_in_one_go(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    endpoint = new_endpoint()
    save(runtime, endpoint, "a", user_agent="UA", locale="de")
    rows.put_in_state(pg, endpoint, "active")
    assert service.unsubscribe(runtime, endpoint=endpoint) == 1
    row = rows.row(pg, endpoint)
    assert (row["state"], row["previous_state"], row["end_reason"]) == ("revoked", "active", "unsubscribed")
    assert row["revoked_at"] == row["deleted_at"] == row["state_since"]
    assert (row["user_agent"], row["locale"], row["user_id"]) == (None, None, "a")
    assert row["auth_sealed"] is not None
    assert rows.owners(pg, endpoint) == [("a", "unsubscribed")]
    assert [fields["reason"] for _, name, fields in recorded if name == "subscription.ended"] == ["unsubscribed"]


def test_unsubscribing_twice_or_what_is_unknown_is_no_error(runtime: Runtime) -> None:
    endpoint = new_endpoint()
    save(runtime, endpoint)
    asked = [endpoint, new_endpoint(), endpoint, "", "\ud800", "http://nonsense"]
    assert service.unsubscribe(runtime, endpoints=asked) == 1
    assert service.unsubscribe(runtime, endpoints=asked) == 0


def test_all_devices_of_a_user_are_unsubscribed_at_once(runtime: Runtime) -> None:
    """A38 of the features."""
    for endpoint in [new_endpoint() for _ in range(3)]:
        save(runtime, endpoint, "a")
    save(runtime, new_endpoint(), "b")
    assert service.unsubscribe(runtime, user="a") == 3
    assert (live_of(runtime, "a"), len(live_of(runtime, "b"))) == ([], 1)


def test_a_persons_word_replaces_the_evidence_and_keeps_the_times(runtime: Runtime, pg: Pg) -> None:
    """So that undo does not bring back who has left since."""
    endpoint = new_endpoint()
    save(runtime, endpoint, "a")
    rows.put_in_state(pg, endpoint, "revoked", "gone")
    before = rows.row(pg, endpoint)
    assert service.unsubscribe(runtime, endpoint=endpoint) == 1
    after = rows.row(pg, endpoint)
    assert (after["end_reason"], after["deleted_at"]) == ("unsubscribed", before["deleted_at"])
    undone = service.undo(runtime, since=before["deleted_at"] - timedelta(days=1), dry_run=False, actor="test")
    assert (undone.rows, rows.row(pg, endpoint)["state"]) == (0, "revoked")


@pytest.mark.parametrize("which", [{}, {"endpoint": "x", "user": "y"}, {"endpoints": [], "user": "y"}])
def test_unsubscribing_asks_for_exactly_one_kind_of_target(which: dict[str, Any], runtime: Runtime) -> None:
    with pytest.raises(RefusedError, match="expected one of"):
        service.unsubscribe(runtime, **which)


@pytest.mark.parametrize("user", ["a\0", "", 7])
def test_a_user_that_cannot_be_is_refused_before_any_sql(user: Any, runtime: Runtime) -> None:
    for verb in (service.detach_all, lambda rt, who: service.unsubscribe(rt, user=who)):
        with pytest.raises(SubscriptionRefused):
            verb(runtime, user)
