"""The steps of an adoption, in order: each knows whether it is done, and doing it again changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pushops.adopting import ddl, store, sweeping
from pushops.adopting.words import SUPERSEDED, Adoption, Losers
from pushops.db import Tx
from pushops.sweeps.sweep import Sweep


class How(StrEnum):
    LOCKED = "locked"  # in a transaction that needs the table's lock for a moment
    OUTSIDE = "outside"  # concurrently, outside a transaction
    SWEPT = "swept"


@dataclass(frozen=True)
class Step:
    """``sql`` is run as it is, or a sweep is; ``index`` is what an interruption may leave INVALID."""

    name: str
    meaning: str
    how: How
    done: Callable[[Tx, Adoption], bool]
    sql: Callable[[Adoption], list[str]] | None = None
    sweep: Callable[[Adoption], Sweep] | None = None
    index: Callable[[Adoption], str] | None = None


def _has_columns(tx: Tx, one: Adoption) -> bool:
    wanted = [one.column, SUPERSEDED] if one.losers is Losers.MARK else [one.column]
    return all(store.type_of(tx, one, name) for name in wanted)


def _is_unique(tx: Tx, one: Adoption) -> bool:
    return _is_valid(tx, one, one.unique)


def _is_valid(tx: Tx, one: Adoption, name: str) -> bool:
    found = store.index(tx, one, name)
    return found is not None and found.valid


def _is_backfilled(tx: Tx, one: Adoption) -> bool:
    """A validated constraint says so without reading the table."""
    if not _has_columns(tx, one):
        return False
    return bool(store.check(tx, one)) or not store.any_unhashed(tx, one)


def _is_settled(tx: Tx, one: Adoption) -> bool:
    if _is_unique(tx, one):
        return True
    return _is_valid(tx, one, one.helper) and _is_backfilled(tx, one) and not store.any_losing(tx, one)


def _is_bridged(tx: Tx, one: Adoption) -> bool:
    return _is_unique(tx, one) or ddl.BRIDGING in (store.trigger(tx, one) or "")


STEPS = (
    Step("columns", "a nullable column for the hash", How.LOCKED, _has_columns, sql=ddl.columns),
    Step(
        "trigger",
        "every write brings its hash",
        How.LOCKED,
        lambda tx, one: _is_unique(tx, one) or store.trigger(tx, one) is not None,
        sql=ddl.trigger,
    ),
    Step("backfill", "the rows that were there get theirs", How.SWEPT, _is_backfilled, sweep=sweeping.backfill),
    Step(
        "helper",
        "an index that finds duplicates",
        How.OUTSIDE,
        lambda tx, one: _is_unique(tx, one) or _is_valid(tx, one, one.helper),
        sql=ddl.helper,
        index=lambda one: one.helper,
    ),
    Step(
        "bridge",
        "a write takes the place of older rows of its endpoint",
        How.LOCKED,
        _is_bridged,
        sql=lambda one: [ddl.function(one, bridge=True)],
    ),
    Step("duplicates", "one row stays for each endpoint", How.SWEPT, _is_settled, sweep=sweeping.settle),
    Step(
        "present",
        "no new row without a hash",
        How.LOCKED,
        lambda tx, one: store.check(tx, one) is not None,
        sql=ddl.present,
    ),
    Step("validated", "nor any old one", How.LOCKED, lambda tx, one: bool(store.check(tx, one)), sql=ddl.validated),
    Step(
        "unique",
        "the unique index",
        How.OUTSIDE,
        _is_unique,
        sql=ddl.unique,
        index=lambda one: one.unique,
    ),
    Step(
        "tidy",
        "the index that found duplicates goes",
        How.OUTSIDE,
        lambda tx, one: _is_unique(tx, one) and store.index(tx, one, one.helper) is None,
        sql=lambda one: ddl.dropped(one, one.helper),
    ),
)
