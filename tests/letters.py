"""Letters without a send: rows put straight into the table, for tests of what becomes of them."""

from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

Conn = psycopg.Connection[Any]

# What a letter is unless its test says otherwise: SQL expressions. It may be replayed for an hour.
PARKED: Final = {
    "message_id": "pushops.new_id()",
    "subscription_id": "pushops.new_id()",
    "endpoint_hash": "sha256(uuid_send(gen_random_uuid()))",
    "endpoint_host": "'fcm.googleapis.com'",
    "push_service": "'fcm'",
    "owner_no": "1",
    "campaign_id": "'spring'",
    "attempt_count": "10",
    "first_attempt_at": "now() - interval '2 hours'",
    "last_attempt_at": "now()",
    "terminal_status": "503",
    "error_class": "'retry_exhausted'",
    "error_code": "'unavailable'",
    "error_snippet": "'Service Unavailable'",
    "original_ttl": "10800",
    "expires_at": "now() + interval '1 hour'",
    "replayable": "true",
    "on_in_doubt": "'discard'",
}
CLAIMED: Final = {
    "replay_state": "'claimed'",
    "claim_token": "gen_random_uuid()",
    "claimed_until": "now() + interval '5 minutes'",
}
CLOSED: Final = {
    "replay_state": "'discarded'",
    "close_reason": "'ttl_expired'",
    "closed_by": "'close-dead-letters'",
    "closed_at": "now()",
}


def park_letter(conn: Conn, **columns: str) -> UUID:
    """One letter; columns are SQL expressions. Its id."""
    (only,) = park_letters(conn, 1, **columns)
    return only


def park_letters(conn: Conn, count: int, **columns: str) -> list[UUID]:
    """So many letters; columns are SQL expressions in which ``n`` counts from 1. Their ids, in order."""
    values = {"dlq_id": "pushops.new_id()"} | PARKED | columns
    query = (
        f"INSERT INTO pushops.push_dlq (replay_key, {', '.join(values)})"
        " SELECT pushops.replay_key(message_id, subscription_id), made.* FROM ("
        f"SELECT {', '.join(f'{value} AS {name}' for name, value in values.items())}"
        f" FROM generate_series(1, {count}) AS n OFFSET 0) AS made RETURNING dlq_id"
    )
    return sorted(row[0] for row in conn.execute(query.encode()).fetchall())


def letter(conn: Conn, dlq_id: UUID) -> dict[str, Any]:
    """The row of a letter."""
    with conn.cursor(row_factory=dict_row) as cursor:
        (found,) = cursor.execute("SELECT * FROM pushops.push_dlq WHERE dlq_id = %s", [dlq_id]).fetchall()
        return found
