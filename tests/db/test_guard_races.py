"""Two settlers, an operator and the guard's opening at once: nothing slips between them."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pushops.delivery import guard, holds, observing
from pushops.delivery.observing import Kind, Observation
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding, apply_batch
from tests import ledger
from tests.answering import PROMPT, evidence_states, observe, settle, states, subscribers
from tests.rows import Pg
from tests.sweeping import wait_until

G, A = Finding.GONE, Finding.ACCEPTED


@pytest.fixture
def lane(pg: Pg) -> int:
    return ledger.lane(pg)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as opened:
        yield opened


@contextmanager
def settling(rt: Runtime, lane: int, kinds: list[Kind]) -> Iterator[tuple[Any, Any]]:
    """A settler's transaction that has decided and not committed yet."""
    with rt.db.transaction() as tx:
        seen = [Observation(lane, kind, answered=True, code="x") for kind in kinds]
        yield tx, observing.observe(tx, rt.settings, "fcm", seen)


def wait_for_lock(pg: Pg, count: int = 1) -> None:
    """Until so many sessions of this database wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND state = 'active'"
    )
    wait_until(lambda: (pg.execute(query).fetchone() or (0,))[0] >= count, expected="a session waits for a lock")


def one(pg: Pg, row: Any, finding: Finding) -> Evidence:
    found = pg.execute("SELECT clock_timestamp()").fetchone()
    assert found is not None
    return Evidence(row, 1, finding, found[0])


@pytest.mark.parametrize("known", [True, False])
def test_evidence_that_comes_while_the_guard_opens_waits_and_is_not_applied(
    known: bool, runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor
) -> None:
    """Also where these are the first answers that the push service ever gave."""
    ids = subscribers(pg, 5)
    if known:
        observe(runtime, lane, Kind.ACCEPTED)
    with settling(runtime, lane, [Kind.TERMINAL] * 20) as (_, observed):
        assert observed.guard_open
        late: list[Future[Any]] = [
            pool.submit(settle, runtime, lane, [(ids[0], G)]),
            pool.submit(service.record_evidence, runtime, one(pg, ids[1], G)),
        ]
        wait_for_lock(pg, 2)
    assert late[0].result().outcomes == [EvidenceOutcome.PENDING]
    assert late[1].result() is EvidenceOutcome.PENDING
    assert states(pg) == {"active": 5}


def test_evidence_that_was_applied_just_before_the_guard_opened_is_turned_back(
    runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor
) -> None:
    """It began first, waited, and is dated before the window of whoever overtook it."""
    ids = subscribers(pg, 3)
    with runtime.db.transaction() as tx:
        apply_batch(tx, runtime.settings, "fcm", [Evidence(ids[0], 1, G, tx.now)], None)
        opening = pool.submit(observe, runtime, lane, Kind.TERMINAL, 20)
        pool.submit(service.record_evidence, runtime, one(pg, ids[1], G))
    opened = opening.result().opened_guard
    assert opened is not None
    assert guard.turn_back(runtime, opened, PROMPT)
    assert states(pg) == {"active": 3}


def test_two_settlers_count_as_one(runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor) -> None:
    """Neither sees a guard's worth of answers alone, and it opens once."""
    ids = subscribers(pg, 40)
    found = list(pool.map(lambda n: settle(runtime, lane, [(ids[n], G)]), range(40)))
    opened = [settled.observed.opened_guard for settled in found if settled.observed.opened_guard]
    assert len(opened) == 1
    assert guard.turn_back(runtime, opened[0], PROMPT)
    assert states(pg) == {"active": 40}
    assert evidence_states(pg) == {"pending": 40}
    assert pg.execute("SELECT sum(terminal), sum(attempts) FROM push_answer").fetchone() == (40, 40)


def test_settlers_of_different_push_services_do_not_wait_for_each_other(runtime: Runtime, pg: Pg, lane: int) -> None:
    other = ledger.lane(pg, "updates.push.services.mozilla.com", service="mozilla")
    with settling(runtime, lane, [Kind.ACCEPTED]):
        observe(runtime, other, Kind.ACCEPTED, service="mozilla")


def test_what_is_settled_while_an_operator_accepts_is_believed_or_was_kept(
    runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor
) -> None:
    ids = subscribers(pg, 60)
    settle(runtime, lane, [(row, G) for row in ids[:20]])
    start = threading.Barrier(4)

    def answer(first: int) -> None:
        start.wait()
        for row in ids[first : first + 12]:
            settle(runtime, lane, [(row, G), (ids[59], A)])

    working = [pool.submit(answer, first) for first in (20, 32, 44)]
    start.wait()
    guard.accept(runtime, "fcm", reason="r", actor="ann", dry_run=False)
    for done in working:
        done.result()
    open_guards = pg.execute("SELECT count(*) FROM push_guard WHERE closed_at IS NULL").fetchone()
    if open_guards == (1,):  # the last of them were a share beyond belief again
        guard.accept(runtime, "fcm", reason="r", actor="ann", dry_run=False)
    assert guard.tend(runtime) == 0
    assert states(pg) == {"active": 4, "revoked": 56}
    assert evidence_states(pg) == {"applied": 56}


def test_a_success_that_comes_while_an_operator_accepts_saves_its_row(
    runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor
) -> None:
    """Whichever comes first: a success before it discards, after it finds a row that ended, as its word was late."""
    ids = subscribers(pg, 20)
    settle(runtime, lane, [(row, G) for row in ids])
    with runtime.db.transaction() as tx:
        apply_batch(tx, runtime.settings, "fcm", [Evidence(ids[0], 1, A, tx.now)], None)
        accepting = pool.submit(guard.accept, runtime, "fcm", reason="r", actor="ann", dry_run=False)
        wait_for_lock(pg)
    outcomes = accepting.result().outcomes
    assert outcomes["revoked"] == 19
    assert states(pg) == {"active": 1, "revoked": 19}


def test_two_operators_judge_once(runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor) -> None:
    ids = subscribers(pg, 30)
    settle(runtime, lane, [(row, G) for row in ids])
    ask = {"reason": "r", "actor": "ann", "dry_run": False}
    both = [pool.submit(verb, runtime, "fcm", **ask) for verb in (guard.accept, guard.reject)]
    failed = [done.exception() is not None for done in both]
    assert sorted(failed) == [False, True]
    assert states(pg) in ({"revoked": 30}, {"active": 30})


def test_two_that_continue_the_same_guard_apply_each_answer_once(
    runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "PAGE", 5)
    ids = subscribers(pg, 40)
    settle(runtime, lane, [(row, G) for row in ids])
    pg.execute("UPDATE push_guard SET closed_at = now(), closed_by = 'x', verdict = 'accepted'")
    pg.execute("UPDATE push_provider SET guard_id = NULL")
    assert list(pool.map(lambda _: guard.tend(runtime), range(3))) == [0, 0, 0]
    assert states(pg) == {"revoked": 40}
    assert pg.execute("SELECT count(*) FROM audit WHERE verb = 'evidence'").fetchone() == (40,)


def test_a_probe_is_one_workers(runtime: Runtime, pg: Pg, lane: int, pool: ThreadPoolExecutor) -> None:
    every = runtime.settings.unhealthy_probe
    observe(runtime, lane, Kind.FAULTY, 20)
    observe(runtime, lane, Kind.DENIED, 5)

    def take(what: str) -> bool:
        with runtime.db.transaction() as tx:
            return holds.take_probe(tx, "fcm", every) if what == "p" else holds.take_lane_probe(tx, lane, every)

    for what, name in (("p", "push_provider"), ("l", "push_lane")):
        assert not take(what), "the first is due after its time"
        pg.execute(f"UPDATE {name} SET probe_at = now()".encode())
        assert sum(pool.map(take, what * 12)) == 1
        assert not take(what)


def test_the_statement_itself_refuses_where_a_guard_is_open(runtime: Runtime, pg: Pg) -> None:
    """Whoever forgets to ask: the condition stands in what ends rows too."""
    (row,) = subscribers(pg, 1)
    pg.execute("INSERT INTO push_guard (push_service, window_from, why) VALUES ('fcm', now(), 'share')")
    with psycopg.connect(pg.info.dsn, password=pg.info.password) as conn:
        outcome = service.record_evidence(runtime, one(pg, row, G), conn=conn)
    assert outcome is not EvidenceOutcome.REVOKED
    assert states(pg) == {"active": 1}
