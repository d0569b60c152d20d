"""Rows of a table of yours are kept as JSON lines in the payload store before they are deleted, never the other way."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final, LiteralString

from pushops.db import Tx
from pushops.delivery import objects
from pushops.delivery.errors import PayloadStoreError
from pushops.retention.own.words import Table
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Acted, Acting, Batch, Page, Settled

# A page is in memory twice, as rows and as one object: a thousand rows of 10 kB are 20 MB.
PAGE: Final = 1_000
AWAY: Final = timedelta(minutes=1)  # before a store that is away is asked again

# A place and who wrote it name one version of a row: what was changed since it was read has another.
READ: Final[LiteralString] = """
SELECT swept.ctid::text AS place, swept.xmin::text AS writer, row_to_json(swept.*)::text AS line
  FROM {table} AS swept WHERE {clause}"""

# The whole predicate again, on the version that was written down; what somebody holds is left to the second look.
DELETE: Final[LiteralString] = """
WITH gone AS (
  DELETE FROM {table} WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM {table}
     WHERE ctid = ANY (%(places)s::tid[]) AND ctid::text || ' ' || xmin::text = ANY (%(versions)s::text[])
       AND {clause}
       FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT count(*)::int FROM gone"""

LEFT: Final[LiteralString] = "SELECT count(*)::int FROM {table} WHERE {clause}"


@dataclass(frozen=True)
class Kept:
    """One version of a row, and what is written of it."""

    place: str
    writer: str
    line: str


def acting(table: Table) -> Acting:
    """Read a page, write it down, then delete exactly what was written: a kill leaves a spare object at most."""

    def claim(tx: Tx, batch: Batch) -> list[Kept]:
        return tx.rows(_filled(READ, table, batch), batch.params, Kept)

    def act(rt: Runtime, page: Page) -> Acted:
        ref = name_of(table, page)
        try:
            objects.put(rt.settings, ref, lines(page.rows))
        except PayloadStoreError as error:
            rt.events.emit("payload.held", run=page.run_id, batch=page.batch_id, error=str(error))
            return Acted(0, again=AWAY)
        return Acted(len(page.rows), detail={"archive": ref}, result=page.rows)

    def settle(tx: Tx, batch: Batch, acted: Acted) -> int | Settled:
        return _delete(tx, table, batch, acted.result) if acted.result else 0

    return Acting(claim, act, settle)


def page_rows(settings: Settings) -> int:
    """Where the section says nothing."""
    return min(PAGE, settings.sweep_batch_rows)


def lines(rows: Sequence[Kept]) -> bytes:
    """A row a line, its columns in the table's order, as PostgreSQL writes them as JSON."""
    return "".join(f"{row.line}\n" for row in rows).encode()


def name_of(table: Table, page: Page) -> str:
    """The same rows of the same batch have the same name; other versions of them have another.

    Without the latter a worker that was taken for dead would write what it had read over what its successor wrote.
    """
    digest = sha256(lines(page.rows)).hexdigest()[:16]
    return f"{table.own.archive}/{page.opened_at:%Y-%m-%d}/{page.run_id}/{page.batch_id}-{digest}.jsonl"


def _delete(tx: Tx, table: Table, batch: Batch, rows: Sequence[Kept]) -> Settled:
    versions = [f"{row.place} {row.writer}" for row in rows]
    params = {**batch.params, "places": [row.place for row in rows], "versions": versions}
    done = int(tx.scalar(_filled(DELETE, table, batch), params, prepare=False))
    left = 0 if done == len(rows) else int(tx.scalar(_filled(LEFT, table, batch), batch.params, prepare=False))
    return Settled(done, left)


def _filled(query: LiteralString, table: Table, batch: Batch) -> LiteralString:
    return literal(query.replace("{table}", table.quoted).replace("{clause}", batch.clause))
