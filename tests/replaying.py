"""What tests of replays share: messages that nobody could deliver, drains run in this process, letters looked at."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from pushops.deadletters import filters
from pushops.deadletters.replay.draining import DRAIN
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime
from pushops.sweeps.inline import run_inline
from pushops.sweeps.order import Order
from pushops.sweeps.store import RunRow
from tests.outgoing import Outgoing

Pg = psycopg.Connection[Any]

END: Final = """
UPDATE pushops.push_dispatch
   SET state = 'ended', outcome = 'exhausted', ended_at = now(), attempts = 10, first_attempt_at = now(),
       last_attempt_at = now(), status = 503, code = 'unavailable', claim_token = NULL, claimed_until = NULL
 WHERE message_id = ANY(%(messages)s)"""
PARK: Final = """
INSERT INTO pushops.push_dlq
       (message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no, campaign_id,
        payload_ref, attempt_count, first_attempt_at, last_attempt_at, terminal_status, error_class, error_code,
        original_ttl, expires_at, replayable, on_in_doubt, replay_key)
SELECT d.message_id, d.subscription_id, d.endpoint_hash, split_part(s.endpoint, '/', 3), s.push_service, d.user_id,
       d.owner_no, m.campaign_id, m.payload_ref, d.attempts, d.first_attempt_at, d.last_attempt_at, d.status,
       'retry_exhausted', d.code, m.ttl, d.expires_at, m.replayable, m.on_in_doubt,
       pushops.replay_key(d.message_id, d.subscription_id)
  FROM pushops.push_dispatch AS d JOIN pushops.push_message AS m USING (message_id)
  JOIN pushops.push_subscription AS s ON s.id = d.subscription_id
 WHERE d.message_id = ANY(%(messages)s) RETURNING dlq_id"""


def park(pg: Pg, *messages: UUID, **columns: str) -> list[UUID]:
    """Letters of all recipients of messages, as parking leaves them; columns are SQL expressions. Their ids."""
    pg.execute(END, {"messages": list(messages)})
    ids = sorted(row[0] for row in pg.execute(PARK, {"messages": list(messages)}).fetchall())
    if columns:
        change(pg, ids, **columns)
    return ids


def parked(out: Outgoing, pg: Pg, count: int = 1, vendor: str = "fcm", **request: Any) -> list[UUID]:
    """New browsers, each with a letter of one message that is theirs alone."""
    ids = subscription_ids(pg, out.register(pg, vendor, count) if count > 20 else out.subscribe(vendor, count))
    return park(pg, out.send(ids=ids, **request))


def subscription_ids(pg: Pg, endpoints: list[str]) -> list[UUID]:
    query = "SELECT id FROM pushops.push_subscription WHERE endpoint = ANY(%s)"
    return [row[0] for row in pg.execute(query, [endpoints]).fetchall()]


def change(pg: Pg, ids: list[UUID], **columns: str) -> None:
    """Set columns of letters to SQL expressions, also those that are fixed: tests age rows, not the clock."""
    sets = ", ".join(f"{name} = {value}" for name, value in columns.items())
    with pg.transaction():
        pg.execute("SET LOCAL session_replication_role = replica")
        pg.execute(f"UPDATE pushops.push_dlq SET {sets} WHERE dlq_id = ANY(%s)".encode(), [ids])


def age_messages(pg: Pg, by: str) -> None:
    """Let all messages be made, and expire, so much earlier, with their rows in the ledger and their letters."""
    with pg.transaction():
        pg.execute("SET LOCAL session_replication_role = replica")
        for table, columns in AGED.items():
            moves = ", ".join(f"{name} = {name} - interval '{by}'" for name in columns)
            pg.execute(f"UPDATE pushops.{table} SET {moves}".encode())


AGED: Final = {
    "push_message": ("created_at", "first_dispatched_at", "expires_at"),
    "push_dispatch": ("expires_at",),
    "push_dlq": ("parked_at", "first_attempt_at", "last_attempt_at", "expires_at"),
}


@dataclass(frozen=True)
class Drained:
    """A run as it ended."""

    run: RunRow

    @property
    def state(self) -> str:
        return self.run.state

    @property
    def outcomes(self) -> Mapping[str, int]:
        return {name: rows for name, rows in self.run.outcomes.items() if rows}


def drain(rt: Runtime, limit: int | None = None, options: Mapping[str, Any] | None = None, **words: str) -> Drained:
    """Drain in this process until the run has its end; without ``options`` as fast as one can, without words all but
    poison.
    """
    words = words or {"error_class": "retry_exhausted"}
    fast = {"rate": 100_000.0, "ramp": 0.001}
    order = Order(
        "test", filter=filters.parse(words).key(), options=fast if options is None else options, row_limit=limit
    )
    return Drained(run_inline(rt, SWEEPS, DRAIN, order, lambda _run, _done: None))


def states(pg: Pg) -> Counter[Any]:
    """How many letters are in which state, and closed why."""
    return Counter(pg.execute("SELECT replay_state, close_reason FROM pushops.push_dlq").fetchall())


def attempts(pg: Pg, dlq_id: UUID) -> list[dict[str, Any]]:
    """The replays of a letter, oldest first."""
    with pg.cursor(row_factory=dict_row) as cursor:
        query = (
            "SELECT a.* FROM pushops.push_dlq_attempt AS a JOIN pushops.push_dlq AS d USING (replay_key)"
            " WHERE d.dlq_id = %s AND a.kind = 'replay' ORDER BY a.attempt"
        )
        return cursor.execute(query, [dlq_id]).fetchall()


def due(pg: Pg) -> None:
    """Let every letter's back-off be over."""
    pg.execute("UPDATE pushops.push_dlq SET next_replay_at = now() - interval '1 second' WHERE replay_state = 'parked'")


def as_json(found: object) -> str:
    return json.dumps(found, default=str)
