"""The campaign's own SQL: registering in bulk, letting time pass, and looking at what came of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.db.transaction import render

Written = tuple[object, ...]  # in the order of the columns of _COPY

ORIGIN: Final = "https://campaign.example"  # theirs alone, so that they are told from everyone else in the table

_COPY: Final[LiteralString] = """
COPY {schema}.push_subscription
     (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, vapid_key_id, user_id, origin, tags,
      state, created_at, registered_at, last_seen_at)
FROM STDIN"""
OPEN_PERIODS: Final[LiteralString] = """
INSERT INTO {schema}.subscription_period (endpoint_hash, user_id, push_service, origin, began_at)
SELECT endpoint_hash, user_id, push_service, origin, created_at FROM {schema}.push_subscription
 WHERE origin = %(origin)s::text"""
_ANALYZE: Final[LiteralString] = "ANALYZE {schema}.push_subscription"

# Four weeks in which three answers of a hundred said dead: what the guard calls usual is the median of their days.
HISTORY: Final[LiteralString] = """
INSERT INTO {schema}.push_answer (push_service, minute, attempts, answers, terminal, accepted)
SELECT service, date_bin('1 day', now() - make_interval(days => day), timestamptz '2000-01-01 00:00:00+00'),
       10000, 10000, 300, 9700
  FROM unnest(%(services)s::text[]) AS service, generate_series(8, 35) AS day"""

# Tests and demos age the rows, not the clock: all that the guard and the votes look at happened that much earlier.
AGE_ANSWERS: Final[LiteralString] = """
UPDATE {schema}.push_answer SET minute = minute - %(by)s::interval WHERE minute > now() - interval '1 hour'"""
AGE_EVIDENCE: Final[LiteralString] = """
UPDATE {schema}.push_evidence SET at = at - %(by)s::interval, started_at = started_at - %(by)s::interval"""
AGE_ROWS: Final[LiteralString] = """
UPDATE {schema}.push_subscription
   SET state_since = state_since - %(by)s::interval, last_success_at = last_success_at - %(by)s::interval,
       last_tried_at = last_tried_at - %(by)s::interval, first_vote_at = first_vote_at - %(by)s::interval,
       last_vote_at = last_vote_at - %(by)s::interval, revoked_at = revoked_at - %(by)s::interval,
       deleted_at = deleted_at - %(by)s::interval
 WHERE origin = %(origin)s::text"""

PROGRESS: Final[LiteralString] = """
SELECT count(*) AS recipients, count(*) FILTER (WHERE d.state = 'ended') AS ended,
       count(*) FILTER (WHERE d.outcome = 'accepted') AS accepted,
       count(*) FILTER (WHERE d.state = 'claimed') AS claimed,
       count(*) FILTER (WHERE d.state <> 'ended' AND d.wait IS NOT NULL) AS waiting,
       coalesce(bool_and(m.fanned_out_at IS NOT NULL), false) AS complete
  FROM {schema}.push_message AS m JOIN {schema}.push_dispatch AS d USING (message_id)
 WHERE m.message_id = %(message)s::uuid"""
LEDGER: Final[LiteralString] = """
SELECT endpoint_hash, coalesce(outcome, state) AS outcome, ambiguous FROM {schema}.push_dispatch
 WHERE message_id = %(message)s::uuid"""
ROWS: Final[LiteralString] = """
SELECT endpoint_hash, state, votes,
       deleted_at IS NULL AND send_block IS NULL AND state IN ('pending', 'active')
       AND num_nulls(endpoint, p256dh, auth_sealed, auth_key_version) = 0 AS live
  FROM {schema}.push_subscription WHERE origin = %(origin)s::text"""
# Of the last hour. ``turned_back``: what the guard took back, and nothing that it only kept.
EVIDENCE: Final[LiteralString] = """
SELECT endpoint_hash, finding FROM {schema}.push_evidence
 WHERE at > now() - interval '1 hour' AND state = %(state)s::text
   AND (NOT %(turned_back)s::boolean OR outcome = 'turned_back')"""
GUARDS: Final[LiteralString] = """
SELECT push_service, turned_back, verdict, settled_at IS NOT NULL AS settled FROM {schema}.push_guard
 ORDER BY guard_id"""


@dataclass(frozen=True)
class Progress:
    recipients: int
    ended: int
    accepted: int
    claimed: int
    waiting: int
    complete: bool

    @property
    def done(self) -> bool:
        return self.complete and self.ended == self.recipients


@dataclass(frozen=True)
class Entry:
    """A line of the ledger; ``outcome`` is its state where it has not ended."""

    endpoint_hash: bytes
    outcome: str
    ambiguous: int


@dataclass(frozen=True)
class Row:
    endpoint_hash: bytes
    state: str
    votes: int
    live: bool


@dataclass(frozen=True)
class Evidence:
    endpoint_hash: bytes
    finding: str


@dataclass(frozen=True)
class Guard:
    push_service: str
    turned_back: bool
    verdict: str | None
    settled: bool


def copy_in(tx: Tx, rows: Iterable[Written]) -> None:
    with tx.conn.cursor() as cursor, cursor.copy(render(_COPY, tx.schema)) as copy:
        for row in rows:
            copy.write_row(row)


def open_periods(tx: Tx) -> int:
    return tx.run(OPEN_PERIODS, {"origin": ORIGIN})


def analyze(tx: Tx) -> None:
    tx.run(_ANALYZE, {})


def write_history(tx: Tx, services: Sequence[str]) -> None:
    tx.run(HISTORY, {"services": list(services)})


def age(tx: Tx, by: timedelta) -> None:
    tx.run(AGE_ANSWERS, {"by": by})
    tx.run(AGE_EVIDENCE, {"by": by})
    tx.run(AGE_ROWS, {"by": by, "origin": ORIGIN})


def progress(tx: Tx, message: UUID) -> Progress:
    return tx.one(PROGRESS, {"message": message}, Progress)


def ledger(tx: Tx, message: UUID) -> list[Entry]:
    return tx.rows(LEDGER, {"message": message}, Entry)


def rows(tx: Tx) -> list[Row]:
    return tx.rows(ROWS, {"origin": ORIGIN}, Row)


def evidence(tx: Tx, state: str, *, turned_back: bool) -> list[Evidence]:
    return tx.rows(EVIDENCE, {"state": state, "turned_back": turned_back}, Evidence)


def guards(tx: Tx) -> list[Guard]:
    return tx.rows(GUARDS, {}, Guard)
