"""A heartbeat's two statements."""

from dataclasses import dataclass
from typing import Final, LiteralString

from pushops.db import Tx
from pushops.subscriptions.lifecycle import Event, State, moves

LOOK: Final[LiteralString] = """
SELECT endpoint_hash, user_id, state, send_block, vapid_key_id, end_reason, deleted_at IS NOT NULL AS ended,
       coalesce(expiration_time <= now(), false) AS expired
  FROM {schema}.push_subscription WHERE endpoint_hash = %(hash)s::bytea"""

SEEN: Final[LiteralString] = """
UPDATE {schema}.push_subscription
   SET last_seen_at = greatest(last_seen_at, now()),
       previous_state = CASE WHEN state = 'stale' THEN state ELSE previous_state END,
       state_since = CASE WHEN state = 'stale' THEN now() ELSE state_since END,
       state = CASE WHEN last_success_at IS NULL
                    THEN (%(otherwise)s::text[])[array_position(%(sources)s::text[], state)]
                    ELSE (%(targets)s::text[])[array_position(%(sources)s::text[], state)] END
 WHERE endpoint_hash = %(hash)s::bytea AND state = ANY(%(sources)s::text[]) AND deleted_at IS NULL
RETURNING endpoint_hash, user_id, state, send_block, vapid_key_id, end_reason, false AS ended,
          coalesce(expiration_time <= now(), false) AS expired"""


@dataclass(frozen=True)
class Contact:
    endpoint_hash: bytes
    user_id: str | None
    state: State
    send_block: str | None
    vapid_key_id: str | None
    end_reason: str | None
    ended: bool
    expired: bool


def look(tx: Tx, endpoint_hash: bytes) -> Contact | None:
    return tx.maybe(LOOK, {"hash": endpoint_hash}, Contact)


def seen(tx: Tx, endpoint_hash: bytes) -> Contact | None:
    """The row as it is after this sighting; None where there is none that can be seen."""
    return tx.maybe(SEEN, {"hash": endpoint_hash, **moves(Event.TOUCHED)}, Contact)
