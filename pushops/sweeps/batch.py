"""One batch: claimed, its predicate checked again, effect and receipt together or nothing at all."""

from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from pushops.db import Tx
from pushops.errors import (
    DatabaseError,
    LockTimeoutError,
    PushopsError,
    SetupError,
    StatementTimeoutError,
    TransientDatabaseError,
)
from pushops.sweeps import plan, runs, sql, store, valves
from pushops.sweeps.acting import act
from pushops.sweeps.shift import Applied, LostClaimError, Shift, settle
from pushops.sweeps.store import BatchRow, Middle
from pushops.sweeps.sweep import Batch, Sweep

__all__ = ["Shift", "claim", "execute"]

LOCK_TIMEOUT: Final = timedelta(milliseconds=100)  # the backstop behind FREE: then rows are taken one by one
LOCKED_RETRIES: Final = 2  # a lock behind a row, such as a child's, is one row's: the page is cut until it is alone
RETRIES: Final = 1  # a data error may have been a moment's; the second time the page is cut


def claim(shift: Shift, ids: list[UUID] | None) -> tuple[BatchRow, UUID] | None:
    """Take the next batch, counting the attempt in a transaction of its own before any work."""
    token = uuid4()
    values = {
        "sweep": shift.sweep.name,
        "slots": shift.slots,
        "holder": shift.holder,
        "run_id": shift.run.run_id,
        "ids": ids,
        "token": token,
        "worker": shift.worker,
        "lease": runs.lease_of(shift.rt.settings, shift.sweep),
        "deaths": plan.DEATHS,
    }
    with shift.rt.db.transaction(asynchronous=True, on=shift.own) as tx:
        row = store.claim(tx, values)
    return None if row is None else (row, token)


def execute(shift: Shift, row: BatchRow, token: UUID) -> bool:
    """Do a claimed batch; False where the shift had better end. A batch's failure is recorded, and others go on."""
    fields = {"sweep": shift.sweep.name, "run": shift.run.run_id, "batch": row.batch_id, "expected": row.expected}
    try:
        with shift.rt.events.span("sweep.batch", **fields, attempt=row.attempts, worker=shift.worker) as span:
            acting = shift.sweep.acting
            applied = act(shift, acting, row, token) if acting else _apply(shift, row, token)
            span["rows"], span["locked"] = applied.rows, applied.locked
            span["outcome"] = _outcome(applied)
    except LostClaimError:
        return True
    except Exception as error:  # noqa: BLE001  (whatever it was, it is this batch's own)
        return _record_failure(shift, row, token, error)
    if not shift.sweep.acting:
        _adapt(shift, applied)
    if applied.rest is not None:
        shift.rests.append(applied.rest)
    return applied.end != "stopped" and applied.rest is None


def _outcome(applied: Applied) -> str:
    if applied.end != "done":
        return applied.end
    return "applied" if applied.rows or applied.locked else "nothing_matched"


def _apply(shift: Shift, row: BatchRow, token: UUID) -> Applied:
    try:
        return _apply_once(shift, row, token, sure=False)
    except LockTimeoutError:
        return _apply_once(shift, row, token, sure=True)


def _apply_once(shift: Shift, row: BatchRow, token: UUID, *, sure: bool) -> Applied:
    """Effect and receipt in one transaction. It may commit asynchronously: they vanish together or not at all."""
    batch = shift.bind(row)
    planner = sql.plan_for(shift.run.walked_along)
    with shift.rt.db.transaction(lock_timeout=LOCK_TIMEOUT, asynchronous=True, planner=planner, on=shift.own) as tx:
        done = 0 if sure else _take(tx, shift.sweep, sql.free_rows(batch.clause), batch)
        locked = 0
        if sure or _incomplete(tx, row, done):
            more, locked = _take_rest(tx, shift.sweep, batch)
            done += more
        if shift.sweep.follow_up is not None:
            tx.run(shift.sweep.follow_up, batch.params)
        return Applied(done, locked, settle(tx, shift, row, token, done, locked))


def _incomplete(tx: Tx, row: BatchRow, done: int) -> bool:
    """Whether the page may hold more: fewer rows came than were counted, or, uncounted, some were skipped."""
    return bool(tx.scalar(sql.SKIPPED, {})) if row.expected is None else done < row.expected


def _take(tx: Tx, sweep: Sweep, selection: str, batch: Batch) -> int:
    return int(tx.scalar(sql.effect(sweep, selection), batch.params, prepare=False) or 0)


def _take_rest(tx: Tx, sweep: Sweep, batch: Batch) -> tuple[int, int]:
    """What the fast form left: rows that only looked held are taken, the others are counted as locked."""
    left = _count_left(tx, sweep, batch)
    if not left:
        return 0, 0
    done = _take(tx, sweep, sql.rows_that_lock(sweep, batch.clause), batch)
    return done, _count_left(tx, sweep, batch) if done < left else 0


def _count_left(tx: Tx, sweep: Sweep, batch: Batch) -> int:
    return int(tx.scalar(sql.count_left(sweep, batch.clause), batch.params, prepare=False))


def _adapt(shift: Shift, applied: Applied) -> None:
    """Let a page's duration size the pages to come. Pages of half the size asked for, or less, say too little."""
    settings = shift.rt.settings
    size = shift.run.page_rows or runs.page_rows(settings, None)
    if applied.rows * 2 <= size:
        return
    wanted = plan.target_ms(settings.sweep_target_batch_ms, settings.sweep_pause_ms)
    target = plan.next_page_rows(size, applied.seconds, wanted)
    if settings.sweep_pause_ms:
        target = min(target, max(size, settings.sweep_batch_rows))
    if target == size or target in shift.argued:
        return
    shift.argued.add(target)
    with shift.rt.db.transaction(asynchronous=True, on=shift.own) as tx:
        store.adapt(tx, shift.sweep.name, size, target, runs.page_rows(settings, None))


def _record_failure(shift: Shift, row: BatchRow, token: UUID, error: Exception) -> bool:
    """Transient errors wait; a timeout halves the page; anything else is tried again once, then cut.

    What is nobody's row's fault holds the run: a missing right would set every row apart, one by one.
    """
    text = str(error) if isinstance(error, PushopsError) else type(error).__name__
    match error:
        case SetupError():
            _put_back(shift, row, token, text)
            runs.hold(shift.rt, shift.run, valves.hold("setup", text))
            return False
        case StatementTimeoutError():
            if not shift.sweep.acting:
                _halve_size(shift)
            _cut(shift, row, token, text, failures=0)
        case LockTimeoutError() if row.failures >= LOCKED_RETRIES:
            _cut(shift, row, token, text, failures=LOCKED_RETRIES, locked=True)
        case TransientDatabaseError():
            _put_back(shift, row, token, text)
        case _ if row.failures < RETRIES:
            _put_back(shift, row, token, text)
        case _:
            _cut(shift, row, token, text, failures=RETRIES)
    return shift.own is not None or shift.conn is None


def _put_back(shift: Shift, row: BatchRow, token: UUID, error: str) -> None:
    with shift.rt.db.transaction(on=shift.own) as tx:
        store.fail(tx, row.batch_id, token, error, plan.back_off(row.failures))


def _halve_size(shift: Shift) -> None:
    default = runs.page_rows(shift.rt.settings, None)
    with shift.rt.db.transaction(on=shift.own) as tx:
        control = store.control(tx, shift.sweep.name)
        size = (control.batch_rows if control else None) or default
        store.adapt(tx, shift.sweep.name, size, plan.half(size), default)


def _cut(shift: Shift, row: BatchRow, token: UUID, error: str, *, failures: int, locked: bool = False) -> None:
    """Two pages in the place of one, or the last row alone into quarantine; put back where that fails too.

    A last row that is only ``locked`` counts as such, and is left to the run's second look and to the next run.
    """
    try:
        middle = _cut_once(shift, row, token, error, failures, locked=locked)
    except LostClaimError:
        return
    except DatabaseError:
        _put_back(shift, row, token, error)
        return
    if middle is not None and middle.total > 1:
        _tell(shift, "sweep.split", row, error, into=2)
    elif middle is not None and not locked:
        _tell(shift, "sweep.quarantined", row, error, identity=middle.identity)


def _cut_once(shift: Shift, row: BatchRow, token: UUID, error: str, failures: int, *, locked: bool) -> Middle | None:
    batch = shift.bind(row)
    with shift.rt.db.transaction(planner=sql.plan_for(shift.run.walked_along), on=shift.own) as tx:
        middle = tx.maybe(sql.middle(shift.sweep, shift.run.walked_along, batch.clause), batch.params, Middle)
        if middle is None:
            store.fail(tx, row.batch_id, token, error, plan.back_off(row.failures))
        elif middle.total == 1 and locked:
            settle(tx, shift, row, token, 0, 1)
        elif middle.total == 1:
            _isolate(tx, shift, row, token, middle, error)
        else:
            _split(tx, shift, row, token, middle, error, failures)
    return middle


def _isolate(tx: Tx, shift: Shift, row: BatchRow, token: UUID, middle: Middle, error: str) -> None:
    if store.set_apart(tx, row.batch_id, token, "quarantined", error):
        store.quarantine(tx, shift.sweep.name, row.batch_id, middle.identity, shift.run.walk, error)


def _split(tx: Tx, shift: Shift, row: BatchRow, token: UUID, middle: Middle, error: str, failures: int) -> None:
    if not store.set_apart(tx, row.batch_id, token, "split", error):
        return
    cutoffs = runs.cutoff_key(shift.run)
    parts = plan.halves(shift.run.run_id, cutoffs, row.lo, middle.key, row.hi, middle.total)
    store.add_batches(tx, shift.run.run_id, row.seq - 1, plan.as_json(parts), visit=row.visit, failures=failures)


def _tell(shift: Shift, name: str, row: BatchRow, error: str, **more: object) -> None:
    more |= {"sweep": shift.sweep.name, "run": shift.run.run_id, "batch": row.batch_id, "error": error}
    shift.rt.events.emit(name, None, **more)
