"""Requests: opened once, carried on from where they stand, and emptied of whom they are about when they are done."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from pushops.db import Tx
from pushops.erasure.words import Request

OPEN: Final[LiteralString] = """
INSERT INTO {schema}.erasure_request (user_hmac, user_id, endpoint_hash, asked_by)
VALUES (%(hmac)s::bytea, %(user)s::text, %(hash)s::bytea, %(actor)s::text)
    ON CONFLICT DO NOTHING RETURNING request_id"""
JOIN: Final[LiteralString] = """
SELECT request_id FROM {schema}.erasure_request
 WHERE done_at IS NULL AND (user_hmac = %(hmac)s::bytea OR endpoint_hash = %(hash)s::bytea)"""

# Whoever registers this endpoint right now has its key in the unique index: this waits for them, and they for us.
BLOCK: Final[LiteralString] = """
INSERT INTO {schema}.push_subscription
       (endpoint_hash, push_service, state, end_reason, revoked_at, deleted_at, scrubbed_at)
VALUES (%(hash)s::bytea, 'other', 'revoked', 'erased', now(), now(), now())
    ON CONFLICT (endpoint_hash) DO NOTHING RETURNING id"""
UNBLOCK: Final[LiteralString] = "DELETE FROM {schema}.push_subscription WHERE id = %(id)s::uuid"

# Two indexes hold a user's rows, the live ones and the tombstones; said in one condition, neither would be used.
OF_USER: Final[LiteralString] = """
SELECT id, endpoint_hash, legal_hold FROM {schema}.push_subscription
 WHERE user_id = %(user)s::text AND deleted_at IS NULL OR user_id = %(user)s::text AND deleted_at IS NOT NULL
 ORDER BY id FOR UPDATE"""
OF_REQUEST: Final[LiteralString] = """
SELECT s.id, s.endpoint_hash, s.legal_hold
  FROM {schema}.erasure_endpoint AS e JOIN {schema}.push_subscription AS s USING (endpoint_hash)
 WHERE e.request_id = %(request)s::uuid AND e.own ORDER BY s.id FOR UPDATE OF s"""
OF_ENDPOINT: Final[LiteralString] = """
SELECT id, endpoint_hash, legal_hold FROM {schema}.push_subscription
 WHERE endpoint_hash = %(hash)s::bytea FOR UPDATE"""

NAME: Final[LiteralString] = """
INSERT INTO {schema}.erasure_endpoint AS e (request_id, endpoint_hash, subscription_id, own)
SELECT %(request)s::uuid, endpoint_hash, subscription_id, true
  FROM unnest(%(hashes)s::bytea[], %(ids)s::uuid[]) AS r (endpoint_hash, subscription_id) ORDER BY endpoint_hash
    ON CONFLICT (request_id, endpoint_hash)
    DO UPDATE SET own = true, subscription_id = coalesce(EXCLUDED.subscription_id, e.subscription_id)"""
# Endpoints that were theirs once, by the trail, whoever has them now.
NAME_FORMER: Final[LiteralString] = """
INSERT INTO {schema}.erasure_endpoint (request_id, endpoint_hash, own)
SELECT DISTINCT %(request)s::uuid, endpoint_hash, false
  FROM {schema}.subscription_period WHERE user_id = %(user)s::text
    ON CONFLICT (request_id, endpoint_hash) DO NOTHING"""
NAMED: Final[LiteralString] = """
SELECT endpoint_hash, subscription_id, own FROM {schema}.erasure_endpoint WHERE request_id = %(request)s::uuid"""

HOLD: Final[LiteralString] = """
UPDATE {schema}.erasure_request SET held_at = coalesce(held_at, now())
 WHERE request_id = %(request)s::uuid AND done_at IS NULL"""
LOCK: Final[LiteralString] = """
SELECT request_id, user_id, endpoint_hash, asked_at, rounds, settled, found, cursor, waits, receipt
  FROM {schema}.erasure_request WHERE request_id = %(request)s::uuid AND done_at IS NULL FOR UPDATE"""
ADVANCE: Final[LiteralString] = """
UPDATE {schema}.erasure_request
   SET cursor = coalesce(%(cursor)s::uuid, cursor), found = found + %(found)s::bigint,
       waits = coalesce(waits, %(waits)s::text), receipt = %(receipt)s::jsonb
 WHERE request_id = %(request)s::uuid"""
NEXT_ROUND: Final[LiteralString] = """
UPDATE {schema}.erasure_request SET rounds = rounds + 1, found = 0, cursor = NULL
 WHERE request_id = %(request)s::uuid"""
# Whoever began before the request was committed may still write what it is about: a fan-out's page, a registration. A
# round counts as the last one only if none of them was left when it began. Others' snapshots are seen where they are
# of our own role, or with pg_monitor; transactions that write are always seen.
BEGIN_ROUND: Final[LiteralString] = """
UPDATE {schema}.erasure_request
   SET waits = NULL, begun_xid = coalesce(begun_xid, pg_snapshot_xmax(pg_current_snapshot())),
       settled = begun_xid IS NOT NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= begun_xid
                 AND NOT EXISTS (SELECT FROM pg_stat_activity AS a
                                  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
                                    AND a.backend_type = 'client backend' AND a.backend_xmin IS NOT NULL
                                    AND age(a.backend_xmin) > age(begun_xid::xid))
 WHERE request_id = %(request)s::uuid"""

# The receipt is what is left. Who confirmed meanwhile may come back from now on.
FINISH: Final[LiteralString] = """
UPDATE {schema}.erasure_request SET done_at = now(), user_id = NULL, endpoint_hash = NULL, cursor = NULL, waits = NULL
 WHERE request_id = %(request)s::uuid"""
FORGET_NAMES: Final[LiteralString] = "DELETE FROM {schema}.erasure_endpoint WHERE request_id = %(request)s::uuid"
LET_BACK: Final[LiteralString] = """
DELETE FROM {schema}.suppression AS s
 WHERE s.request_id = %(request)s::uuid AND s.lifted_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM {schema}.erasure_endpoint AS e WHERE e.endpoint_hash = s.endpoint_hash AND e.own)"""

ANY_DUE: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM {schema}.erasure_request WHERE done_at IS NULL AND held_at IS NULL)"""
_COLUMNS: Final[LiteralString] = """
SELECT r.request_id, CASE WHEN r.user_hmac IS NULL THEN 'endpoint' ELSE 'user' END AS of, r.user_hmac, r.asked_at,
       r.asked_by, r.held_at, r.waits, r.told, r.done_at,
       (SELECT count(*)::integer FROM {schema}.suppression AS s WHERE s.request_id = r.request_id) AS endpoints,
       r.receipt
  FROM {schema}.erasure_request AS r"""
LIST: Final[LiteralString] = (
    _COLUMNS
    + """
 WHERE %(all)s::boolean OR r.done_at IS NULL
 ORDER BY r.asked_at DESC, r.request_id DESC LIMIT %(limit)s::integer"""
)
SHOW: Final[LiteralString] = _COLUMNS + " WHERE r.request_id = %(request)s::uuid"
LIKE: Final[LiteralString] = """
SELECT request_id FROM {schema}.erasure_request
 WHERE request_id BETWEEN %(lowest)s::uuid AND %(highest)s::uuid ORDER BY request_id LIMIT 2"""


@dataclass(frozen=True)
class Row:
    """A subscription that a request is about."""

    id: UUID
    endpoint_hash: bytes
    legal_hold: bool


@dataclass(frozen=True)
class Standing:
    """A request that is locked to be carried on."""

    request_id: UUID
    user_id: str | None
    endpoint_hash: bytes | None
    asked_at: datetime
    rounds: int
    settled: bool
    found: int
    cursor: UUID | None
    waits: str | None
    receipt: Mapping[str, int]


@dataclass(frozen=True)
class Named:
    endpoint_hash: bytes
    subscription_id: UUID | None
    own: bool


@dataclass(frozen=True)
class Met:
    """What a step met: rows by store, how far the walk is, and what it must wait for."""

    rows: Mapping[str, int] = field(default_factory=dict)
    cursor: UUID | None = None
    waits: str | None = None


def open_(
    tx: Tx, *, hmac: bytes | None, user: str | None, endpoint_hash: bytes | None, actor: str
) -> tuple[UUID, bool]:
    """The request's id, and whether it was open already."""
    which = {"hmac": hmac, "user": user, "hash": endpoint_hash, "actor": actor}
    made: UUID | None = tx.scalar(OPEN, which)
    if made is not None:
        return made, False
    joined: UUID = tx.scalar(JOIN, which)
    return joined, True


def block(tx: Tx, endpoint_hash: bytes) -> None:
    """Wait for whoever registers this endpoint, and have them wait for this transaction."""
    made = tx.scalar(BLOCK, {"hash": endpoint_hash})
    if made is not None:
        tx.run(UNBLOCK, {"id": made})


def of_user(tx: Tx, user: str) -> list[Row]:
    return tx.rows(OF_USER, {"user": user}, Row)


def of_endpoint(tx: Tx, endpoint_hash: bytes) -> list[Row]:
    return tx.rows(OF_ENDPOINT, {"hash": endpoint_hash}, Row)


def of_request(tx: Tx, request_id: UUID) -> list[Row]:
    """Rows of its own endpoints, locked."""
    return tx.rows(OF_REQUEST, {"request": request_id}, Row)


def name(tx: Tx, request_id: UUID, endpoints: Mapping[bytes, UUID | None]) -> None:
    """These endpoints are what the request is about."""
    tx.run(NAME, {"request": request_id, "hashes": list(endpoints), "ids": list(endpoints.values())})


def name_former(tx: Tx, request_id: UUID, user: str) -> None:
    tx.run(NAME_FORMER, {"request": request_id, "user": user})


def named(tx: Tx, request_id: UUID) -> list[Named]:
    return tx.rows(NAMED, {"request": request_id}, Named)


def hold(tx: Tx, request_id: UUID) -> None:
    tx.run(HOLD, {"request": request_id})


def lock(tx: Tx, request_id: UUID) -> Standing | None:
    """None where it is done."""
    return tx.maybe(LOCK, {"request": request_id}, Standing)


def advance(tx: Tx, standing: Standing, met: Met) -> None:
    """Add what was met to the receipt, in the transaction in which it went."""
    receipt = dict(standing.receipt)
    for store, rows in met.rows.items():
        if rows:
            receipt[store] = receipt.get(store, 0) + rows
    values = {"cursor": met.cursor, "found": sum(met.rows.values()), "waits": met.waits}
    tx.run(ADVANCE, values | {"request": standing.request_id, "receipt": json.dumps(receipt)})


def next_round(tx: Tx, request_id: UUID) -> None:
    tx.run(NEXT_ROUND, {"request": request_id})


def begin_round(tx: Tx, request_id: UUID) -> None:
    tx.run(BEGIN_ROUND, {"request": request_id})


def finish(tx: Tx, request_id: UUID) -> None:
    for statement in (FINISH, FORGET_NAMES, LET_BACK):
        tx.run(statement, {"request": request_id})


def any_due(tx: Tx) -> bool:
    return bool(tx.scalar(ANY_DUE, {}))


def page(tx: Tx, *, done: bool, limit: int) -> Sequence[Request]:
    """The latest first; without ``done`` only those that are open."""
    return tx.rows(LIST, {"all": done, "limit": limit}, Request)


def show(tx: Tx, request_id: UUID) -> Request | None:
    return tx.maybe(SHOW, {"request": request_id}, Request)


def like(tx: Tx, lowest: UUID, highest: UUID) -> list[UUID]:
    return tx.scalars(LIKE, {"lowest": lowest, "highest": highest})
