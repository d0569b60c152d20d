"""From a declaration to SQL: the range of a page, the predicate, and the ways to take its rows without waiting.

Everything here is put together from the declaration's own literals; values are always parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString

from pushops.errors import RefusedError
from pushops.sweeps.sweep import Column, Sweep, Walk

# A row whose xmax is older than every running transaction is held by nobody: an aborted delete or a finished
# foreign-key check left the mark. Anything younger may be held, and is skipped without waiting. (Plain xmax = 0
# would leave the former behind. A multixact is misread, which lock_timeout and the second form make good.)
# What was skipped is noted in a setting of the transaction, which costs nothing where nothing is skipped; looking the
# page over again for what is left costs as much as the delete.
FREE: Final = (
    "(xmax = 0 OR age(xmax) > (SELECT age(pg_snapshot_xmin(pg_current_snapshot())::xid))"
    " OR set_config('pushops.skipped', 'yes', true) IS NULL)"
)
SKIPPED: Final[LiteralString] = "SELECT coalesce(current_setting('pushops.skipped', true), '') = 'yes'"

# Options of the planner. Stale statistics must not turn a page into a scan of the table, nor the join behind it into a
# hash of another.
PLAN_INDEX: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}
# The dispatcher stops after a few pages of many: whatever sorts first would read all that is left, for every step.
PLAN_PAGES: Final = PLAN_INDEX | {
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
# Only the range of blocks is left: the partial index would visit the same rows in another, scattered order.
PLAN_BLOCKS: Final = {"enable_seqscan": "off", "enable_indexscan": "off", "enable_bitmapscan": "off", "jit": "off"}


def literal(text: str) -> LiteralString:
    """SQL that was put together from literals only."""
    return text


def plan_for(walk: Walk) -> Mapping[str, str]:
    return PLAN_BLOCKS if walk is Walk.BLOCKS else PLAN_INDEX


def predicate(sweep: Sweep) -> str:
    """The full eligibility predicate; with the floor of every window repeated, whatever the settings said."""
    bound = [window.name for window in sweep.windows if window.floor]
    floors = [f"%({name})s::timestamptz < now() - %({name}_floor)s::interval" for name in bound]
    return " AND ".join([f"({sweep.predicate})", *floors])


def floors(sweep: Sweep) -> dict[str, timedelta]:
    return {f"{window.name}_floor": window.floor for window in sweep.windows if window.floor}


def filtered(sweep: Sweep, text: str) -> Mapping[str, Any]:
    """A run's filter as parameters. Raises RefusedError where the sweep knows none, or not this one."""
    if sweep.filtered is not None:
        return sweep.filtered(text)
    if text:
        raise RefusedError(f"expected no filter, {sweep.name} takes all that is due, got one")
    return {}


def between(columns: Sequence[Column], *, has_lo: bool, suffix: str = "") -> str:
    """Rows after ``lo`` up to and including ``hi``, comparing whole keys."""
    left = _row([column.expression for column in columns])
    low = f"{left} > {_bound('lo' + suffix, columns)} AND " if has_lo else ""
    return f"{low}{left} <= {_bound('hi' + suffix, columns)}"


def after(columns: Sequence[Column], *, has_cursor: bool) -> str:
    if not has_cursor:
        return "true"
    return f"{_row([column.expression for column in columns])} > {_bound('cursor', columns)}"


def bounds(name: str, values: Sequence[str] | None) -> dict[str, Any]:
    return {f"{name}{i}": value for i, value in enumerate(values or ())}


def page_clause(sweep: Sweep, walk: Walk, *, has_lo: bool, held: "Held") -> str:
    """Range, predicate and the keys that are left alone: what every statement about a page has in common."""
    columns = sweep.columns(walk)
    parts = [between(columns, has_lo=has_lo), predicate(sweep)]
    if held.identities:
        parts.append(f"({sweep.identity.expression})::text <> ALL (%(held)s::text[])")
    parts += [
        f"({between(sweep.columns(Walk(page.walk)), has_lo=page.lo is not None, suffix=f'_held{n}_')}) IS NOT TRUE"
        for n, page in enumerate(held.pages)
    ]
    return " AND ".join(parts)


@dataclass(frozen=True)
class HeldPage:
    """A page that killed its workers; nobody looks into it before it is released, whichever way they walk."""

    lo: list[str] | None
    hi: list[str]
    walk: str


@dataclass(frozen=True)
class Held:
    """What quarantine holds of a sweep: identities, and whole pages."""

    identities: Sequence[str] = ()
    pages: Sequence[HeldPage] = ()

    def params(self) -> dict[str, Any]:
        values: dict[str, Any] = {"held": list(self.identities)}
        for n, page in enumerate(self.pages):
            values |= bounds(f"lo_held{n}_", page.lo) | bounds(f"hi_held{n}_", page.hi)
        return values


def free_rows(clause: str) -> str:
    """The fast form: whoever may hold a row keeps it, and nobody is waited for."""
    return f"{clause} AND {FREE}"


def rows_that_lock(sweep: Sweep, clause: str) -> str:
    """The sure form: take what can be locked now, by position, then only that."""
    return f"ctid = ANY (ARRAY (SELECT ctid FROM {sweep.table} WHERE {clause} FOR UPDATE SKIP LOCKED))"


def effect(sweep: Sweep, selection: str) -> LiteralString:
    if sweep.effect is None:
        raise TypeError(f"expected {sweep.name} to have an SQL effect, it acts")
    return literal(sweep.effect.replace("{batch}", selection))


def count_left(sweep: Sweep, clause: str) -> LiteralString:
    return literal(f"SELECT count(*)::int FROM {sweep.table} WHERE {clause}")


def page_ends(sweep: Sweep, *, has_cursor: bool) -> LiteralString:
    """The last key of every page of ``page`` rows, out of ``rows`` rows after the cursor, in key order."""
    names = [f"k{i}" for i in range(len(sweep.key))]
    keys = ", ".join(f"{c.expression} AS {n}" for c, n in zip(sweep.key, names, strict=True))
    order = ", ".join(column.expression for column in sweep.key)
    return literal(
        f"SELECT ARRAY[{', '.join(f'{n}::text' for n in names)}] AS hi, n"
        f" FROM (SELECT {keys}, row_number() OVER walk AS n, lead(true) OVER walk AS more FROM {sweep.table}"
        f" WHERE {after(sweep.key, has_cursor=has_cursor)} AND {predicate(sweep)}"
        f" WINDOW walk AS (ORDER BY {order}) ORDER BY {order} LIMIT %(rows)s::bigint) AS walked"
        " WHERE n %% %(page)s::bigint = 0 OR n = %(rows)s::bigint OR more IS NULL ORDER BY n"
    )


def middle(sweep: Sweep, walk: Walk, clause: str) -> LiteralString:
    """Where to cut a failing page: its middle key, how many rows there are, and the identity of the middle row."""
    columns = sweep.columns(walk)
    keys = ", ".join(f"{c.expression} AS k{i}" for i, c in enumerate(columns))
    order = ", ".join(column.expression for column in columns)
    texts = ", ".join(f"k{i}::text" for i in range(len(columns)))
    return literal(
        f"SELECT ARRAY[{texts}] AS key, identity, total FROM (SELECT {keys},"
        f" ({sweep.identity.expression})::text AS identity, row_number() OVER (ORDER BY {order}) AS n,"
        f" count(*) OVER () AS total FROM {sweep.table} WHERE {clause}) AS page WHERE n = (total + 1) / 2"
    )


def eligible(sweep: Sweep) -> LiteralString:
    """How many rows are meant."""
    return literal(f"SELECT count(*) FROM {sweep.table} WHERE {predicate(sweep)}")


def rows_up_to(sweep: Sweep) -> LiteralString:
    return literal(f"SELECT count(*) FROM (SELECT 1 FROM {sweep.table} LIMIT %(most)s::bigint) AS rows")


def estimate(sweep: Sweep) -> LiteralString:
    """What the planner thinks of it: a guess as good as the last analyze, for nothing."""
    return literal(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {sweep.table} WHERE {predicate(sweep)}")


def oldest(sweep: Sweep) -> LiteralString:
    """The first keys in walk order: the oldest rows, and a sample of what would go."""
    order = ", ".join(column.expression for column in sweep.key)
    return literal(
        f"SELECT ({sweep.key[0].expression})::text AS key, ({sweep.identity.expression})::text AS identity"
        f" FROM {sweep.table} WHERE {predicate(sweep)} ORDER BY {order} LIMIT %(limit)s::bigint"
    )


def _row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _bound(name: str, columns: Sequence[Column]) -> str:
    return _row([f"%({name}{i})s::{column.type}" for i, column in enumerate(columns)])
