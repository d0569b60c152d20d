"""Every (state, event) pair against the real statements: edges move, non-edges leave the row as it is."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID

import pytest

from pushops.delivery import guard
from pushops.erasure import service as erasures
from pushops.retention.policies import AGE_EXPIRED, AGE_STALE, SWEEPS
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, Finding
from pushops.subscriptions.lifecycle import EDGES, Event, State
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Sweep
from pushops.sweeps.work import work
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

Drive = Callable[[Runtime, Pg, str], object]

USER: Final = "u1"


def answer(finding: Finding) -> Drive:
    def drive(rt: Runtime, pg: Pg, endpoint: str) -> object:
        return service.record_evidence(rt, Evidence(*rows.claim(pg, endpoint)[:2], finding, rows.now(pg), 404))

    return drive


def last_vote(rt: Runtime, pg: Pg, endpoint: str) -> object:
    pg.execute(
        "UPDATE push_subscription SET votes = 2, first_vote_at = now() - interval '25 h',"
        " last_vote_at = now() - interval '7 h'"
    )
    return answer(Finding.VOTE)(rt, pg, endpoint)


def retire(rt: Runtime, pg: Pg, endpoint: str) -> object:
    limited = rt.settings.model_copy(update={"max_live_per_user": 1})
    rows.age(pg, endpoint, timedelta(hours=2), "last_seen_at")
    return service.save_subscription(Runtime(limited, rt.db, None, rt.events), subscribe(), user_id=USER)


def turn_back(rt: Runtime, pg: Pg, endpoint: str) -> object:  # noqa: ARG001  (as the verbs)
    """The guard doubts an answer that this row's end, if it has one, came of."""
    pg.execute("INSERT INTO push_provider (push_service) SELECT push_service FROM push_subscription")
    pg.execute(
        "INSERT INTO push_evidence (at, push_service, subscription_id, endpoint_hash, registration_no, finding,"
        " started_at, state, outcome, was_state, was_votes)"
        " SELECT coalesce(revoked_at, now()), push_service, id, endpoint_hash, registration_no, 'gone',"
        " now() - interval '2 h', 'applied', 'revoked', coalesce(previous_state, 'active'), 0 FROM push_subscription"
    )
    opened: UUID = pg.execute(  # type: ignore[index]
        "INSERT INTO push_guard (push_service, window_from, why)"
        " SELECT push_service, now() - interval '2 h', 'share' FROM push_subscription RETURNING guard_id"
    ).fetchone()[0]
    return guard.turn_back(rt, opened, timedelta(seconds=10))


def sweep(which: Sweep) -> Drive:
    """The sweep on a row that is quiet, tried and old enough for everything: only its state is left to decide."""

    def drive(rt: Runtime, _: Pg, endpoint: str) -> None:  # noqa: ARG001  (as the verbs)
        free = replace(rt, settings=rt.settings.model_copy(update={"sweep_max_share": 1.0, "sweep_pause_ms": 0}))
        found = dispatch(free, which, None, Order(started_by="test"))
        if found.run is not None and found.run.closed_at is None:
            work(free, SWEEPS, found.run.run_id)

    return drive


DRIVERS: Final[dict[Event, Drive]] = {
    Event.REGISTERED: lambda rt, _, endpoint: service.save_subscription(rt, subscribe(endpoint), user_id=USER),
    Event.TOUCHED: lambda rt, _, endpoint: service.touch(rt, endpoint),
    Event.ACCEPTED: answer(Finding.ACCEPTED),
    Event.GONE: answer(Finding.GONE),
    Event.VOTE: answer(Finding.VOTE),
    Event.VOTED_OUT: last_vote,
    Event.UNSUBSCRIBED: lambda rt, _, endpoint: service.unsubscribe(rt, endpoint=endpoint),
    Event.ROTATED_AWAY: lambda rt, _, endpoint: service.rotate(rt, endpoint, subscribe()),
    Event.RETIRED: retire,
    Event.ERASED: lambda rt, _, endpoint: erasures.erase(rt, endpoint=endpoint),
    Event.UNDONE: lambda rt, pg, _: service.undo(
        rt, since=rows.now(pg) - timedelta(days=1), dry_run=False, actor="test"
    ),
    Event.TURNED_BACK: turn_back,
    Event.QUIET: sweep(AGE_STALE),
    Event.AGED_OUT: sweep(AGE_EXPIRED),
}
BY_SWEEPS: Final = {Event.QUIET, Event.AGED_OUT}
LONG_AGO: Final = timedelta(days=500)
CLOCKS: Final = ("state_since", "revoked_at", "deleted_at", "end_reason", "previous_state", "votes")


def test_every_event_has_a_driver() -> None:
    assert DRIVERS.keys() == set(Event)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", DRIVERS)
def test_the_row_goes_where_the_table_says_and_nowhere_else(
    state: State, event: Event, runtime: Runtime, pg: Pg
) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint), user_id=USER)
    rows.put_in_state(pg, endpoint, state)
    if event in BY_SWEEPS:
        rows.age(
            pg, endpoint, LONG_AGO, "created_at", "registered_at", "last_seen_at", "last_success_at", "state_since"
        )
        pg.execute("UPDATE push_subscription SET last_tried_at = now()")
    before = rows.row(pg, endpoint)

    DRIVERS[event](runtime, pg, endpoint)

    after = rows.row(pg, endpoint)
    edge = EDGES.get((state, event))
    if edge is None:
        if event is Event.VOTED_OUT:
            before |= {"votes": 2}
        assert {name: after[name] for name in ("state", *CLOCKS)} == {name: before[name] for name in ("state", *CLOCKS)}
        return
    if event in {Event.UNDONE, Event.TURNED_BACK}:
        assert after["state"] == before["previous_state"]
    else:
        assert after["state"] == edge.targets[0]
    assert (after["state_since"] != before["state_since"]) == (after["state"] != state)
    assert (after["deleted_at"] is None) == (after["state"] in {"pending", "active", "stale"})
    open_periods = [period for period in rows.periods(pg, endpoint) if period["ended_at"] is None]
    assert len(open_periods) == (after["deleted_at"] is None)


def test_a_stale_row_without_a_success_comes_back_as_pending(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    rows.put_in_state(pg, endpoint, "stale")
    pg.execute("UPDATE push_subscription SET last_success_at = NULL")
    service.touch(runtime, endpoint)
    assert rows.row(pg, endpoint)["state"] == "pending"
