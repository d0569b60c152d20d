"""Rows about one user, store by store, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import UUID

from pushops.db import Tx

FIRST: Final = UUID(int=0)
MESSAGES: Final = 2_000

SUBSCRIPTIONS: Final[LiteralString] = """
SELECT id::text AS place, to_jsonb(s) - '{p256dh,auth_sealed,auth_key_version,endpoint_hash}'::text[] AS data
  FROM {schema}.push_subscription AS s
 WHERE (user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL)
   AND id::text > %(after)s::text ORDER BY id::text LIMIT %(limit)s::integer"""
PERIODS: Final[LiteralString] = """
SELECT period_id::text AS place, to_jsonb(p) - 'endpoint_hash' AS data FROM {schema}.subscription_period AS p
 WHERE user_id = %(user)s::text AND period_id::text > %(after)s::text
 ORDER BY period_id::text LIMIT %(limit)s::integer"""
AUDIT: Final[LiteralString] = """
SELECT audit_id::text AS place, to_jsonb(a) - 'endpoint_hash' AS data FROM {schema}.audit AS a
 WHERE user_id = %(user)s::text AND audit_id::text > %(after)s::text
 ORDER BY audit_id::text LIMIT %(limit)s::integer"""
LETTERS: Final[LiteralString] = """
SELECT dlq_id::text AS place,
       to_jsonb(d) - '{endpoint_hash,payload_ref,claim_token,replay_key}'::text[]
       || jsonb_build_object('attempts', coalesce((SELECT jsonb_agg(to_jsonb(t) - 'replay_key' ORDER BY t.attempt)
                             FROM {schema}.push_dlq_attempt AS t WHERE t.replay_key = d.replay_key), '[]')) AS data
  FROM {schema}.push_dlq AS d
 WHERE owner = %(user)s::text AND dlq_id::text > %(after)s::text
 ORDER BY dlq_id::text LIMIT %(limit)s::integer"""
TO_USER: Final[LiteralString] = """
SELECT message_id::text AS place,
       to_jsonb(m) - '{payload_ref,payload_key_version,request_hash,cursor,finish_cursor}'::text[] AS data
  FROM {schema}.push_message AS m
 WHERE to_user = %(user)s::text AND message_id::text > %(after)s::text
 ORDER BY message_id::text LIMIT %(limit)s::integer"""
EVIDENCE: Final[LiteralString] = """
SELECT e.evidence_id::text AS place, to_jsonb(e) - 'endpoint_hash' AS data
  FROM {schema}.push_evidence AS e
 WHERE e.endpoint_hash IN (
   SELECT endpoint_hash FROM {schema}.push_subscription
    WHERE user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL)
   AND e.evidence_id::text > %(after)s::text ORDER BY e.evidence_id::text LIMIT %(limit)s::integer"""
STAGED: Final[LiteralString] = """
SELECT import_id::text || ' ' || lpad(ordinal::text, 12, '0') AS place,
       to_jsonb(g) - '{p256dh,auth_sealed,auth_key_version,endpoint_hash}'::text[] AS data
  FROM {schema}.import_staging AS g
 WHERE user_id = %(user)s::text AND import_id::text || ' ' || lpad(ordinal::text, 12, '0') > %(after)s::text
 ORDER BY 1 LIMIT %(limit)s::integer"""

EXPORTS: Final[Mapping[str, LiteralString]] = {
    "subscriptions": SUBSCRIPTIONS,
    "consent periods": PERIODS,
    "messages": TO_USER,
    "dead letters": LETTERS,
    "evidence": EVIDENCE,
    "audit": AUDIT,
    "import staging": STAGED,
}

LAST_MESSAGE: Final[LiteralString] = """
SELECT message_id FROM (
  SELECT message_id FROM {schema}.push_message WHERE message_id > %(after)s::uuid
   ORDER BY message_id LIMIT %(limit)s::integer) AS page
 ORDER BY message_id DESC LIMIT 1"""
# The ledger's key begins with the message; the trail says which endpoints a user ever had.
DISPATCHES: Final[LiteralString] = """
SELECT d.message_id::text AS place,
       to_jsonb(d) - '{endpoint_hash,claim_token,lane_id}'::text[] AS data
  FROM {schema}.push_message AS m
 CROSS JOIN (SELECT DISTINCT endpoint_hash FROM {schema}.subscription_period WHERE user_id = %(user)s::text) AS e
  JOIN {schema}.push_dispatch AS d ON d.message_id = m.message_id AND d.endpoint_hash = e.endpoint_hash
 WHERE m.message_id > %(after)s::uuid AND m.message_id <= %(last)s::uuid AND d.user_id = %(user)s::text
 ORDER BY d.message_id"""


@dataclass(frozen=True)
class Exported:
    place: str
    data: Mapping[str, Any]


def page(tx: Tx, statement: LiteralString, user: str, after: str, limit: int) -> list[Exported]:
    return tx.rows(statement, {"user": user, "after": after, "limit": limit}, Exported)


def last_message(tx: Tx, after: UUID) -> UUID | None:
    found: UUID | None = tx.scalar(LAST_MESSAGE, {"after": after, "limit": MESSAGES})
    return found


def dispatches(tx: Tx, user: str, after: UUID, last: UUID) -> list[Exported]:
    return tx.rows(DISPATCHES, {"user": user, "after": after, "last": last}, Exported)
