"""Opening a run, holding it, and bringing it to its named end."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import RefusedError, StatementTimeoutError, TransientDatabaseError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import plan, sql, store
from pushops.sweeps.order import Order
from pushops.sweeps.store import ControlRow, NewBatch, RunRow, TableFacts
from pushops.sweeps.sweep import RunOptions, Sweep, Walk
from pushops.sweeps.valves import SHARE_FROM, Reading

COUNT_TIMEOUT: Final = timedelta(seconds=20)  # once a run; without an answer the brake does not know, and holds
FOLD_FROM: Final = 12_500  # rows that batches left aside: hundreds of batches share a write of the days
FOLD_TIMEOUT: Final = timedelta(seconds=20)  # of the last fold, which closes the run: a run that cannot fold stays open
ACT_LEASE: Final = timedelta(seconds=45)  # an act of ten seconds, a network deadline of 25, and its settlement
EXACT_BLOCKS: Final = 20_000  # tables under 160 MB are counted, larger ones are what analyze says they are


@dataclass(frozen=True)
class Size:
    """How much a run would take, out of how much; None where counting took too long."""

    eligible: int | None
    rows: int | None
    facts: TableFacts


def windows_of(settings: Settings, sweep: Sweep) -> dict[str, timedelta]:
    """The windows in force, by the name that the predicate knows them by."""
    return {w.name: sum((settings.window(name) for name in w.settings), w.length) for w in sweep.windows}


def seconds_of(settings: Settings, sweep: Sweep) -> dict[str, float]:
    """The windows in force as a run stores them."""
    return {name: value.total_seconds() for name, value in windows_of(settings, sweep).items()}


def as_seconds(windows: Mapping[str, timedelta]) -> str:
    return json.dumps({name: value.total_seconds() for name, value in windows.items()})


def cutoff_key(run: RunRow) -> str:
    """The cut-offs as a batch id is derived from them."""
    return json.dumps(run.cutoffs, sort_keys=True)


def slots_of(settings: Settings, sweep: Sweep) -> int:
    most = sweep.max_parallel
    return (most(settings) if callable(most) else most) or settings.sweep_max_parallel


def lease_of(settings: Settings, sweep: Sweep) -> timedelta:
    """How long a claim and a slot last without a sign of life; an act gives none."""
    if sweep.lease is not None:
        return sweep.lease(settings)
    return max(settings.sweep_lease, ACT_LEASE) if sweep.acting else settings.sweep_lease


def pause_of(settings: Settings, sweep: Sweep) -> timedelta:
    """Between two batches in a slot; what acts has a pace of its own, unless it says otherwise."""
    return timedelta() if sweep.acting and not sweep.paced else timedelta(milliseconds=settings.sweep_pause_ms)


def params_of(sweep: Sweep, run: RunRow) -> dict[str, Any]:
    """What the predicate asks of a run: cut-offs, floors and filter."""
    return {**run.cutoff_times, **sql.floors(sweep), **sql.filtered(sweep, run.filter)}


def params_at(sweep: Sweep, now: datetime, windows: Mapping[str, timedelta], filter_: str) -> dict[str, Any]:
    """The same for a run that would be opened now."""
    return {name: now - window for name, window in windows.items()} | {
        **sql.floors(sweep),
        **sql.filtered(sweep, filter_),
    }


def size_of(settings: Settings, sweep: Sweep, control: ControlRow | None, options: RunOptions) -> int:
    """How many rows the next page has: what the sweep says of itself, or what its batches taught."""
    if sweep.page_rows is not None:
        return sweep.page_rows(settings, options)
    return settings.sweep_batch_rows if sweep.acting else page_rows(settings, control)


def page_rows(settings: Settings, control: ControlRow | None) -> int:
    """How many rows a page should have by what batches taught."""
    learnt = control.batch_rows if control else None
    return plan.page_rows(learnt, settings.sweep_batch_rows, settings.sweep_pause_ms)


def share_of(settings: Settings, sweep: Sweep) -> float:
    """How much of its table a run may take without force."""
    return settings.sweep_max_share if sweep.max_share is None else sweep.max_share


def brake_of(settings: Settings, sweep: Sweep, run: RunRow) -> int | None:
    """How many rows a run may take of its table; None where no brake is on it."""
    braked = sweep.brake and not run.force and share_of(settings, sweep) < 1
    if not braked or run.table_rows is None or run.table_rows < SHARE_FROM:
        return None
    return int(share_of(settings, sweep) * run.table_rows)


def open_or_join(rt: Runtime, sweep: Sweep, order: Order) -> tuple[RunRow, bool]:
    """The sweep's open run for this filter, opened now or before; True where this call opened it.

    A run whose windows are no longer the settings' is stopped first: its cut-off is not what anybody wants now.
    """
    if sweep.admits is not None:
        sweep.admits(order.filter)
    windows = windows_of(rt.settings, sweep)
    with rt.db.transaction() as tx:
        store.ensure_control(tx, sweep.name, as_seconds(windows), slots_of(rt.settings, sweep))
        found = store.open_run_of(tx, sweep.name, order.filter)
        if found is not None and (reason := _superseded(found, windows, force=order.force)):
            _end(tx, found.run_id, "stopped", reason)
            found = None
    if found is not None:
        _check_same(found, order)
        return found, False
    if sweep.checked is not None:
        sweep.checked(rt)
    braked = sweep.brake and not order.force and share_of(rt.settings, sweep) < 1
    size = measure(rt, sweep, windows, order.filter, braked=braked)
    return _open(rt, sweep, windows, size, order)


def _check_same(run: RunRow, order: Order) -> None:
    """Who asks for something else must not believe that the open run does it."""
    if order.row_limit is not None and run.row_limit != order.row_limit:
        raise RefusedError(
            f"expected to open a run of at most {order.row_limit} rows, got run {run.run_id} open without it"
        )
    if run.options != json.loads(json.dumps(dict(order.options))):
        raise RefusedError(f"expected to open a run with these options, got run {run.run_id} open with others")


def _superseded(run: RunRow, windows: Mapping[str, timedelta], *, force: bool) -> str | None:
    """Why an open run must not go on: its cut-off is not what the settings say, or it waits for a force given now."""
    if run.windows != json.loads(as_seconds(windows)):
        return "the retention settings changed while the run was open"
    if force and not run.force and run.held_by == "share":
        return "a forced run took its place"
    return None


def _open(
    rt: Runtime,
    sweep: Sweep,
    windows: Mapping[str, timedelta],
    size: Size,
    order: Order,
) -> tuple[RunRow, bool]:
    walk = walk_for(rt.settings, sweep, size, order.row_limit)
    with rt.db.transaction() as tx:
        cutoffs = {name: (tx.now - window).isoformat() for name, window in windows.items()}
        values = {
            "sweep": sweep.name,
            "started_by": order.started_by,
            "cutoffs": json.dumps(cutoffs),
            "windows": as_seconds(windows),
            "walk": walk.value,
            "walk_end": [str(size.facts.blocks)] if walk is Walk.BLOCKS else None,
            "force": order.force,
            "row_limit": order.row_limit,
            "filter": order.filter,
            "options": json.dumps(dict(order.options)),
            "eligible_rows": size.eligible,
            "table_rows": size.rows,
        }
        opened = store.open_run(tx, values)
        found = opened or store.open_run_of(tx, sweep.name, order.filter)
    if found is None:  # opened and closed by another between two statements: look again
        return open_or_join(rt, sweep, order)
    if opened is None:
        _check_same(found, order)
    else:
        _announce(rt, found)
    return found, opened is not None


def _announce(rt: Runtime, run: RunRow) -> None:
    rt.events.emit(
        "sweep.opened",
        sweep=run.sweep,
        run=run.run_id,
        walk=run.walk,
        eligible=run.eligible_rows,
        cutoff=min(run.cutoffs.values(), default=None),
        windows=json.dumps(run.windows),
        started_by=run.started_by,
        filter=run.filter,
    )


def walk_for(settings: Settings, sweep: Sweep, size: Size, row_limit: int | None) -> Walk:
    """The setting decides where it names a walk; a limited run counts rows, which only the index walk does."""
    if not sweep.blocks or row_limit is not None or settings.sweep_walk == "index":
        return Walk.INDEX
    if settings.sweep_walk == "blocks":
        return Walk.BLOCKS
    return plan.choose_walk(size.eligible, size.facts)


def measure(rt: Runtime, sweep: Sweep, windows: Mapping[str, timedelta], filter_: str = "", *, braked: bool) -> Size:
    """Count the table and what is meant, to the end: the share's limit may be raised while the run waits.

    Where no brake asks, the planner's estimate is enough to choose a walk and to show progress.
    """
    with rt.db.transaction(statement_timeout=COUNT_TIMEOUT) as tx:
        facts = facts_of(tx, sweep)
        if not braked and facts.rows > 0:
            values = params_at(sweep, tx.now, windows, filter_)
            guess = tx.scalar(sql.estimate(sweep), values)[0]["Plan"]["Plan Rows"]
            return Size(int(guess), round(facts.rows), facts)
    try:
        with rt.db.transaction(statement_timeout=COUNT_TIMEOUT) as tx:
            values = params_at(sweep, tx.now, windows, filter_)
            eligible = int(tx.scalar(sql.eligible(sweep), values))
            rows = _count_up_to(tx, sweep, max(ceil(eligible / share_of(rt.settings, sweep)), SHARE_FROM) + 1)
    except StatementTimeoutError:
        return Size(None, None, facts)
    return Size(eligible, rows, facts)


def _count_up_to(tx: Tx, sweep: Sweep, most: int) -> int:
    """Count the table as far as the brake needs it: an estimate that is out of date must not let a run through."""
    return int(tx.scalar(sql.rows_up_to(sweep), {"most": most}))


def facts_of(tx: Tx, sweep: Sweep) -> TableFacts:
    return store.table_facts(tx, _plain(tx, sweep.table))


def count_rows(tx: Tx, sweep: Sweep, facts: TableFacts) -> int:
    if facts.rows > 0 and facts.blocks > EXACT_BLOCKS:
        return round(facts.rows)
    return int(tx.scalar(sql.literal(f"SELECT count(*) FROM {sweep.table}"), {}))


def _plain(tx: Tx, table: str) -> str:
    return table.replace("{schema}", tx.schema)


def hold(rt: Runtime, run: RunRow, reading: Reading) -> None:
    """Store why a run waits; lag that lasts past its limit stops it, since waiting for ever hides the problem."""
    limit = rt.settings.sweep_max_lag_give_up
    with rt.db.transaction() as tx:
        before = store.run(tx, run.run_id)
        if before is None or before.state != "running":
            return
        store.hold_run(tx, run.run_id, reading.valve, reading.reason)
        changed = before.held_by != reading.valve
        waited = timedelta() if changed or before.held_since is None else tx.now - before.held_since
        given_up = reading.valve == "lag" and waited > limit
        if given_up:
            _end(tx, run.run_id, "stopped", f"lag: {reading.reason}")
    if changed:
        rt.events.emit(
            "sweep.held",
            sweep=run.sweep,
            run=run.run_id,
            valve=reading.valve,
            reading=reading.state,
            reason=reading.reason,
        )
    if given_up:
        tell_closed(rt, run.run_id)


def unhold(rt: Runtime, run: RunRow) -> bool:
    with rt.db.transaction() as tx:
        released = store.unhold_run(tx, run.run_id)
    if released:
        rt.events.emit("sweep.resumed", sweep=run.sweep, run=run.run_id, valve=run.held_by)
    return released


def conclude(rt: Runtime, sweep: Sweep, run_id: UUID) -> RunRow | None:
    """Bring a run as far as it can go: set killers apart, look again at locked pages, close, pause, cancel.

    Returns the run afterwards; None where somebody else holds it or it is unknown. Closing commits
    synchronously, and with it every batch that committed before.
    """
    with rt.db.transaction(statement_timeout=FOLD_TIMEOUT) as tx:
        run = store.lock_run(tx, run_id)
        if run is None or run.closed_at is not None:
            return run
        killers = store.quarantine_killers(tx, run.sweep, run_id, run.walk, plan.DEATHS)
        _advance(tx, run)
        after = store.run(tx, run_id)
        if after is not None and after.closed_at is not None:
            _fold(tx, sweep)
    for batch in killers:
        rt.events.emit("sweep.quarantined", sweep=sweep.name, run=run_id, batch=batch, error="worker_lost")
    if after is not None and after.closed_at is not None:
        tell_closed(rt, run_id)
    return after


def fold(rt: Runtime, sweep: Sweep) -> None:
    """Fold what many batches left aside; what cannot be folded now is folded later."""
    if sweep.fold is None:
        return
    not_now = suppress(TransientDatabaseError, StatementTimeoutError)
    with not_now, rt.db.transaction(statement_timeout=FOLD_TIMEOUT) as tx:
        if tx.scalar(sweep.fold.waiting, {}) >= FOLD_FROM:
            tx.run(sweep.fold.merge, {})


def settle_asked(tx: Tx, run_id: UUID) -> None:
    """What was asked is done at once where no batch is in hand."""
    run = store.lock_run(tx, run_id)
    if run is not None and run.state in ("pausing", "cancelling"):
        _advance(tx, run)


def _fold(tx: Tx, sweep: Sweep) -> None:
    """After the look that found every batch settled: it sees what each of them left."""
    if sweep.fold is not None:
        tx.run(sweep.fold.merge, {})


def _advance(tx: Tx, run: RunRow) -> None:
    if run.state == "cancelling":
        store.cancel_batches(tx, run.run_id)  # waits for claims that are being made: look after it, not before
    left = store.ready(tx, run.run_id)
    if run.state == "cancelling":
        if not left.claimed:
            store.close_run(tx, run.run_id, "cancelled", run.why)
    elif run.state == "pausing" and not left.claimed:
        store.ask(tx, run.run_id, "paused", ["pausing"], run.why)
    elif run.state == "running" and run.walked and not (left.due or left.later or left.claimed):
        _revisit_or_close(tx, run)


def _revisit_or_close(tx: Tx, run: RunRow) -> None:
    locked = [] if run.revisited else store.locked_pages(tx, run.run_id)
    if locked:
        again = [
            NewBatch(plan.batch_id(run.run_id, cutoff_key(run), page.lo, page.hi, visit=2), page.lo, page.hi, None)
            for page in locked
        ]
        store.add_batches(tx, run.run_id, run.pages, plan.as_json(again), visit=2)
        store.mark_revisited(tx, run.run_id)
        return
    quarantined = store.progress(tx, run.run_id).quarantined
    store.close_run(tx, run.run_id, "done", f"{quarantined} quarantined" if quarantined else None)
    store.note_success(tx, run.sweep)


def _end(tx: Tx, run_id: UUID, state: str, why: str) -> None:
    """End a run now. What is in hand loses its claim, and with it its effect: nobody would look after it again.

    Closed first, so that no dispatcher writes another page.
    """
    store.close_run(tx, run_id, state, why)
    cancel_rest(tx, run_id)


def cancel_rest(tx: Tx, run_id: UUID) -> None:
    """Twice, since the first time may wait for a batch that is being cut, and only a later look sees its halves."""
    store.cancel_batches(tx, run_id, in_hand=True)
    store.cancel_batches(tx, run_id, in_hand=True)


def tell_closed(rt: Runtime, run_id: UUID) -> None:
    with rt.db.transaction() as tx:
        run, done = store.run(tx, run_id), store.progress(tx, run_id)
    if run is not None:
        rt.events.emit(
            "sweep.closed",
            sweep=run.sweep,
            run=run_id,
            state=run.state,
            why=run.why,
            rows=done.rows_done,
            batches=done.done,
            quarantined=done.quarantined,
            filter=run.filter,
            outcomes=json.dumps(run.outcomes),
        )
