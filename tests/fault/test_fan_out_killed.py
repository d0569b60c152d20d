"""Fan-out whose worker is killed in the middle of a page, and messages that come many times: each recipient once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import pushops
from pushops.settings import Settings
from tests.sending import Pg, ledger, make_live, message, send_to
from tests.sweeping import count, publishing, quick, wait_until, workers

pytestmark = pytest.mark.long

# The row of one recipient waits inside the worker's transaction for whoever holds the lock.
GATE: Final = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE INSERT ON push_dispatch FOR EACH ROW WHEN (NEW.user_id = 'gated') EXECUTE FUNCTION gate()"""
WAITING: Final = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@contextmanager
def gate(pg: Pg) -> Iterator[None]:
    pg.execute(GATE)
    pg.execute("SELECT pg_advisory_lock(42)")
    try:
        yield
    finally:
        pg.execute("SELECT pg_advisory_unlock(42)")


@pytest.fixture
def hurried(settings: Settings, valkey_url: str) -> Settings:
    return quick(settings, valkey_url)


def recipients(pg: Pg, message_id: Any) -> list[Any]:
    return sorted(row["subscription_id"] for row in ledger(pg, message_id))


def through(pg: Pg, message_id: Any) -> bool:
    return message(pg, message_id)["fanned_out_at"] is not None


def test_a_page_whose_worker_was_killed_is_written_by_the_next(hurried: Settings, pg: Pg) -> None:
    ids = make_live(pg, 60) + make_live(pg, 60, user="gated")
    with pushops.open(hurried) as ops:
        with gate(pg), workers(hurried, 1, pool="solo") as victim:
            made = ops.send(b"x", everyone=True)
            wait_until(lambda: count(pg, WAITING) > 0, expected=victim.tail)
            victim.kill()
        before = recipients(pg, made.message_id)
        assert len(before) < len(ids)
        with publishing(hurried), workers(hurried, 1) as crew:
            tend(pg, made.message_id, crew)
    assert recipients(pg, made.message_id) == sorted(ids)
    assert message(pg, made.message_id)["recipients"] == len(ids)


def tend(pg: Pg, message_id: Any, crew: Any) -> None:
    """Beat's look, which finds what no doorbell rings for any more."""
    from pushops.tasks import tend_messages

    def tended() -> bool:
        tend_messages.apply_async()
        return through(pg, message_id)

    wait_until(tended, expected=crew.tail, poll=0.2)


def test_a_message_that_is_rung_for_twenty_times_reaches_each_recipient_once(hurried: Settings, pg: Pg) -> None:
    from pushops.tasks import fan_out

    ids = make_live(pg, 1_000)
    with pushops.open(hurried) as ops, publishing(hurried):
        made = send_to(ops.runtime)
        for _ in range(20):
            fan_out.apply_async([str(made.message_id)])
        with workers(hurried, 4) as crew:
            wait_until(lambda: through(pg, made.message_id), expected=crew.tail)
            wait_until(lambda: len(crew.events("message.fanned_out")) >= 20, expected=crew.tail)
    assert recipients(pg, made.message_id) == sorted(ids)
    assert message(pg, made.message_id)["recipients"] == len(ids)


def test_an_id_that_is_none_is_counted_and_left(hurried: Settings) -> None:
    from pushops.tasks import fan_out

    with publishing(hurried), workers(hurried, 1) as crew:
        fan_out.apply_async(["nonsense"])
        crew.wait_for_event("message.unknown_id", task="fan_out", reason="malformed id")
        fan_out.apply_async(["01890a5d-ac96-774b-bcce-b302099a8057"])
        crew.wait_for_event("message.fanned_out", outcome="nothing")
