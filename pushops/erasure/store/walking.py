"""The ledger, by the only key it has: messages in pages, and in each the rows of a few endpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx

NIL: Final = UUID(int=0)

PAGE: Final[LiteralString] = """
SELECT count(*)::integer AS messages, (array_agg(message_id ORDER BY message_id DESC))[1] AS last
  FROM (SELECT message_id FROM {schema}.push_message
         WHERE message_id > %(after)s::uuid ORDER BY message_id LIMIT %(limit)s::integer) AS page"""

# Of the request's own endpoints every row; of those that were theirs once, the ones that bear their name. A payload
# was for nobody else where every recipient's row is among these, and no more will come.
MATCH: Final[LiteralString] = """
SELECT d.message_id, d.endpoint_hash, d.state = 'claimed' AS claimed,
       CASE WHEN m.fanned_out_at IS NOT NULL
             AND m.recipients <= count(*) OVER (PARTITION BY d.message_id) THEN m.payload_ref END AS payload_ref
  FROM {schema}.push_message AS m
 CROSS JOIN unnest(%(hashes)s::bytea[], %(own)s::boolean[]) AS e (endpoint_hash, own)
  JOIN {schema}.push_dispatch AS d ON d.message_id = m.message_id AND d.endpoint_hash = e.endpoint_hash
 WHERE m.message_id > %(after)s::uuid AND m.message_id <= %(last)s::uuid
   AND (e.own OR d.user_id = %(user)s::text)"""

UNOWE: Final[LiteralString] = """
DELETE FROM {schema}.push_unparked AS u
 USING unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash)
 WHERE u.message_id = r.message_id AND u.endpoint_hash = r.endpoint_hash"""

# The row stays, since messages count by it; it is nobody's. What somebody has claimed is left until it is settled.
DISOWN: Final[LiteralString] = """
UPDATE {schema}.push_dispatch AS d
   SET endpoint_hash = sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
       subscription_id = %(nil)s::uuid, user_id = NULL, registration_no = NULL, history = NULL, snippet = NULL,
       state = 'ended', outcome = coalesce(d.outcome, 'subscription_gone'), ended_at = coalesce(d.ended_at, now())
  FROM unnest(%(messages)s::uuid[], %(hashes)s::bytea[]) AS r (message_id, endpoint_hash)
 WHERE d.message_id = r.message_id AND d.endpoint_hash = r.endpoint_hash AND d.state <> 'claimed'"""

FORGET_PAYLOAD: Final[LiteralString] = """
UPDATE {schema}.push_message SET payload_ref = NULL, payload_key_version = NULL
 WHERE message_id = ANY (%(messages)s::uuid[]) AND payload_ref = ANY (%(refs)s::text[])"""

# An empty list of ids is nobody, never everybody.
UNNAME: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET to_ids = ARRAY (SELECT id FROM unnest(to_ids) WITH ORDINALITY AS i (id, n)
                        WHERE id <> ALL (%(ids)s::uuid[]) ORDER BY n)
 WHERE message_id > %(after)s::uuid AND message_id <= %(last)s::uuid AND to_ids && %(ids)s::uuid[]"""

# A message remembers the last hash that it read. Four bytes of it say where to go on: what is read twice is written
# once. Where it looks for its end it begins anew.
MOVE_CURSORS: Final[LiteralString] = """
UPDATE {schema}.push_message
   SET cursor = CASE WHEN NOT cursor = ANY (%(hashes)s::bytea[]) THEN cursor
                     WHEN state IN ('waiting', 'fanning_out') THEN substring(cursor FOR 4) END,
       finish_cursor = CASE WHEN NOT finish_cursor = ANY (%(hashes)s::bytea[]) THEN finish_cursor END
 WHERE message_id > %(after)s::uuid AND message_id <= %(last)s::uuid
   AND (cursor = ANY (%(hashes)s::bytea[]) OR finish_cursor = ANY (%(hashes)s::bytea[]))"""


@dataclass(frozen=True)
class MessagePage:
    messages: int
    last: UUID | None


@dataclass(frozen=True)
class Match:
    """A ledger row that is theirs; ``payload_ref`` where the message was for nobody else."""

    message_id: UUID
    endpoint_hash: bytes
    claimed: bool
    payload_ref: str | None


def page(tx: Tx, after: UUID, limit: int) -> MessagePage:
    return tx.one(PAGE, {"after": after, "limit": limit}, MessagePage)


def match(
    tx: Tx, after: UUID, last: UUID, *, hashes: Sequence[bytes], own: Sequence[bool], user: str | None
) -> list[Match]:
    values = {"after": after, "last": last, "hashes": list(hashes), "own": list(own), "user": user}
    return tx.rows(MATCH, values, Match)


def unowe(tx: Tx, found: Sequence[Match]) -> int:
    return tx.run(UNOWE, _keys(found))


def disown(tx: Tx, found: Sequence[Match]) -> int:
    return tx.run(DISOWN, {**_keys(found), "nil": NIL})


def forget_payloads(tx: Tx, found: Sequence[Match]) -> int:
    """Those whose objects are gone."""
    named = {each.message_id: each.payload_ref for each in found if each.payload_ref is not None}
    return tx.run(FORGET_PAYLOAD, {"messages": list(named), "refs": list(named.values())}) if named else 0


def unname(tx: Tx, after: UUID, last: UUID, ids: Sequence[UUID]) -> int:
    return tx.run(UNNAME, {"after": after, "last": last, "ids": list(ids)})


def move_cursors(tx: Tx, after: UUID, last: UUID, hashes: Sequence[bytes]) -> int:
    return tx.run(MOVE_CURSORS, {"after": after, "last": last, "hashes": list(hashes)})


def _keys(found: Sequence[Match]) -> dict[str, object]:
    return {"messages": [each.message_id for each in found], "hashes": [each.endpoint_hash for each in found]}
