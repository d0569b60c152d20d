"""Pure decisions of the engine: identities, page sizes, which way to walk, when to try again."""

import json
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.sweeps.store import NewBatch, PageEnd, TableFacts
from pushops.sweeps.sweep import Walk

SMALLEST_PAGE: Final = 250
LARGEST_PAGE: Final = 20_000
# A pause is asked for live traffic's sake, and so is a small page: what registers waits for the flush of all the log
# before its own, and what reads for one of the cores.
GENTLE_PAGE: Final = 2_000
GENTLE_SHARE: Final = 10  # a batch aims at this part of the pause after it
DEATHS: Final = 3  # claims without a settlement before a batch counts as a killer
# Along the blocks from this many eligible rows a block on: every block is visited anyway, and heap order, which
# may be random against the index, no longer matters. Below it the index visits far fewer blocks.
BLOCKS_FROM: Final = 2.0
_NAMESPACE: Final = UUID("5f0e1d8e-6a52-4c61-9d0b-1f6f2a6d7c11")


def batch_id(run_id: UUID, cutoffs: str, lo: Sequence[str] | None, hi: Sequence[str], visit: int = 1) -> UUID:
    """The same page of the same run has the same id, whoever writes it down; another cut-off has another."""
    text = json.dumps([str(run_id), cutoffs, list(lo) if lo else None, list(hi), visit], separators=(",", ":"))
    return uuid.uuid5(_NAMESPACE, text)


def choose_walk(eligible: int | None, facts: TableFacts) -> Walk:
    """Blocks where the eligible rows are dense, the index otherwise and wherever nobody knows."""
    if eligible is None or facts.blocks == 0 or eligible < facts.blocks * BLOCKS_FROM:
        return Walk.INDEX
    return Walk.BLOCKS


def blocks_per_page(page_rows: int, eligible: int, rows: int | None, blocks: int, *, guessed: bool = False) -> int:
    """So many blocks that about ``page_rows`` eligible rows lie in them, and never more rows than the largest page.

    Where the eligible rows are the planner's guess, never more than twice ``page_rows`` in all: of conditions that
    depend on each other it is too low by half and more, and a page must not become what nobody asked for.
    """
    wanted = round(page_rows * blocks / max(eligible, 1))
    largest = min(LARGEST_PAGE, 2 * page_rows) if guessed else LARGEST_PAGE
    most = round(largest * blocks / max(rows or 0, eligible, 1))
    return max(1, min(wanted, most))


def block_pages(run_id: UUID, cutoffs: str, first: int, step: int, end: int, count: int) -> list[NewBatch]:
    """Up to ``count`` pages of ``step`` blocks from block ``first`` on; ``(n,0)`` stands before n's first row."""
    pages = []
    for start in range(first, min(end, first + step * count), step):
        lo, hi = [f"({start},0)"], [f"({min(start + step, end)},0)"]
        pages.append(NewBatch(batch_id(run_id, cutoffs, lo, hi), lo, hi, None))
    return pages


def index_pages(run_id: UUID, cutoffs: str, cursor: list[str] | None, ends: Sequence[PageEnd]) -> list[NewBatch]:
    """Pages between neighbouring ends, each with the rows that were counted in it."""
    pages, lo, before = [], cursor, 0
    for end in ends:
        pages.append(NewBatch(batch_id(run_id, cutoffs, lo, end.hi), lo, end.hi, end.n - before))
        lo, before = end.hi, end.n
    return pages


def halves(
    run_id: UUID, cutoffs: str, lo: list[str] | None, middle: list[str], hi: list[str], total: int
) -> list[NewBatch]:
    """Two pages in the place of one, cut after its middle row."""
    left = (total + 1) // 2
    return [
        NewBatch(batch_id(run_id, cutoffs, lo, middle), lo, middle, left),
        NewBatch(batch_id(run_id, cutoffs, middle, hi), middle, hi, total - left),
    ]


def page_rows(learnt: int | None, asked: int, pause_ms: int) -> int:
    """The size of the pages to be written: what batches taught, or the setting; with a pause never above the latter."""
    if not pause_ms:
        return learnt or asked
    return min(learnt or GENTLE_PAGE, asked)


def target_ms(asked: int, pause_ms: int) -> int:
    """How long a batch should take: no more than a small part of the pause that is asked for."""
    return min(asked, max(1, pause_ms // GENTLE_SHARE)) if pause_ms else asked


def next_page_rows(size: int, seconds: float, target_ms: int) -> int:
    """The page size that this batch argues for: a quarter more below half the target, half at four times it."""
    milliseconds = seconds * 1000
    if milliseconds < target_ms / 2:
        return min(LARGEST_PAGE, max(size, round(size * 1.25)))
    if milliseconds > target_ms * 4:
        return half(size)
    return size


def half(size: int) -> int:
    """Half a page, down to the smallest; a page that was asked to be smaller stays as it is."""
    return max(min(size, SMALLEST_PAGE), size // 2)


def back_off(failures: int) -> timedelta:
    """1, 2, 4, ... seconds, a minute at most."""
    return timedelta(seconds=min(60, 2 ** min(failures, 6)))


def as_json(pages: Sequence[NewBatch]) -> str:
    """The pages as one parameter."""
    return json.dumps(
        [{"batch_id": str(p.batch_id), "lo": p.lo, "hi": p.hi, "expected": p.expected} for p in pages],
        separators=(",", ":"),
    )
