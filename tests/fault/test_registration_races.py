"""Registrations, answers and rotations that meet on the same row, over connections of their own."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.registering import Candidate
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

DEADLINE = 30
THREADS = 8
LOCK: LiteralString = "SELECT 1 FROM pushops.push_subscription WHERE endpoint_hash = %s FOR UPDATE"


@pytest.fixture
def wide(settings: Settings) -> Iterator[Runtime]:
    """A runtime with a connection for every thread, patient enough for a machine that does other things too."""
    patient = {"pool_size": THREADS, "log_level": "error", "lock_timeout": timedelta(seconds=20)}
    opened = open_runtime(settings.model_copy(update=patient | {"statement_timeout": timedelta(seconds=20)}))
    yield opened
    opened.close()


@contextmanager
def threads(count: int = THREADS) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def all_of(futures: Sequence[Future[Any]]) -> list[Any]:
    """Every result; the first exception is raised here, so that none passes unseen."""
    return [future.result(timeout=DEADLINE) for future in as_completed(futures, timeout=DEADLINE)]


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Start all of them at the same moment."""
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        gate.wait(DEADLINE)
        return work()

    with threads(len(works)) as pool:
        return all_of([pool.submit(run, work) for work in works])


def blocked(pg: Pg) -> int:
    found = pg.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def until_blocked(pg: Pg, count: int, future: Future[Any]) -> None:
    """Wait until that many sessions wait for a lock, or the work ends (which the test then finds wrong)."""
    give_up = threading.Event()
    timer = threading.Timer(DEADLINE, give_up.set)
    timer.start()
    while blocked(pg) < count and not future.done():
        assert not give_up.wait(0.005), "nothing waited for a lock"
    timer.cancel()


@pytest.mark.parametrize("finding", [Finding.GONE, Finding.ACCEPTED])
def test_an_answer_that_waits_for_a_registration_finds_it_superseded(
    finding: Finding, runtime: Runtime, database_url: str, pg: Pg
) -> None:
    """C01: the upsert's transaction began before the claim and commits after it, with the 410 already waiting."""
    subscription = subscribe()
    endpoint = subscription["endpoint"]
    service.save_subscription(runtime, subscription, user_id="a")
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        conn.execute("SELECT now()")
        known = rows.claim(pg, endpoint)
        service.save_subscription(runtime, subscribe(endpoint), user_id="a", conn=conn)
        evidence = Evidence(known[0], known[1], finding, known[2], 410)
        answer = pool.submit(service.record_evidence, runtime, evidence)
        until_blocked(pg, 1, answer)
        assert not answer.done()
        conn.commit()
        assert answer.result(timeout=DEADLINE) is EvidenceOutcome.SUPERSEDED
    row = rows.row(pg, endpoint)
    assert (row["state"], row["registration_no"], row["deleted_at"]) == ("pending", 2, None)
    assert rows.owners(pg, endpoint) == [("a", None)]


def test_a_registration_that_waits_for_a_410_brings_the_row_back(runtime: Runtime, database_url: str, pg: Pg) -> None:
    """C01, the other way round."""
    subscription = subscribe()
    endpoint = subscription["endpoint"]
    service.save_subscription(runtime, subscription, user_id="a")
    known = rows.claim(pg, endpoint)
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        service.record_evidence(runtime, Evidence(known[0], known[1], Finding.GONE, known[2], 410), conn=conn)
        again = pool.submit(service.save_subscription, runtime, subscribe(endpoint), user_id="a")
        until_blocked(pg, 1, again)
        assert not again.done()
        conn.commit()
        saved = again.result(timeout=DEADLINE)
    assert (saved.inserted, saved.state, saved.reconnection) == (False, "pending", True)
    assert rows.owners(pg, endpoint) == [("a", "gone"), ("a", None)]


def test_a_410_that_waits_for_a_logout_closes_the_period_that_the_logout_opened(
    runtime: Runtime, database_url: str, pg: Pg
) -> None:
    """The registration number is the same, so the answer applies: to the trail as the logout left it."""
    subscription = subscribe()
    endpoint = subscription["endpoint"]
    service.save_subscription(runtime, subscription, user_id="a")
    known = rows.claim(pg, endpoint)
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        service.detach(runtime, endpoint, conn=conn)
        evidence = Evidence(known[0], known[1], Finding.GONE, known[2], 410)
        answer = pool.submit(service.record_evidence, runtime, evidence)
        until_blocked(pg, 1, answer)
        conn.commit()
        assert answer.result(timeout=DEADLINE) is EvidenceOutcome.REVOKED
    assert rows.owners(pg, endpoint) == [("a", "detached"), (None, "gone")]


def test_a_storm_of_registrations_of_one_new_endpoint_makes_one_row(wide: Runtime, pg: Pg) -> None:
    """C06, A22: nobody gets an error, exactly one inserted, one owner at the end, and the trail has no hole."""
    endpoint = new_endpoint()

    def post(number: int) -> Callable[[], Any]:
        user = None if number % 4 == 0 else f"u{number % 3}"
        return lambda: [service.save_subscription(wide, subscribe(endpoint), user_id=user) for _ in range(8)]

    found = [saved for each in at_once([post(number) for number in range(THREADS)]) for saved in each]
    assert len(found) == THREADS * 8
    assert Counter(saved.inserted for saved in found)[True] == 1
    assert len({saved.id for saved in found}) == 1
    row = rows.row(pg, endpoint)
    assert row["registration_no"] == THREADS * 8
    trail = rows.periods(pg, endpoint)
    assert [(period["user_id"], period["end_reason"]) for period in trail if period["ended_at"] is None] == [
        (row["user_id"], None)
    ]
    assert all(period["ended_at"] >= period["began_at"] for period in trail if period["ended_at"])


def test_registrations_answers_and_goodbyes_at_once_leave_row_and_trail_in_agreement(wide: Runtime, pg: Pg) -> None:
    endpoints = [new_endpoint() for _ in range(3)]
    for endpoint in endpoints:
        service.save_subscription(wide, subscribe(endpoint), user_id="a")

    def answer(endpoint: str) -> None:
        with psycopg.connect(wide.settings.database_url.get_secret_value(), options="-c search_path=pushops") as own:  # type: ignore[union-attr]
            known = rows.claim(own, endpoint)
        service.record_evidence(wide, Evidence(known[0], known[1], Finding.GONE, known[2], 410))

    def work(number: int) -> Callable[[], Any]:
        def run() -> None:
            for turn in range(6):
                endpoint = endpoints[(number + turn) % 3]
                match (number + turn) % 4:
                    case 0:
                        service.save_subscription(wide, subscribe(endpoint), user_id=f"u{number}")
                    case 1:
                        answer(endpoint)
                    case 2:
                        service.unsubscribe(wide, endpoints=endpoints)
                    case _:
                        service.detach(wide, endpoint)

        return run

    at_once([work(number) for number in range(THREADS)])
    for endpoint in endpoints:
        row = rows.row(pg, endpoint)
        open_periods = [period["user_id"] for period in rows.periods(pg, endpoint) if period["ended_at"] is None]
        assert open_periods == ([] if row["deleted_at"] else [row["user_id"]])


def test_a_storm_of_rotations_in_circles_lets_no_deadlock_out(wide: Runtime, pg: Pg) -> None:
    """Rows are taken in id order."""
    endpoints = [new_endpoint() for _ in range(4)]
    for endpoint in endpoints[:2]:
        service.save_subscription(wide, subscribe(endpoint), user_id="a")

    def work(number: int) -> Callable[[], Any]:
        def run() -> int:
            for turn in range(8):
                old, new = endpoints[(number + turn) % 4], endpoints[(number * 3 + turn + 1) % 4]
                service.rotate(wide, old, subscribe(new))
            return number

        return run

    assert sorted(at_once([work(number) for number in range(THREADS)])) == list(range(THREADS))
    for endpoint in endpoints:
        row = rows.row(pg, endpoint)
        open_periods = [period["user_id"] for period in rows.periods(pg, endpoint) if period["ended_at"] is None]
        assert open_periods == ([] if row["deleted_at"] else [row["user_id"]])


def test_many_rotations_of_one_endpoint_share_one_past(wide: Runtime, pg: Pg) -> None:
    old = new_endpoint()
    service.save_subscription(wide, subscribe(old), user_id="a")
    began = rows.periods(pg, old)[0]["began_at"]
    found = at_once([lambda: service.rotate(wide, old, subscribe()) for _ in range(THREADS)])
    assert {saved.user_id for saved in found} == {"a"}
    assert rows.owners(pg, old) == [("a", "rotated")]
    heirs = pg.execute("SELECT count(*) FROM subscription_period WHERE began_at = %s AND ended_at IS NULL", [began])
    assert heirs.fetchone() == (1,)


@pytest.mark.parametrize("verb", ["unsubscribe", "detach_all"])
def test_leaving_everywhere_finds_the_heir_of_a_rotation_that_it_waited_for(
    verb: str, runtime: Runtime, database_url: str, pg: Pg
) -> None:
    """In either order of the two, the user ends with no live row."""
    old, new = new_endpoint(), subscribe()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        service.rotate(runtime, old, new, conn=conn)
        if verb == "unsubscribe":
            leaving = pool.submit(service.unsubscribe, runtime, user="a")
        else:
            leaving = pool.submit(service.detach_all, runtime, "a")
        until_blocked(pg, 1, leaving)
        assert not leaving.done()
        conn.commit()
        assert leaving.result(timeout=DEADLINE) == 2
    heir = rows.row(pg, new["endpoint"])
    assert heir["user_id"] is None or heir["deleted_at"] is not None


def test_a_repeated_rotation_that_waited_for_the_first_sees_the_logout_after_it(
    runtime: Runtime, database_url: str, pg: Pg
) -> None:
    """When it looked, the new row was not there yet."""
    old, new = new_endpoint(), subscribe()
    service.save_subscription(runtime, subscribe(old), user_id="a")
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        service.rotate(runtime, old, new, conn=conn)
        service.detach(runtime, new["endpoint"], conn=conn)
        repeated = pool.submit(service.rotate, runtime, old, new)
        until_blocked(pg, 1, repeated)
        assert not repeated.done()
        conn.commit()
        assert repeated.result(timeout=DEADLINE).user_id is None


def test_a_deadlock_is_done_again_with_the_settings_as_they_come(runtime: Runtime, pg: Pg) -> None:
    """A deadlock made for certain: each holds a row that the other wants, and both finish."""
    first, second = subscribe(), subscribe()
    for subscription in (first, second):
        service.save_subscription(runtime, subscription)
    ids = [rows.row(pg, subscription["endpoint"])["id"] for subscription in (first, second)]
    attempts: Counter[str] = Counter()
    meet = threading.Barrier(2)

    def cross(name: str, mine: int) -> str:
        from pushops.subscriptions.work import in_transaction

        def work(tx: Any) -> str:
            attempts[name] += 1
            lock = "SELECT 1 FROM pushops.push_subscription WHERE id = %s FOR UPDATE"
            tx.conn.execute(lock, [ids[mine]])
            if attempts[name] == 1:
                meet.wait(DEADLINE)
            tx.conn.execute(lock, [ids[1 - mine]])
            return name

        return in_transaction(runtime, None, work)

    assert set(at_once([lambda: cross("x", 0), lambda: cross("y", 1)])) == {"x", "y"}
    assert sorted(attempts.values()) == [1, 2]


def test_two_imports_of_the_same_rows_in_opposite_order_both_finish(wide: Runtime, pg: Pg) -> None:
    candidates = [Candidate(subscribe()) for _ in range(300)]
    found = at_once(
        [
            lambda: list(service.save_many(wide, candidates)),
            lambda: list(service.save_many(wide, candidates[::-1])),
        ]
    )
    assert [len(each) for each in found] == [300, 300]
    assert pg.execute("SELECT count(*), min(registration_no) FROM push_subscription").fetchone() == (300, 2)


def two_endpoints(rt: Runtime, pg: Pg) -> tuple[str, str]:
    """Two stored endpoints, the first with the lower id and the higher hash."""
    while True:
        pair = new_endpoint(), new_endpoint()
        if endpoint_hash(pair[0]) > endpoint_hash(pair[1]):
            for endpoint in pair:
                service.save_subscription(rt, subscribe(endpoint), user_id="a")
            assert rows.row(pg, pair[0])["id"] < rows.row(pg, pair[1])["id"]
            return pair


def test_a_rotation_takes_the_lower_id_first_whichever_is_the_old_one(
    runtime: Runtime, database_url: str, pg: Pg
) -> None:
    """While it waits for the first row it holds nothing that another could wait for."""
    low, high = two_endpoints(runtime, pg)
    for old, new in ((high, low), (low, high)):
        with psycopg.connect(database_url) as conn, threads(1) as pool:
            conn.execute(LOCK, [endpoint_hash(low)])
            rotation = pool.submit(service.rotate, runtime, old, subscribe(new))
            until_blocked(pg, 1, rotation)
            assert pg.execute(LOCK + " NOWAIT", [endpoint_hash(high)]).fetchone()
            conn.commit()
            rotation.result(timeout=DEADLINE)


def test_an_import_takes_rows_in_hash_order_whatever_order_they_came_in(
    runtime: Runtime, database_url: str, pg: Pg
) -> None:
    second, first = two_endpoints(runtime, pg)
    candidates = [Candidate(subscribe(second)), Candidate(subscribe(first))]
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        conn.execute(LOCK, [endpoint_hash(first)])
        imported = pool.submit(lambda: list(service.save_many(runtime, candidates)))
        until_blocked(pg, 1, imported)
        assert pg.execute(LOCK + " NOWAIT", [endpoint_hash(second)]).fetchone()
        conn.commit()
        assert len(imported.result(timeout=DEADLINE)) == 2


def test_registrations_of_a_limited_user_wait_for_each_other(runtime: Runtime, database_url: str, pg: Pg) -> None:
    """Or both would find room for the last place."""
    limited = Runtime(runtime.settings.model_copy(update={"max_live_per_user": 1}), runtime.db, None, runtime.events)
    with psycopg.connect(database_url) as conn, threads(1) as pool:
        service.save_subscription(limited, subscribe(), user_id="a", conn=conn)
        second = pool.submit(service.save_subscription, limited, subscribe(), user_id="a")
        until_blocked(pg, 1, second)
        assert not second.done()
        conn.commit()
        second.result(timeout=DEADLINE)
    live = "SELECT count(*) FROM push_subscription WHERE user_id = 'a' AND deleted_at IS NULL"
    assert pg.execute(live).fetchone() == (1,)


def test_registrations_of_one_user_at_once_stay_under_the_limit(wide: Runtime, pg: Pg) -> None:
    limited = Runtime(wide.settings.model_copy(update={"max_live_per_user": 3}), wide.db, None, wide.events)
    at_once([lambda: service.save_subscription(limited, subscribe(), user_id="a") for _ in range(THREADS)])
    live = "SELECT count(*) FROM push_subscription WHERE user_id = 'a' AND deleted_at IS NULL"
    assert pg.execute(live).fetchone() == (3,)
