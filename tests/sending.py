"""What tests of sending share: live subscriptions in bulk, messages, and looking at the ledger."""

import secrets
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from pushops.delivery import fanning, sending
from pushops.delivery.fanning import Fanned, FanOut
from pushops.delivery.sending import Sent
from pushops.runtime import Runtime

Pg = psycopg.Connection[Any]

HOSTS: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    "web.push.apple.com",
    "wns2-by3p.notify.windows.com",
)
SERVICES: Final = ("fcm", "mozilla", "apple", "wns")

# One statement whatever the number; hosts and services take turns.
MAKE_LIVE: Final = """
INSERT INTO push_subscription
       (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, vapid_key_id, user_id, origin,
        state, state_since, created_at, registered_at, last_seen_at, last_success_at, last_tried_at, tags, locale,
        send_block)
SELECT sha256(convert_to(endpoint, 'UTF8')), endpoint, (%(services)s::text[])[which], repeat('B', 87),
       decode(repeat('00', 44), 'hex'), 1, %(key)s, %(user)s, %(origin)s, %(state)s, began, began, began, began,
       CASE WHEN %(state)s <> 'pending' THEN began END, %(tried)s, %(tags)s::text[], %(locale)s, %(block)s
  FROM (SELECT 'https://' || (%(hosts)s::text[])[which] || '/push/' || %(salt)s || '-' || n AS endpoint, which,
               now() - interval '20 days' AS began
          FROM (SELECT n, 1 + n %% cardinality(%(hosts)s::text[]) AS which
                  FROM generate_series(0, %(count)s - 1) AS n) AS numbered) AS rows
RETURNING id"""


def make_live(  # every column that fan-out looks at
    pg: Pg,
    count: int,
    *,
    hosts: tuple[str, ...] = HOSTS,
    services: tuple[str, ...] = SERVICES,
    state: str = "active",
    user: str | None = None,
    origin: str | None = None,
    locale: str | None = None,
    tags: tuple[str, ...] = (),
    key: str | None = "test",
    block: str | None = None,
    tried: Any = None,
) -> list[UUID]:
    """Insert rows that may be sent to (unless blocked); their credentials open nothing. Returns their ids."""
    values = {"salt": secrets.token_hex(8), "count": count, "hosts": list(hosts), "services": list(services)}
    columns = {"state": state, "user": user, "origin": origin, "locale": locale, "tags": list(tags), "key": key}
    found = pg.execute(MAKE_LIVE, values | columns | {"block": block, "tried": tried}).fetchall()
    return [row[0] for row in found]


def send_to(rt: Runtime, payload: Any = b"hello", **request: Any) -> Sent:
    """Send, to everyone unless an audience is named, and do not fan out."""
    named = {"user", "tags", "ids", "service", "origin", "locale", "key"} & request.keys()
    return sending.send(rt, payload, everyone=not named, actor="test", **request)


def fan_out(rt: Runtime, message_id: UUID) -> int:
    """Fan out to the end as the task does, slice by slice; rows written."""
    rows = 0
    while True:
        found: Fanned = fanning.fan_out(rt, message_id)
        rows += found.rows
        if found.outcome is not FanOut.MORE:
            assert found.outcome is FanOut.DONE, found
            return rows


def sent(rt: Runtime, **request: Any) -> UUID:
    """A message whose recipients all are in the ledger."""
    made = send_to(rt, **request)
    if made.state == "waiting":
        fan_out(rt, made.message_id)
    return made.message_id


def message(pg: Pg, message_id: UUID) -> Mapping[str, Any]:
    with pg.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("SELECT * FROM push_message WHERE message_id = %s", [message_id]).fetchone()
    assert row is not None
    return row


def ledger(pg: Pg, message_id: UUID) -> list[dict[str, Any]]:
    """A message's recipients in the order of their hashes."""
    with pg.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT * FROM push_dispatch WHERE message_id = %s ORDER BY endpoint_hash", [message_id]
        ).fetchall()
