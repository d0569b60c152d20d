"""Staging: each import's partition, made, filled, indexed and dropped, and the lease that says that it runs."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Literal

from pushops.db import Tx

STAGING: Final = "import_staging"
# All but import_id, in the order of the lines that are copied.
COLUMNS: Final = (
    "ordinal",
    "endpoint_hash",
    "endpoint",
    "push_service",
    "p256dh",
    "auth_sealed",
    "auth_key_version",
    "content_encoding",
    "vapid_key_id",
    "expiration_time",
    "user_id",
    "tags",
    "user_agent",
    "locale",
    "origin",
    "created_at",
    "recency",
)

BEGIN: Final[LiteralString] = """
INSERT INTO {schema}.subscription_import (actor, alive_until)
VALUES (%(actor)s::text, now() + %(lease)s::interval) RETURNING import_id"""

RENEW: Final[LiteralString] = """
UPDATE {schema}.subscription_import SET alive_until = now() + %(lease)s::interval WHERE import_id = %(import)s::uuid"""

END: Final[LiteralString] = "DELETE FROM {schema}.subscription_import WHERE import_id = %(import)s::uuid"

# A row that stands for all: a crash of the server takes it with the others, and nothing else does. Its hash is shorter
# than any, so that no page has it.
MARK: Final[LiteralString] = """
INSERT INTO {schema}.import_staging
       (import_id, ordinal, endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version,
        content_encoding)
VALUES (%(import)s::uuid, 0, '', '', '', '', '', %(version)s::integer, '')"""

INTACT: Final[LiteralString] = """
SELECT EXISTS (SELECT 1 FROM {schema}.import_staging WHERE import_id = %(import)s::uuid AND endpoint_hash = '')"""

DEAD: Final[LiteralString] = """
SELECT import_id FROM {schema}.subscription_import WHERE alive_until < now() ORDER BY import_id LIMIT 100"""


@dataclass(frozen=True)
class Import:
    import_id: UUID


def begin(tx: Tx, actor: str, lease: timedelta) -> UUID:
    return tx.one(BEGIN, {"actor": actor, "lease": lease}, Import).import_id


def renew(tx: Tx, import_id: UUID, lease: timedelta) -> bool:
    """Whether the import is still ours: somebody may have taken it for dead."""
    return tx.run(RENEW, {"import": import_id, "lease": lease}) == 1


def dead(tx: Tx) -> list[UUID]:
    """Imports whose process stopped without a word."""
    return [found.import_id for found in tx.rows(DEAD, {}, Import)]


def create(tx: Tx, import_id: UUID) -> None:
    """The import's partition, which no crash of the server keeps; without an index while it is filled."""
    table, parent = _table(tx.schema, import_id), Identifier(tx.schema, STAGING)
    _execute(tx, SQL("CREATE UNLOGGED TABLE {} (LIKE {})").format(table, parent))
    _execute(tx, SQL("ALTER TABLE {} ALTER import_id SET DEFAULT {}").format(table, Literal(str(import_id))))
    _execute(
        tx, SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES IN ({})").format(parent, table, Literal(str(import_id)))
    )


def mark(tx: Tx, import_id: UUID, version: int) -> None:
    """Put the row that stands for all; ``version`` is the seal key's, which is in use here."""
    tx.run(MARK, {"import": import_id, "version": version})


def intact(tx: Tx, import_id: UUID) -> bool:
    """Whether nothing was lost since it was marked."""
    return bool(tx.scalar(INTACT, {"import": import_id}))


def copy(tx: Tx, import_id: UUID, lines: bytes) -> None:
    """Add lines in COPY's text format."""
    columns = SQL(", ").join(map(Identifier, COLUMNS))
    statement = SQL("COPY {} ({}) FROM STDIN").format(_table(tx.schema, import_id), columns)
    with tx.conn.cursor().copy(statement) as sink:
        sink.write(lines)


def index(tx: Tx, import_id: UUID) -> None:
    """In the order of the pages; with what their statements name, so that it can answer alone."""
    _execute(tx, SQL("CREATE INDEX ON {} (endpoint_hash) INCLUDE (import_id)").format(_table(tx.schema, import_id)))


def vacuum(conn: Connection[Any], schema: str, import_id: UUID) -> None:
    """Outside a transaction: what the planner must know, and that the index alone may answer."""
    conn.execute(SQL("VACUUM (ANALYZE) {}").format(_table(schema, import_id)))


def drop(tx: Tx, import_id: UUID) -> None:
    """The partition and the lease; nothing where they are gone."""
    _execute(tx, SQL("DROP TABLE IF EXISTS {}").format(_table(tx.schema, import_id)))
    tx.run(END, {"import": import_id})


def _table(schema: str, import_id: UUID) -> Identifier:
    return Identifier(schema, f"{STAGING}_{import_id.hex}")


def _execute(tx: Tx, statement: Composed) -> None:
    conn: Connection[Any] = tx.conn
    conn.execute(statement, prepare=False)
