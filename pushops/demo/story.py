"""The story in order: the table, the one statement that cannot, the many small ones that can, the trouble, a campaign
with an outage after it, and the morning after that.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pushops
from pushops.db import Database
from pushops.db.migrate import migrate
from pushops.demo import audience, store
from pushops.demo.calibrate import Measured, measure, try_one_delete
from pushops.demo.campaign import judging as campaign
from pushops.demo.campaign.day import Day
from pushops.demo.campaign.desk import Desk
from pushops.demo.campaign.subscribers import Subscriber
from pushops.demo.crew import Crew, crew
from pushops.demo.morning import judging as morning
from pushops.demo.morning.morning import Morning
from pushops.demo.night import Night
from pushops.demo.readers import Readers
from pushops.demo.report import After, Before, Verdict, judge
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
            _set_the_scene(rt, scale, teller)
            measured = _compare(rt.db, scale, teller)
            with _audience(where, rt, scale) as readers:
                timeout = _show_the_one_delete(rt.db, measured, readers, teller)
                before = _look(rt.db, scale)
                teller.say(f"{len(before.doomed):,} tombstones are still there: nothing was gained")
                found = _purge(where, scale, timeout, readers, teller)
        purged = judge(before, replace(found, seconds=time.monotonic() - started))
        _show(purged, teller)
        _show_waits(readers, teller)
        everyone, sent = _send(where, scale, teller)
        _show(sent, teller)
        replayed = _replay(where, scale, everyone, teller)
        _show(replayed, teller)
        teller.say("servers, workers and beats stop; their folder goes")
        return purged + sent + replayed + _whole(sent, replayed, started)


def _whole(sent: Verdict, replayed: Verdict, started: float) -> Verdict:
    """What all acts have in common."""
    doubles = sum(int(str(one.numbers["double_sends"])) for one in (sent, replayed))
    return Verdict((), {"double_sends": doubles, "seconds": round(time.monotonic() - started, 1)})


def _set_the_scene(rt: Runtime, scale: Scale, teller: Teller) -> None:
    migrate(rt.settings)
    teller.act(f"A table with {scale.tombstones:,} tombstones past their 90 days and {scale.live:,} live rows")
    started = time.monotonic()
    audience.fill(rt, scale)
    teller.say(f"written in {time.monotonic() - started:.1f} s, shuffled, the tombstones scrubbed of all credentials")


def _compare(db: Database, scale: Scale, teller: Teller) -> Measured:
    teller.act("A statement timeout between the two ways to purge")
    for _ in range(TRIES):
        found = measure(db, scale)
        teller.say(f"one batch of {scale.batch_rows:,} rows takes {found.batch * 1000:,.0f} ms (rolled back)")
        teller.say(f"one DELETE of everything takes {found.one_delete * 1000:,.0f} ms (rolled back)")
        if found.fits(found.timeout):
            return found
    raise PushopsError("expected one DELETE to take four times as long as a batch, got less: more --tombstones")


@contextmanager
def _audience(where: Stage, rt: Runtime, scale: Scale) -> Iterator[Readers]:
    living = range(scale.tombstones, scale.tombstones + scale.live)
    readers = Readers(where.database_url, rt.settings.db_schema, living, scale.READERS)
    with readers.reading():
        processes.wait_until(lambda: readers.reads("alone") >= ENOUGH_READS, START_SECONDS, "the readers to read")
        yield readers


def _show_the_one_delete(db: Database, measured: Measured, readers: Readers, teller: Teller) -> timedelta:
    """Have it cancelled, under a timeout that a batch can keep; the timeout is what the rest runs under."""
    teller.act(f"First, what one would write: one DELETE, while {readers.count} readers go on")
    timeout = measured.timeout
    while measured.fits(timeout):
        teller.say(f"PUSHOPS_STATEMENT_TIMEOUT={format_duration(timeout)}, for this and for all that follows")
        readers.phase = "one DELETE"
        deleted = try_one_delete(db, timeout)
        readers.phase = "between"
        if deleted is None:
            teller.say(f"cancelled; readers: {_waits(readers, 'one DELETE')} (alone: {_waits(readers, 'alone')})")
            return timeout
        teller.say("the machine was quicker this time (rolled back): half of that, then")
        timeout /= 2
    raise PushopsError("expected the DELETE to be cancelled, got a machine that is too unsteady: more --tombstones")


def _purge(where: Stage, scale: Scale, timeout: timedelta, readers: Readers, teller: Teller) -> After:
    with runtime(where.limit(timeout)) as rt, crew(where.folder) as hired, _logs_shown_on_failure(hired, teller):
        return Night(rt, scale, teller, hired, readers).purge()


def _send(where: Stage, scale: Scale, teller: Teller) -> tuple[list[Subscriber], Verdict]:
    settings, folder = where.sending()
    with pushops.open(settings) as ops, crew(folder) as hired, _logs_shown_on_failure(hired, teller):
        desk = Desk(ops, where.push, teller)
        day = Day(ops.runtime, desk, scale, teller, hired)
        planned, seen = day.tell()
        _send_home(hired)
    return day.everyone, campaign.judge(planned, seen)


def _replay(where: Stage, scale: Scale, everyone: list[Subscriber], teller: Teller) -> Verdict:
    settings, folder = where.replaying(scale)
    with pushops.open(settings) as ops, crew(folder) as hired, _logs_shown_on_failure(hired, teller):
        planned, seen = Morning(ops, where.push, scale, teller, hired, everyone).tell()
        _send_home(hired)
    return morning.judge(planned, seen)


def _send_home(hired: Crew) -> None:
    hired.dismiss(hired.beats)
    hired.dismiss(hired.workers)


def _look(db: Database, scale: Scale) -> Before:
    with db.transaction(statement_timeout=audience.PATIENCE) as tx:
        rows = store.rows(tx)
    doomed = frozenset(row.id for row in rows if row.deleted)
    return Before(scale.tombstones + scale.live, doomed, {row.id: row.state for row in rows if not row.deleted})


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


def _show(verdict: Verdict, teller: Teller) -> None:
    teller.act("Expected against found")
    teller.table([check.row() for check in verdict.checks])


def _show_waits(readers: Readers, teller: Teller) -> None:
    teller.say(f"readers during the purge: {_waits(readers, 'purge')} (alone: p99 {readers.p99_ms('alone'):.1f} ms)")
