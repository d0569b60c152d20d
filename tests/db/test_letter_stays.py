"""What a letter is about never changes, whatever is done to it in whatever order; and what is closed stays closed."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from psycopg.rows import dict_row

from pushops.deadletters import writer
from pushops.deadletters.discarding import discard
from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import ErrorClass, Letter
from pushops.deadletters.replay.reaping import reap
from pushops.deadletters.store import gates, replaying
from pushops.deadletters.store.replaying import Sifted
from pushops.retention.policies import CLOSE_DEAD_LETTERS, PURGE_DEAD_LETTERS
from pushops.runtime import Runtime
from tests.letters import park_letter
from tests.sending import Pg
from tests.sweepdb import drive

FIXED: Final = (
    "dlq_id", "message_id", "subscription_id", "endpoint_hash", "first_attempt_at", "original_ttl", "expires_at",
    "replay_key", "parked_at",
)  # fmt: skip
CLOSED: Final = ("replayed", "discarded")
RECIPIENTS: Final = [(uuid4(), uuid4()) for _ in range(4)]
MINUTE: Final = timedelta(minutes=1)

which = st.integers(0, len(RECIPIENTS) - 1)
offsets = st.sampled_from([-MINUTE, timedelta(seconds=30), timedelta(hours=1), timedelta(days=7)])


def letter(n: int, expires: timedelta, attempts: int, at: datetime, *, poison: bool) -> Letter:
    message, subscription = RECIPIENTS[n]
    return Letter(
        message_id=message,
        subscription_id=subscription,
        endpoint_hash=subscription.bytes * 2,
        endpoint_host="fcm.googleapis.com",
        push_service="fcm",
        owner=None,
        owner_no=1,
        campaign_id="spring",
        payload_ref=None,
        attempt_count=attempts,
        first_attempt_at=at - attempts * MINUTE,
        last_attempt_at=at + attempts * MINUTE,
        terminal_status=None,
        error_class=ErrorClass.POISON if poison else ErrorClass.EXHAUSTED,
        error_code="unavailable",
        error_snippet="x" * attempts,
        original_ttl=60 * attempts,
        expires_at=at + expires,
        replayable=attempts % 2 == 0,
        on_in_doubt="resend" if attempts % 3 else "discard",
        in_doubt=False,
    )


class Life(RuleBasedStateMachine):
    """Letters under everything that is ever done to them, each verb as the product calls it."""

    rt: Runtime
    pg: Pg

    def __init__(self) -> None:
        super().__init__()
        self.pg.execute("TRUNCATE push_dlq, push_dlq_attempt")
        self.token = uuid4()
        self.fixed: dict[UUID, dict[str, Any]] = {}
        self.ends: dict[UUID, dict[str, Any]] = {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        with self.pg.cursor(row_factory=dict_row) as cursor:
            return cursor.execute("SELECT * FROM push_dlq ORDER BY dlq_id").fetchall()

    @property
    def mine(self) -> list[UUID]:
        return [row["dlq_id"] for row in self.rows if row["claim_token"] == self.token]

    @rule(n=which, expires=offsets, attempts=st.integers(1, 12), poison=st.booleans())
    def park(self, n: int, expires: timedelta, attempts: int, poison: bool) -> None:
        """The first time, or again: from the spool, or since its row of the ledger was opened once more."""
        writer.write(self.rt, [letter(n, expires, attempts, datetime.now(UTC), poison=poison)])

    @rule(renewed=st.booleans())
    def claim(self, renewed: bool) -> None:
        if renewed:
            self.token = uuid4()
        ids = [row["dlq_id"] for row in self.rows]
        with self.rt.db.transaction() as tx:
            replaying.claim(tx, ids, token=self.token, lease=5 * MINUTE, run_id=uuid4())

    @rule()
    def release(self) -> None:
        with self.rt.db.transaction() as tx:
            replaying.release(tx, self.token, self.mine, {})

    @rule()
    def judge(self) -> None:
        """The gates, at the moment of sending: nobody is there to send to."""
        with self.rt.db.transaction() as tx:
            values = {"token": self.token, "lease": 5 * MINUTE, "by": "run:x", "run_id": None, "why": None}
            tx.rows(replaying.OPEN, values | {"ids": self.mine} | dict(gates.params(["test"])), dict)

    @rule()
    def sift(self) -> None:
        with self.rt.db.transaction() as tx:
            known = gates.params(["test"])
            found = replaying.sift(tx, "replay_state = 'parked'", {}, known, by="run:x", run_id=None)
            assert all(isinstance(one, Sifted) for one in found)

    @rule(spends=st.booleans(), wait=st.sampled_from([timedelta(), timedelta(hours=2)]), ends=st.booleans())
    def settle(self, spends: bool, wait: timedelta, ends: bool) -> None:
        """One that was not taken: parked again, or closed at the cap."""
        for dlq_id in self.mine[:1]:
            self._settle(dlq_id, spends=spends, wait=wait, ends=ends)

    @rule()
    def take(self) -> None:
        with self.rt.db.transaction() as tx:
            replaying.settle_accepted(tx, self.token, self.mine[:1], [99], [201], by="run:x", reason="replayed")

    @rule(opened=st.booleans())
    def die(self, opened: bool) -> None:
        """Its worker is gone, before its request or in the middle of it."""
        if opened:
            self.pg.execute(
                """INSERT INTO push_dlq_attempt (replay_key, attempt, kind)
                   SELECT replay_key, 50 + replay_count, 'replay' FROM push_dlq WHERE replay_state = 'claimed'
                       ON CONFLICT DO NOTHING"""
            )
        self.pg.execute("UPDATE push_dlq SET claimed_until = now() - interval '1 s' WHERE replay_state = 'claimed'")
        reap(self.rt)

    @rule()
    def close(self) -> None:
        drive(self.rt, CLOSE_DEAD_LETTERS)

    @rule()
    def purge(self) -> None:
        drive(self.rt, PURGE_DEAD_LETTERS)

    @rule(poison=st.booleans())
    def discard(self, poison: bool) -> None:
        which = ErrorClass.POISON if poison else ErrorClass.EXHAUSTED
        discard(self.rt, Filter(error_class=which), reason="old news", actor="me", dry_run=False)

    @precondition(lambda self: self.rows)
    @rule(column=st.sampled_from(["expires_at", "first_attempt_at", "parked_at"]))
    def meddle(self, column: str) -> None:
        """Whoever writes SQL of their own."""
        with pytest.raises(psycopg.errors.CheckViolation):
            self.pg.execute(f"UPDATE push_dlq SET {column} = {column} + interval '1 hour'".encode())

    @invariant()
    def nothing_fixed_has_moved(self) -> None:
        rows = {row["dlq_id"]: row for row in self.rows}
        assert self.fixed.keys() <= rows.keys()
        for dlq_id, row in rows.items():
            now = {name: row[name] for name in FIXED}
            assert self.fixed.setdefault(dlq_id, now) == now
        assert len({row["replay_key"] for row in rows.values()}) == len(rows) <= len(RECIPIENTS)

    @invariant()
    def what_is_closed_stays_as_it_was_closed(self) -> None:
        for row in self.rows:
            if row["replay_state"] in CLOSED:
                assert self.ends.setdefault(row["dlq_id"], row) == row
            else:
                assert row["dlq_id"] not in self.ends

    def _settle(self, dlq_id: UUID, *, spends: bool, wait: timedelta, ends: bool) -> None:
        row = {
            "dlq_id": str(dlq_id),
            "attempt": 98,
            "outcome": "unavailable",
            "status": 503,
            "code": "unavailable",
            "snippet": "busy",
            "state": "discarded" if ends else "parked",
            "close_reason": "replay_exhausted" if ends else None,
            "poison": False,
            "spends": spends,
            "in_doubt": False,
            "of_letter": spends,
            "next_replay_at": (datetime.now(UTC) + wait).isoformat(),
        }
        with self.rt.db.transaction() as tx:
            replaying.settle(tx, self.token, [row], by="run:x")


def test_no_order_of_verbs_makes_a_letter_younger_or_opens_one_that_is_closed(runtime: Runtime, pg: Pg) -> None:
    life = type("LifeHere", (Life,), {"rt": runtime, "pg": pg})
    run_state_machine_as_test(life, settings=limits(max_examples=15, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize(
    "change",
    [
        "expires_at = expires_at + interval '1 second'",
        "expires_at = expires_at - interval '1 second'",
        "first_attempt_at = NULL",
        "original_ttl = original_ttl + 1",
        "parked_at = now()",
        "message_id = subscription_id",
        "replay_key = gen_random_uuid()",
    ],
)
@pytest.mark.parametrize("state", ["parked", "discarded"])
def test_the_table_itself_refuses_to_make_a_letter_another(change: str, state: str, pg: Pg) -> None:
    park_letter(pg, parked_at="now() - interval '1 hour'")
    if state == "discarded":
        pg.execute(
            "UPDATE push_dlq SET replay_state = 'discarded', close_reason = 'x', closed_by = 'x', closed_at = now()"
        )
    with pytest.raises(psycopg.errors.CheckViolation, match="TTL and expiry of push_dlq"):
        pg.execute(f"UPDATE push_dlq SET {change}".encode())


def test_the_expiry_of_a_message_is_set_once(pg: Pg) -> None:
    pg.execute("INSERT INTO push_message (ttl) VALUES (60)")
    pg.execute("UPDATE push_message SET first_dispatched_at = now(), expires_at = now() + interval '1 minute'")
    pg.execute("UPDATE push_message SET expires_at = expires_at, ttl = ttl")
    for value in ("now() + interval '1 day'", "now()", "NULL"):
        with pytest.raises(psycopg.errors.CheckViolation, match="expiry of push_message"):
            pg.execute(f"UPDATE push_message SET expires_at = {value}".encode())
