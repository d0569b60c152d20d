"""Letters in hand: one holder at a time, nothing from who came too late, and what becomes of who never came back."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from pushops.db import Tx
from pushops.deadletters import service as replays
from pushops.deadletters.replay.settling import Opened
from pushops.deadletters.store import gates, replaying
from pushops.events import Level
from pushops.runtime import Runtime
from tests.letters import letter
from tests.replaying import Pg, attempts, change, drain, park
from tests.sending import make_live, sent
from tests.sweepdb import in_background, wait_blocked

Recorded = list[tuple[Level, str, dict[str, Any]]]
LEASE: Final = timedelta(minutes=5)
KEYS: Final = gates.params(["test"])
LAPSE: Final = "UPDATE push_dlq SET claimed_until = now() - interval '1 second' WHERE replay_state = 'claimed'"


@pytest.fixture
def ids(runtime: Runtime, pg: Pg) -> list[UUID]:
    """Three letters that may be sent."""
    make_live(pg, 3, hosts=("fcm.googleapis.com",), services=("fcm",))
    return park(pg, sent(runtime, campaign="c"))


def claim(rt: Runtime, ids: list[UUID], token: UUID, run_id: UUID | None = None) -> set[UUID]:
    with rt.db.transaction() as tx:
        return replaying.claim(tx, ids, token=token, lease=LEASE, run_id=run_id)


def opening(tx: Tx, ids: list[UUID], token: UUID) -> list[Opened]:
    return replaying.open_letters(tx, ids, KEYS, Opened, token=token, lease=LEASE, by="test", run_id=None, why=None)


def open_all(rt: Runtime, ids: list[UUID], token: UUID) -> list[Opened]:
    with rt.db.transaction() as tx:
        return opening(tx, ids, token)


def accept(rt: Runtime, ids: list[UUID], token: UUID) -> set[UUID]:
    with rt.db.transaction() as tx:
        return replaying.settle_accepted(
            tx, token, ids, [11] * len(ids), [201] * len(ids), by="test", reason="replayed"
        )


def park_again(rt: Runtime, ids: list[UUID], token: UUID, **changes: Any) -> set[UUID]:
    common = {
        "attempt": 11,
        "outcome": "unavailable",
        "status": 500,
        "code": "http_500",
        "snippet": "no",
        "state": "parked",
        "close_reason": None,
        "poison": False,
        "spends": True,
        "in_doubt": False,
        "of_letter": True,
        "next_replay_at": None,
    }
    with rt.db.transaction() as tx:
        return replaying.settle(tx, token, [{"dlq_id": str(each)} | common | changes for each in ids], by="test")


def test_a_letter_has_one_holder_whoever_asks(runtime: Runtime, ids: list[UUID]) -> None:
    one, two = uuid4(), uuid4()
    assert claim(runtime, ids[:2], one) == set(ids[:2])
    assert claim(runtime, ids, two) == {ids[2]}
    assert open_all(runtime, ids, uuid4()) == []
    assert [each.dlq_id for each in open_all(runtime, ids, one)] == ids[:2]


def test_two_that_claim_at_the_same_moment_never_wait_and_never_share(runtime: Runtime, ids: list[UUID]) -> None:
    with runtime.db.transaction() as first:
        mine = replaying.claim(first, ids[:2], token=uuid4(), lease=LEASE, run_id=None)
        assert claim(runtime, ids, uuid4()) == set(ids) - mine
    assert mine == set(ids[:2])


def test_an_opened_letter_has_an_attempt_numbered_after_all_others(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    token = uuid4()
    pg.execute(
        "INSERT INTO push_dlq_attempt (replay_key, attempt, kind, settled_at, outcome)"
        " SELECT replay_key, 14, 'replay', now(), 'throttled' FROM push_dlq WHERE dlq_id = %s",
        [ids[0]],
    )
    claim(runtime, ids, token)
    opened = open_all(runtime, ids, token)
    assert [each.attempt for each in opened] == [15, 11, 11]
    assert all(each.verdict is None and each.service == "fcm" for each in opened)
    assert [attempts(pg, each)[-1]["settled_at"] for each in ids] == [None] * 3


def test_what_a_gate_closes_between_claim_and_opening_is_not_opened(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    token = uuid4()
    claim(runtime, ids, token)
    change(pg, ids[:1], replayable="false")
    pg.execute("INSERT INTO push_pause (kind, name, paused_by) VALUES ('campaign', 'c', 'x')")
    assert [each.verdict for each in open_all(runtime, ids, token)] == ["not_replayable", "held", "held"]
    found = [letter(pg, each) for each in ids]
    assert [each["replay_state"] for each in found] == ["discarded", "parked", "parked"]
    assert (found[0]["close_reason"], found[0]["closed_by"]) == ("not_replayable", "test")
    assert [len(attempts(pg, each)) for each in ids] == [0, 0, 0]


def test_a_letter_is_opened_once(runtime: Runtime, ids: list[UUID]) -> None:
    """A message that comes twice: its second worker holds another token, and the first one's doubt itself."""
    token = uuid4()
    claim(runtime, ids, token)
    open_all(runtime, ids, token)
    assert [each.verdict for each in open_all(runtime, ids, token)] == ["in_doubt"] * 3


def test_nothing_is_opened_in_the_last_half_of_a_lease(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    token = uuid4()
    claim(runtime, ids, token)
    pg.execute("UPDATE push_dlq SET claimed_until = now() + interval '149 seconds' WHERE replay_state = 'claimed'")
    assert open_all(runtime, ids, token) == []


def test_a_settled_letter_is_closed_and_so_is_its_attempt(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    token = uuid4()
    claim(runtime, ids, token)
    open_all(runtime, ids, token)
    assert accept(runtime, ids[:1], token) == {ids[0]}
    assert park_again(runtime, ids[1:2], token) == {ids[1]}
    gone = {"state": "discarded", "close_reason": "subscription_gone", "spends": False, "of_letter": False}
    assert park_again(runtime, ids[2:], token, status=410, **gone) == {ids[2]}
    one, two, three = (letter(pg, each) for each in ids)
    assert (one["replay_state"], one["close_reason"], one["attempt_count"]) == ("replayed", "replayed", 11)
    assert (two["replay_state"], two["attempt_count"], two["replay_count"]) == ("parked", 11, 1)
    assert (two["terminal_status"], two["error_code"], two["claim_token"]) == (500, "http_500", None)
    assert (three["close_reason"], three["terminal_status"], three["attempt_count"]) == ("subscription_gone", 503, 10)
    assert [attempts(pg, each)[0]["outcome"] for each in ids] == ["accepted", "unavailable", "unavailable"]


def test_a_late_holder_changes_nothing(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    late, now = uuid4(), uuid4()
    claim(runtime, ids, late)
    pg.execute(LAPSE)
    replays.reap(runtime)
    claim(runtime, ids[:2], now)
    open_all(runtime, ids[:1], now)
    before = pg.execute("SELECT * FROM push_dlq ORDER BY dlq_id").fetchall()
    tried = pg.execute("SELECT * FROM push_dlq_attempt").fetchall()
    assert open_all(runtime, ids, late) == []
    assert accept(runtime, ids, late) == set()
    assert park_again(runtime, ids, late) == set()
    with runtime.db.transaction() as tx:
        assert replaying.release(tx, late, ids, {ids[0]: 11}) == 0
    assert pg.execute("SELECT * FROM push_dlq ORDER BY dlq_id").fetchall() == before
    assert pg.execute("SELECT * FROM push_dlq_attempt").fetchall() == tried


def test_what_is_given_back_is_as_it_was(runtime: Runtime, pg: Pg, ids: list[UUID]) -> None:
    before = [letter(pg, each) for each in ids]
    token = uuid4()
    claim(runtime, ids, token)
    opened = {each.dlq_id: each.attempt for each in open_all(runtime, ids[:2], token)}
    with runtime.db.transaction() as tx:
        assert replaying.release(tx, token, ids, opened) == 3
    assert [letter(pg, each) for each in ids] == before
    assert pg.execute("SELECT count(*) FROM push_dlq_attempt").fetchone() == (0,)


def test_an_expired_lease_without_an_attempt_gives_the_letter_back_unchanged(
    runtime: Runtime, pg: Pg, ids: list[UUID]
) -> None:
    before = [letter(pg, each) for each in ids]
    claim(runtime, ids, uuid4())
    assert replays.reap(runtime) == []
    pg.execute(LAPSE)
    assert {each.opened for each in replays.reap(runtime)} == {False}
    assert [letter(pg, each) for each in ids] == before


def test_an_expired_lease_with_an_attempt_is_in_doubt_and_the_run_says_so(
    runtime: Runtime, pg: Pg, ids: list[UUID], recorded: Recorded
) -> None:
    run_id, token = drain(runtime, campaign="none").run.run_id, uuid4()
    change(pg, ids[1:], on_in_doubt="'resend'")
    change(pg, ids[2:], replay_count="4")
    claim(runtime, ids, token, run_id)
    open_all(runtime, ids, token)
    pg.execute(LAPSE)
    assert len(replays.reap(runtime)) == 3
    one, two, three = (letter(pg, each) for each in ids)
    assert (one["replay_state"], one["close_reason"], one["in_doubt"]) == ("discarded", "in_doubt", True)
    assert one["closed_by"] == f"run:{run_id}"
    assert (two["replay_state"], two["replay_count"], two["attempt_count"]) == ("parked", 1, 11)
    waits = pg.execute("SELECT next_replay_at > now() FROM push_dlq WHERE dlq_id = %s", [ids[1]]).fetchone()
    assert waits == (True,)
    assert (three["replay_state"], three["close_reason"]) == ("discarded", "replay_exhausted")
    assert [attempts(pg, each)[0]["outcome"] for each in ids] == ["in_doubt"] * 3
    outcomes = pg.execute("SELECT outcomes FROM sweep_run WHERE run_id = %s", [run_id]).fetchone()
    assert outcomes == ({"in_doubt": 3},)
    told = [fields for _, name, fields in recorded if name == "replay.claims_expired"]
    assert told == [{"rows": 3, "in_doubt": 3}]


def test_the_reaper_sees_what_was_opened_while_it_looked(runtime: Runtime, ids: list[UUID]) -> None:
    """It locks what ran out before it asks for attempts: whoever is just opening holds the lock, and is left alone."""
    token = uuid4()
    claim(runtime, ids, token)
    with runtime.db.transaction() as tx:
        opening(tx, ids, token)
        tx.run("UPDATE {schema}.push_dlq SET claimed_until = now() - interval '1 second'", {})
        assert replays.reap(runtime) == []
    assert {each.opened for each in replays.reap(runtime)} == {True}


def test_who_reopens_what_the_reaper_takes_waits_and_finds_nothing(
    runtime: Runtime, pg: Pg, ids: list[UUID], database_url: str
) -> None:
    token = uuid4()
    claim(runtime, ids, token)
    with psycopg.connect(database_url, options="-c search_path=pushops") as reaper:
        reaper.execute("SELECT FROM push_dlq FOR UPDATE")
        with runtime.db.borrowed() as own:
            pid = own.info.backend_pid

            def late() -> list[Opened]:
                with runtime.db.transaction(on=own, lock_timeout=timedelta(seconds=20)) as tx:
                    return opening(tx, ids, token)

            with in_background(late) as opened:
                wait_blocked(pg, pid)
                reaper.execute("UPDATE push_dlq SET replay_state = 'parked', claim_token = NULL, claimed_until = NULL")
                reaper.commit()
            assert opened.result() == []
    assert pg.execute("SELECT count(*) FROM push_dlq_attempt").fetchone() == (0,)
