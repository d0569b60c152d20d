"""What a run of a sweep would do, with nothing changed: rows, cut-offs, pages, valves, time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.errors import StatementTimeoutError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import gauge, history, plan, runs, sql, store
from pushops.sweeps.history import FirstKey
from pushops.sweeps.order import Order
from pushops.sweeps.runs import Size
from pushops.sweeps.store import ControlRow, RunRow
from pushops.sweeps.sweep import Sweep, Walk
from pushops.sweeps.valves import Reading

SAMPLE: Final = 5


@dataclass(frozen=True)
class Preview:
    """``eligible`` is exact, or None with ``unknown`` saying why; so are all that follow from it.

    ``quarantined`` entries are counted in ``eligible`` and would be left alone. ``readings`` are those that a run
    opened now would meet. ``pace_from`` is ``last runs`` or ``settings``, or ``nothing`` of what acts and never ran.
    ``notes`` say what may surprise of a table of yours.
    """

    sweep: str
    meaning: str
    eligible: int | None
    unknown: str | None
    table_rows: int | None
    oldest: str | None
    sample: list[str]
    windows: dict[str, timedelta]
    cutoffs: dict[str, datetime]
    walk: str
    batch_rows: int
    batches: int | None
    quarantined: int
    rows_per_s: float
    pace_from: str
    eta: timedelta | None
    open_run: UUID | None
    readings: list[Reading]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Known:
    """What the engine's own tables say."""

    now: datetime
    control: ControlRow | None
    open_run: RunRow | None
    quarantined: int
    pace: float | None


def preview(rt: Runtime, sweep: Sweep, order: Order) -> Preview:
    """Look at a sweep in read-only transactions; a count that takes too long is given up, not waited for."""
    notes = list(sweep.checked(rt)) if sweep.checked else []
    known = _look(rt, sweep, order.filter)
    windows = runs.windows_of(rt.settings, sweep)
    values = runs.params_at(sweep, known.now, windows, order.filter)
    size, unknown = _count(rt, sweep, values)
    first = _first(rt, sweep, values)
    walk = runs.walk_for(rt.settings, sweep, size, order.row_limit)
    page = runs.size_of(rt.settings, sweep, known.control, order.options)
    meant = size.eligible if size.eligible is None or order.row_limit is None else min(size.eligible, order.row_limit)
    rate = known.pace or (0.0 if sweep.acting else usual_pace(rt.settings, sweep, page))
    run = imagined(sweep, known.now, windows, walk, size, force=order.force)
    told = [window.name for window in sweep.windows if not window.silent]
    return Preview(
        sweep=sweep.name,
        meaning=sweep.meaning,
        eligible=size.eligible,
        unknown=unknown,
        table_rows=size.rows,
        oldest=first[0].key if first else None,
        sample=[row.identity for row in first],
        windows={name: windows[name] for name in told},
        cutoffs={name: run.cutoff_times[name] for name in told},
        walk=walk.value,
        batch_rows=page,
        batches=count_batches(walk, page, meant, size),
        quarantined=known.quarantined,
        rows_per_s=round(rate, 1),
        pace_from="last runs" if known.pace else "settings" if rate else "nothing",
        eta=timedelta(seconds=ceil(meant / rate)) if meant is not None and rate else None,
        open_run=known.open_run.run_id if known.open_run else None,
        readings=gauge.read(rt, sweep, run),
        notes=notes,
    )


def count_batches(walk: Walk, page: int, meant: int | None, size: Size) -> int | None:
    """How many pages the rows make; along the blocks every page covers as many blocks as hold a page's rows."""
    if meant is None:
        return None
    if walk is Walk.INDEX:
        return ceil(meant / page)
    return ceil(size.facts.blocks / plan.blocks_per_page(page, meant, size.rows, size.facts.blocks))


def usual_pace(settings: Settings, sweep: Sweep, page: int) -> float:
    """Rows per second where every batch takes its target and its pause, in as many slots as the sweep has."""
    milliseconds = settings.sweep_target_batch_ms + settings.sweep_pause_ms
    return page * runs.slots_of(settings, sweep) * 1000 / milliseconds


def imagined(
    sweep: Sweep, now: datetime, windows: Mapping[str, timedelta], walk: Walk, size: Size, *, force: bool
) -> RunRow:
    """The run that would be opened now, for the valves to look at."""
    return RunRow(
        run_id=UUID(int=0),
        sweep=sweep.name,
        state="running",
        why=None,
        started_by="preview",
        opened_at=now,
        cutoffs={name: (now - window).isoformat() for name, window in windows.items()},
        windows={name: window.total_seconds() for name, window in windows.items()},
        walk=walk.value,
        cursor=None,
        walk_end=None,
        walked=False,
        revisited=False,
        force=force,
        row_limit=None,
        eligible_rows=size.eligible,
        table_rows=size.rows,
        page_rows=None,
        rows_dispatched=0,
        pages=0,
        held_since=None,
        held_by=None,
        rung_at=None,
        budget_until=None,
        closed_at=None,
    )


@contextmanager
def _looking(rt: Runtime) -> Iterator[Tx]:
    with rt.db.transaction(statement_timeout=runs.COUNT_TIMEOUT) as tx:
        history.read_only(tx)
        yield tx


def _look(rt: Runtime, sweep: Sweep, filter_: str) -> _Known:
    with _looking(rt) as tx:
        return _Known(
            now=tx.now,
            control=store.control(tx, sweep.name),
            open_run=store.open_run_of(tx, sweep.name, filter_),
            quarantined=history.held_count(tx, sweep.name),
            pace=history.pace(tx, sweep.name),
        )


def _count(rt: Runtime, sweep: Sweep, values: Mapping[str, object]) -> tuple[Size, str | None]:
    with _looking(rt) as tx:
        facts = runs.facts_of(tx, sweep)
    try:
        with _looking(rt) as tx:
            rows = runs.count_rows(tx, sweep, facts)
            return Size(int(tx.scalar(sql.eligible(sweep), values)), rows, facts), None
    except StatementTimeoutError:
        return Size(None, None, facts), f"counting took longer than {runs.COUNT_TIMEOUT.total_seconds():.0f} s"


def _first(rt: Runtime, sweep: Sweep, values: Mapping[str, object]) -> list[FirstKey]:
    try:
        with _looking(rt) as tx:
            return tx.rows(sql.oldest(sweep), {**values, "limit": SAMPLE}, FirstKey)
    except StatementTimeoutError:
        return []
