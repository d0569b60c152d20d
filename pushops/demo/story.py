"""The story in order: the table, the one statement that cannot, the many small ones that can, and the trouble."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushops.db import Database
from pushops.db.migrate import migrate
from pushops.demo import audience, calibrate, store
from pushops.demo.crew import Crew, crew
from pushops.demo.night import Night
from pushops.demo.readers import Readers
from pushops.demo.report import Before, Verdict, judge
from pushops.demo.stage import Scale, Stage, stage
from pushops.demo.telling import Teller
from pushops.errors import PushopsError
from pushops.runtime import Runtime, runtime
from pushops.sandbox import processes
from pushops.settings import format_duration, load_settings

START_SECONDS: Final = 90.0
ENOUGH_READS: Final = 500
TRIES: Final = 5


def tell(scale: Scale, teller: Teller) -> Verdict:
    """Tell it all and return what came of it; raises PushopsError where it cannot go on."""
    started = time.monotonic()
    teller.act("The stage: a PostgreSQL and a Valkey server of our own")
    with stage(scale) as where:
        with runtime(load_settings()) as rt:
            timeout = _set_the_scene(rt, scale, teller)
        with runtime(where.limit(timeout)) as rt, _audience(where, rt, scale) as readers:
            before, left = _show_the_one_delete(rt, readers, timeout, teller)
            with crew(where.folder) as hired, _logs_shown_on_failure(hired, teller):
                found = Night(rt, scale, teller, hired, readers).purge()
                verdict = judge(before, replace(found, left_by_one_delete=left, seconds=time.monotonic() - started))
                _show(verdict, readers, hired, teller)
        teller.say("servers, workers and beats stop; their folder goes")
    return verdict


def _set_the_scene(rt: Runtime, scale: Scale, teller: Teller) -> timedelta:
    migrate(rt.settings)
    teller.act(f"A table with {scale.tombstones:,} tombstones past their 90 days and {scale.live:,} live rows")
    started = time.monotonic()
    audience.fill(rt, scale)
    teller.say(f"written in {time.monotonic() - started:.1f} s, shuffled, the tombstones scrubbed of all credentials")
    teller.act("A statement timeout between the two ways to purge")
    for _ in range(TRIES):
        found = calibrate.measure(rt.db, scale)
        teller.say(f"one batch of {scale.batch_rows:,} rows takes {found.batch * 1000:,.0f} ms (rolled back)")
        teller.say(f"one DELETE of everything takes {found.one_delete * 1000:,.0f} ms (rolled back)")
        if found.timeout > timedelta(seconds=2 * found.batch) and found.timeout < timedelta(seconds=found.one_delete):
            teller.say(f"so PUSHOPS_STATEMENT_TIMEOUT={format_duration(found.timeout)} for both")
            return found.timeout
    raise PushopsError("expected one DELETE to take four times as long as a batch, got less: more --tombstones")


@contextmanager
def _audience(where: Stage, rt: Runtime, scale: Scale) -> Iterator[Readers]:
    living = range(scale.tombstones, scale.tombstones + scale.live)
    readers = Readers(where.database_url, rt.settings.db_schema, living, scale.READERS)
    with readers.reading():
        processes.wait_until(lambda: readers.reads("alone") >= ENOUGH_READS, START_SECONDS, "the readers to read")
        yield readers


def _show_the_one_delete(rt: Runtime, readers: Readers, timeout: timedelta, teller: Teller) -> tuple[Before, int]:
    teller.act(f"First, what one would write: one DELETE, while {readers.count} readers go on")
    readers.phase = "one DELETE"
    deleted = calibrate.try_one_delete(rt.db, timeout)
    readers.phase = "between"
    if deleted is not None:
        raise PushopsError(f"expected the DELETE to be cancelled, got {deleted} rows (rolled back): try again")
    before, left = _look_before(rt.db)
    teller.say(f"cancelled after {format_duration(timeout)}: {left:,} rows before, {left:,} rows after, nothing gained")
    teller.say(f"readers: {_waits(readers, 'one DELETE')} (alone: {_waits(readers, 'alone')})")
    return before, left


def _look_before(db: Database) -> tuple[Before, int]:
    with db.transaction(statement_timeout=audience.PATIENCE) as tx:
        rows = store.rows(tx)
    doomed = frozenset(row.id for row in rows if row.deleted)
    return Before(doomed, {row.id: row.state for row in rows if not row.deleted}), len(rows)


def _waits(readers: Readers, phase: str) -> str:
    return f"{readers.reads(phase):,} reads, p99 {readers.p99_ms(phase):.1f} ms, {len(readers.errors)} errors"


@contextmanager
def _logs_shown_on_failure(hired: Crew, teller: Teller) -> Iterator[None]:
    try:
        yield
    except PushopsError:
        _show_logs(hired, teller)
        raise


def _show_logs(hired: Crew, teller: Teller) -> None:
    for member in hired.members:
        teller.warn(f"--- {member.name}\n{member.tail()}")


def _show(verdict: Verdict, readers: Readers, hired: Crew, teller: Teller) -> None:
    teller.act("Expected against found")
    teller.table("", [check.row() for check in verdict.checks])
    teller.say(f"readers during the purge: {_waits(readers, 'purge')} (alone: p99 {readers.p99_ms('alone'):.1f} ms)")
    if not verdict.ok:
        _show_logs(hired, teller)
