"""pushsubscriptionchange: the heir takes user and date, the old endpoint ends, and consent goes on."""

from datetime import timedelta
from typing import Any

import pytest

from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from pushops.subscriptions.rejection import Advice
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg


def test_the_new_row_takes_the_user_and_the_original_date(runtime: Runtime, pg: Pg) -> None:
    """A19 of the features."""
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a", tags=["x"], origin="o", locale="de")
    rows.age(pg, old, timedelta(days=50), "created_at")
    rows.age_periods(pg, old, timedelta(days=50))
    began = rows.periods(pg, old)[0]["began_at"]
    created = rows.row(pg, old)["created_at"]

    saved = service.rotate(runtime, old, subscribe(new))

    heir, ancestor = rows.row(pg, new), rows.row(pg, old)
    assert (saved.inserted, saved.user_id, saved.state, saved.reconnection) == (True, "a", "pending", False)
    assert (heir["created_at"], heir["tags"], heir["origin"], heir["locale"]) == (created, ["x"], "o", "de")
    assert (ancestor["state"], ancestor["end_reason"]) == ("revoked", "rotated")
    assert rows.owners(pg, old) == [("a", "rotated")]
    assert [(period["user_id"], period["began_at"]) for period in rows.periods(pg, new)] == [("a", began)]


def test_a_rotation_is_neither_an_end_nor_a_start(runtime: Runtime, pg: Pg) -> None:
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    service.rotate(runtime, old, subscribe(new))
    (day,) = service.stats(runtime, rows.now(pg) - timedelta(days=1), rows.now(pg))
    assert (day.started, day.reconnected, dict(day.ended)) == (1, 0, {})


def test_rotating_twice_changes_nothing_more(runtime: Runtime, pg: Pg) -> None:
    """The client did not hear the first answer."""
    old, new = new_endpoint(), subscribe()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    first = service.rotate(runtime, old, new)
    again = service.rotate(runtime, old, new)
    assert (again.id, again.user_id, again.inserted) == (first.id, "a", False)
    assert rows.owners(pg, old) == [("a", "rotated")]
    assert rows.owners(pg, new["endpoint"]) == [("a", None)]


def test_an_unknown_old_endpoint_makes_it_a_plain_save(runtime: Runtime, pg: Pg) -> None:
    new = new_endpoint()
    saved = service.rotate(runtime, new_endpoint(), subscribe(new))
    assert (saved.inserted, saved.user_id, rows.owners(pg, new)) == (True, None, [(None, None)])


def test_the_same_endpoint_makes_it_a_plain_save_that_keeps_the_owner(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id="a")
    saved = service.rotate(runtime, endpoint, subscribe(endpoint))
    assert (saved.user_id, saved.inserted, saved.state) == ("a", False, "pending")
    assert rows.owners(pg, endpoint) == [("a", None)]


def test_a_late_rotation_never_takes_the_new_endpoint_from_its_owner(runtime: Runtime, pg: Pg) -> None:
    """A23: somebody else has signed in at that browser since."""
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    service.save_subscription(runtime, subscribe(new), user_id="b")
    began = rows.periods(pg, new)[0]["began_at"]
    assert service.rotate(runtime, old, subscribe(new)).user_id == "b"
    assert [(period["user_id"], period["began_at"]) for period in rows.periods(pg, new)] == [("b", began)]


def test_a_user_who_is_named_takes_over_without_inheriting_the_opt_in_date(runtime: Runtime, pg: Pg) -> None:
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    rows.age_periods(pg, old, timedelta(days=50))
    assert service.rotate(runtime, old, subscribe(new), user_id="b").user_id == "b"
    assert rows.periods(pg, new)[0]["began_at"] > rows.now(pg) - timedelta(minutes=5)


def test_what_a_person_ended_is_not_renewed_by_their_browser(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    old = new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    service.unsubscribe(runtime, endpoint=old)
    with pytest.raises(SubscriptionRefused) as caught:
        service.rotate(runtime, old, subscribe())
    assert (caught.value.reason, caught.value.advice) == ("unsubscribed", Advice.UNSUBSCRIBE)
    assert pg.execute("SELECT count(*) FROM push_subscription").fetchone() == (1,)
    assert recorded[-1][1] == "subscription.refused"


def test_what_evidence_had_ended_goes_on_under_the_new_endpoint_and_stays_ended(runtime: Runtime, pg: Pg) -> None:
    """The push service said 410 before the browser told us; undo must not bring the old one back beside its heir."""
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    rows.put_in_state(pg, old, "revoked", "gone")
    saved = service.rotate(runtime, old, subscribe(new))
    assert (saved.user_id, saved.reconnection) == ("a", True)
    assert rows.row(pg, old)["end_reason"] == "rotated"
    assert service.undo(runtime, reason="gone", dry_run=False, actor="test").rows == 0


def test_a_second_heir_of_one_endpoint_only_reconnects(runtime: Runtime, pg: Pg) -> None:
    old, second = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old))
    service.rotate(runtime, old, subscribe())
    assert service.rotate(runtime, old, subscribe(second)).reconnection
    (day,) = service.stats(runtime, rows.now(pg) - timedelta(days=1), rows.now(pg))
    assert (day.started, day.reconnected) == (1, 1)


def test_a_user_who_is_named_inherits_nothing_that_another_chose_or_was(runtime: Runtime, pg: Pg) -> None:
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a", tags=["clinic"], user_agent="UA", locale="de")
    rows.age(pg, old, timedelta(days=50), "created_at")
    service.rotate(runtime, old, subscribe(new), user_id="b")
    row = rows.row(pg, new)
    assert (row["user_id"], row["tags"], row["user_agent"], row["locale"]) == ("b", [], None, None)
    assert row["created_at"] > rows.now(pg) - timedelta(minutes=5)


def test_who_has_the_new_endpoint_inherits_nothing_either(runtime: Runtime, pg: Pg) -> None:
    old, new = new_endpoint(), new_endpoint()
    service.save_subscription(runtime, subscribe(old), user_id="a", tags=["clinic"], user_agent="UA", locale="de")
    rows.age(pg, old, timedelta(days=50), "created_at")
    service.save_subscription(runtime, subscribe(new), user_id="b", tags=["y"])
    before = rows.row(pg, new)
    service.rotate(runtime, old, subscribe(new))
    after = rows.row(pg, new)
    kept = ("user_id", "tags", "user_agent", "locale", "created_at")
    assert [after[name] for name in kept] == [before[name] for name in kept]
