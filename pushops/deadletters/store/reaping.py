"""Letters whose leases ran out: their holders are gone."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

# Leases that ran out, locked first: the statement after this one sees every attempt that their holders opened.
EXPIRED: Final[LiteralString] = """
SELECT dlq_id FROM {schema}.push_dlq
 WHERE replay_state = 'claimed' AND claimed_until < clock_timestamp()
 ORDER BY claimed_until LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED"""

# Where an attempt is open nobody knows whether it was taken: the letter ends, or, where the message says that it may be
# sent twice, waits like one that failed. Without one nothing was sent.
REAP: Final[LiteralString] = """
WITH lost AS MATERIALIZED (
  SELECT d.dlq_id, d.replay_key, d.run_id, o.opened,
         o.opened AND d.on_in_doubt <> 'resend' AS ends,
         o.opened AND d.on_in_doubt = 'resend' AND d.replay_count + 1 >= %(most)s::integer AS spent
    FROM {schema}.push_dlq AS d
   CROSS JOIN LATERAL (SELECT EXISTS (
           SELECT FROM {schema}.push_dlq_attempt AS a
            WHERE a.replay_key = d.replay_key AND a.kind = 'replay' AND a.settled_at IS NULL) AS opened) AS o
   WHERE d.dlq_id = ANY (%(ids)s::uuid[])),
said AS (
  UPDATE {schema}.push_dlq_attempt AS a SET settled_at = now(), outcome = 'in_doubt', code = 'lease_expired'
    FROM lost AS l WHERE a.replay_key = l.replay_key AND a.kind = 'replay' AND a.settled_at IS NULL)
UPDATE {schema}.push_dlq AS d
   SET replay_state = CASE WHEN l.ends OR l.spent THEN 'discarded' ELSE 'parked' END,
       close_reason = CASE WHEN l.ends THEN 'in_doubt' WHEN l.spent THEN 'replay_exhausted' END,
       closed_by = CASE WHEN l.ends OR l.spent THEN coalesce('run:' || d.run_id, 'reap-claims') END,
       closed_at = CASE WHEN l.ends OR l.spent THEN now() END,
       claim_token = NULL, claimed_until = NULL, in_doubt = d.in_doubt OR l.opened,
       attempt_count = d.attempt_count + l.opened::integer, replay_count = d.replay_count + l.opened::integer,
       next_replay_at = CASE WHEN l.opened
                             THEN now() + least(%(base)s::interval * power(2, least(d.replay_count, 30)),
                                                %(cap)s::interval)
                             ELSE d.next_replay_at END
  FROM lost AS l WHERE d.dlq_id = l.dlq_id
RETURNING d.dlq_id, l.run_id, l.opened"""


@dataclass(frozen=True, slots=True)
class Reaped:
    """``opened``: its worker may have sent it."""

    dlq_id: UUID
    run_id: UUID | None
    opened: bool


def expired(tx: Tx, limit: int) -> list[UUID]:
    return tx.scalars(EXPIRED, {"limit": limit})


def reap(tx: Tx, ids: Collection[UUID], *, most: int, base: timedelta, cap: timedelta) -> list[Reaped]:
    """What becomes of letters whose holder is gone; the caller holds their locks since a statement before this."""
    return tx.rows(REAP, {"ids": list(ids), "most": most, "base": base, "cap": cap}, Reaped)
