"""A sweep that acts, for tests: rows of a scratch table, an act that a test steers, filters by kind.

A worker with CONFIG and ENVIRONMENT knows the sweep ``errands``: its acts stand still while the table ``errand_gate``
has a row, until they are asked to stop.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg

from pushops.db import Tx
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Acted, Acting, Batch, Column, Page, Sweep, Window

ZERO: Final = timedelta()
CONFIG: Final = 'imports = ["tests.errands"]\nworker_lost_wait = 0.1\n'
ENVIRONMENT: Final = {"ERRANDS": "yes"}  # the process of the tests keeps the product's own catalog

TABLES: Final = """
CREATE TABLE pushops.errand (id bigint PRIMARY KEY, kind text NOT NULL, claimed_by uuid, done_at timestamptz);
CREATE TABLE pushops.errand_gate (closed boolean);
CREATE TABLE pushops.errand_act (batch_id uuid, at timestamptz DEFAULT now());"""
CLAIM: Final[LiteralString] = "UPDATE {{schema}}.errand SET claimed_by = %(batch_id)s::uuid WHERE {batch} RETURNING id"
SETTLE: Final[LiteralString] = """
UPDATE {schema}.errand SET done_at = now(), claimed_by = NULL
 WHERE id = ANY (%(ids)s::bigint[]) AND claimed_by = %(batch_id)s::uuid"""
RAN: Final[LiteralString] = "UPDATE {schema}.errand SET done_at = now() WHERE id = ANY (%(ids)s::bigint[])"


def make_errands(pg: psycopg.Connection[Any], count: int = 10) -> None:
    """Rows 1 to ``count``, odd and even kinds."""
    pg.execute(TABLES)
    pg.execute(
        "INSERT INTO errand (id, kind) SELECT n, CASE mod(n, 2) WHEN 0 THEN 'even' ELSE 'odd' END"
        " FROM generate_series(1, %s) AS n",
        [count],
    )


def claim(tx: Tx, batch: Batch) -> Sequence[int]:
    return sorted(tx.scalars(literal(CLAIM.format(batch=batch.clause)), batch.params))


def by_kind(text: str) -> Mapping[str, Any]:
    return {"kind": text or None}


def page_rows(settings: Settings, options: Mapping[str, Any]) -> int:
    return int(options.get("page", settings.sweep_batch_rows))


@dataclass
class Errands:
    """What was done outside, in order; ``before`` is called inside each act."""

    pg: psycopg.Connection[Any]
    done: list[int] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    before: Any = lambda _rt: None

    def claim(self, tx: Tx, batch: Batch) -> Sequence[int]:
        return claim(tx, batch)

    def act(self, rt: Runtime, page: Page) -> Acted:
        self.before(rt)
        self.pages.append(page)
        self.done += page.rows
        return Acted(len(page.rows), result=list(page.rows))

    def settle(self, tx: Tx, batch: Batch, acted: Acted) -> int:
        return tx.run(SETTLE, {"ids": acted.result, "batch_id": UUID(batch.batch_id)})

    @property
    def sweep(self) -> Sweep:
        return Sweep(
            name="errands",
            table="{schema}.errand",
            index="errand_pkey",
            key=(Column("id", "bigint"),),
            identity=Column("id", "bigint"),
            predicate="done_at IS NULL AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)",
            windows=(Window("asked", (), floor=ZERO),),
            acting=Acting(self.claim, self.act, self.settle),
            filtered=by_kind,
            page_rows=page_rows,
        )

    @property
    def catalog(self) -> dict[str, Sweep]:
        return {"errands": self.sweep}

    def acting_as(self, act: Callable[[Runtime, Page], Acted], **changes: Any) -> dict[str, Sweep]:
        """The catalog with another act."""
        return {"errands": replace(self.sweep, acting=Acting(self.claim, act, self.settle), **changes)}


# What a real worker does -----------------------------------------------------------------------------------------


def _act(rt: Runtime, page: Page) -> Acted:
    """Row by row, each committed by itself, and between two of them nothing while the gate is closed."""
    with rt.db.transaction() as tx:
        tx.run("INSERT INTO {schema}.errand_act (batch_id) VALUES (%(id)s::uuid)", {"id": page.batch_id})
    for done, row in enumerate(page.rows):
        while _gate_is_closed(rt):
            if page.asked():
                return Acted(done, again=ZERO)
            time.sleep(0.02)
        with rt.db.transaction() as tx:
            tx.run(RAN, {"ids": [row]})
    return Acted(len(page.rows))


def _gate_is_closed(rt: Runtime) -> bool:
    with rt.db.transaction() as tx:
        return bool(tx.scalar("SELECT EXISTS (SELECT FROM {schema}.errand_gate)", {}))


def _settle(_tx: Tx, _batch: Batch, acted: Acted) -> int:
    return acted.rows


ERRANDS: Final = replace(
    Errands(None).sweep,  # type: ignore[arg-type]  # only its shape
    acting=Acting(claim, _act, _settle),
    lease=lambda settings: settings.sweep_lease,
)
if os.environ.get("ERRANDS"):
    SWEEPS[ERRANDS.name] = ERRANDS
