"""What is asked of partitioned tables, by beat and by operators: see them, make what is missing, drop what is over."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pushops.delivery import partitions as ledger
from pushops.delivery import retiring as ledger_retiring
from pushops.delivery.valves import reading
from pushops.errors import PushopsError
from pushops.retention.partitions import looking, making, retiring, rules, store
from pushops.retention.partitions.words import Did, Fate, Look, Table
from pushops.runtime import Runtime
from pushops.sweeps import store as engine
from pushops.sweeps import valves
from pushops.sweeps.valves import Reading

NAME: Final = "retire-partitions"  # what a pause of all but the ledger holds

Verb = Callable[[Runtime, Table], list[Fate]]


def looks(rt: Runtime, name: str | None = None) -> list[Look]:
    """The table of that name, or all, as they stand. Raises NotFoundError and RefusedError."""
    return [looking.look(rt, table) for table in looking.chosen(rt.settings, name)]


def plan(rt: Runtime, name: str | None = None) -> list[Fate]:
    """What ``create`` and ``retire`` would do now; nothing changes."""
    return create(rt, name, dry_run=True) + retire(rt, name, dry_run=True)


def create(rt: Runtime, name: str | None = None, *, dry_run: bool = False) -> list[Fate]:
    """Make the partitions that are missing, of now and ahead. Raises NotFoundError."""
    return _each(rt, name, lambda rt, table: _create(rt, table, dry_run=dry_run), dry_run=dry_run)


def retire(rt: Runtime, name: str | None = None, *, dry_run: bool = False) -> list[Fate]:
    """Drop the partitions that are over and finished. Raises NotFoundError."""
    return _each(rt, name, lambda rt, table: _retire(rt, table, dry_run=dry_run), dry_run=dry_run)


def acknowledge(rt: Runtime, name: str, *, actor: str) -> timedelta:
    """Say that a table's retention, shorter than before, is meant; returns it. Raises NotFoundError."""
    (table,) = looking.chosen(rt.settings, name)
    with rt.db.transaction() as tx:
        engine.ensure_control(tx, _control(table), _window(table), 0)
        engine.acknowledge(tx, _control(table), _window(table))
    rt.events.emit("sweep.control", sweep=_control(table), verb="acknowledge", actor=actor, why=_window(table))
    return table.retention


def _each(rt: Runtime, name: str | None, verb: Verb, *, dry_run: bool) -> list[Fate]:
    """One table after the other; what is wrong with one keeps nobody from the next."""
    fates = []
    for table in looking.chosen(rt.settings, name):
        try:
            done = verb(rt, table)
        except PushopsError as error:
            done = [Fate(table.name, table.table, Did.FAILED, str(error))]
        fates += done
        if not dry_run:
            _tell(rt, done)
    return fates


def _tell(rt: Runtime, fates: list[Fate]) -> None:
    for fate in fates:
        event = "partition.failed" if fate.did in (Did.BLOCKED, Did.FAILED) else "partition.changed"
        rt.events.emit(event, table=fate.table, partition=fate.partition, did=fate.did, why=fate.why)


def _create(rt: Runtime, table: Table, *, dry_run: bool) -> list[Fate]:
    if table.ours and not dry_run:
        return [Fate(table.name, made, Did.MADE) for made in ledger.make_ahead(rt)]
    return making.make(rt, looking.look(rt, table), dry_run=dry_run)


def _retire(rt: Runtime, table: Table, *, dry_run: bool) -> list[Fate]:
    closed = _closed(rt, table)
    if closed is not None:
        return [Fate(table.name, table.table, Did.HELD, closed.reason)]
    if not dry_run:
        with rt.db.transaction() as tx:
            store.forget_old(tx)
            engine.ensure_control(tx, _control(table), _window(table), 0)
            engine.acknowledge(tx, _control(table), _window(table))
    if table.ours:
        done = ledger_retiring.preview(rt) if dry_run else ledger_retiring.retire(rt)
        return [Fate(table.name, each.partition, _did(each, dry_run=dry_run), each.why) for each in done]
    return retiring.retire(rt, looking.look(rt, table), dry_run=dry_run)


def _did(each: ledger_retiring.Retired, *, dry_run: bool) -> Did:
    if dry_run and each.outcome is ledger_retiring.Retirement.DROPPED:
        return Did.WOULD_DROP
    return Did(str(each.outcome))


def _closed(rt: Runtime, table: Table) -> Reading | None:
    """A stop file, a pause (the ledger's own, or that of all others), or a retention shorter than the last one used."""
    held = reading(rt, ledger_retiring.NAME if table.ours else NAME)
    if held is not None:
        return held

    def retention() -> Reading:
        with rt.db.transaction() as tx:
            known = engine.control(tx, _control(table))
        return valves.decide_retention({"retention": table.retention.total_seconds()}, known)

    found = valves.seen("retention", retention)
    if found.open:
        return None
    why = f"{found.reason.removesuffix(': pushops sweep acknowledge')}: pushops partition acknowledge {table.name}"
    return Reading(found.valve, found.state, why)


def _control(table: Table) -> str:
    return f"{NAME}:{table.name}"


def _window(table: Table) -> str:
    return json.dumps({"retention": table.retention.total_seconds()})


def problems(found: Look) -> list[str]:
    """What is wrong with a table that only a person can mend, or that beat should have."""
    wanted = rules.missing(found.ranges, rules.wanted(found.now, found.table.interval, 1))
    said = [f"no partition for {span.begin:%Y-%m-%d} to {span.end:%Y-%m-%d}" for span in wanted]
    if found.stray and found.default is not None:
        many = "at least " if found.stray >= store.COUNTED else ""
        said.append(f"{many}{found.stray:,} rows in its default partition {found.default.name}")
    said += [f"a detaching of {part.name} was cut off" for part in found.ranges if part.pending]
    said += [f"{each.name} was detached, and not dropped yet" for each in found.leftovers if each.goes == "out"]
    return said
