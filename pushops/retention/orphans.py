"""Objects that no message names: its maker died between the object and the row, or took the row back.

Only what opens with our keys is ours to delete: a store may be shared. One store belongs to one database all the same,
since another's payloads under the same keys look like orphans here.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.delivery import objects, payloads
from pushops.delivery.errors import PayloadMissingError, PayloadStoreError
from pushops.delivery.valves import reading
from pushops.errors import RefusedError
from pushops.events import Level
from pushops.retention import payload_rows
from pushops.retention.payload_rows import Named
from pushops.runtime import Runtime

NAME: Final = "purge-payloads"  # whoever pauses that pauses this
AGE: Final = timedelta(days=1)  # no transaction that makes a message lasts as long
BUDGET: Final = timedelta(seconds=60)  # of one task: its hard limit is far beyond
SHOWN: Final = 20
_REF: Final = re.compile(r"\d{4}/\d{2}/\d{2}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True)
class Orphans:
    """``orphans`` of ``seen`` objects are named by no message and older than a day; ``foreign`` ones are not ours.

    ``held``: too many of a page are orphans to believe it, or somebody paused; nothing of that page was deleted.
    ``after``: where to go on, if time was up. ``sample``: the first few names.
    """

    seen: int = 0
    orphans: int = 0
    foreign: int = 0
    deleted: int = 0
    held: int = 0
    why: str | None = None
    after: str | None = None
    sample: Sequence[str] = field(default_factory=tuple)


def find(
    rt: Runtime, *, delete: bool = False, force: bool = False, after: str = "", budget: timedelta | None = None
) -> Orphans:
    """Walk the store from ``after`` on, a page at a time, and delete what is found where that is asked.

    Raises PayloadStoreError. ``force`` deletes also where more than PUSHOPS_SWEEP_MAX_SHARE of a page would go.
    """
    until = float("inf") if budget is None else time.monotonic() + budget.total_seconds()
    found = Orphans()
    for page in objects.pages(rt.settings, after):
        found = _page(rt, found, page, delete=delete, force=force)
        if time.monotonic() > until:
            found = replace(found, after=page[-1])
            break
    if delete or found.orphans:
        rt.events.emit("payload.orphans", Level.WARNING if found.held else None, **_told(found))
    return found


def purge(rt: Runtime, after: str = "") -> Orphans:
    """A slice of the nightly look; another night finds what is left. RefusedError where ``after`` is no name."""
    if not isinstance(after, str) or (after and not _REF.fullmatch(after)):
        raise RefusedError("expected the name of an object to go on after, got something else")
    closed = reading(rt, NAME)
    if closed is not None:
        return _held(rt, closed.reason)
    try:
        return find(rt, delete=True, after=after, budget=BUDGET)
    except PayloadStoreError as error:
        return _held(rt, str(error))


def _held(rt: Runtime, why: str) -> Orphans:
    rt.events.emit("payload.orphans", Level.WARNING, why=why)
    return Orphans(why=why)


def _page(rt: Runtime, found: Orphans, page: Sequence[str], *, delete: bool, force: bool) -> Orphans:
    unnamed = _unnamed(rt, page)
    ours = [each.payload_ref for each in unnamed if _is_ours(rt, each)]
    sample = (*found.sample, *ours)[:SHOWN]
    found = replace(
        found,
        seen=found.seen + len(page),
        orphans=found.orphans + len(ours),
        foreign=found.foreign + len(unnamed) - len(ours),
        sample=sample,
    )
    if not delete or not ours:
        return found
    share = rt.settings.sweep_max_share
    if not force and (found.held or (len(page) == objects.PAGE and len(ours) > share * len(page))):
        why = f"more than {share:.0%} of the objects in a page are named by no message: is this their database?"
        return replace(found, held=found.held + len(ours), why=why)
    payloads.remove(rt, ours)
    return replace(found, deleted=found.deleted + len(ours))


def _unnamed(rt: Runtime, page: Sequence[str]) -> list[Named]:
    """What else lies in the folder of a day is nobody's business."""
    named = [Named(UUID(match[1]), ref) for ref in page if (match := _REF.fullmatch(ref))]
    with rt.db.transaction() as tx:
        return payload_rows.unnamed(tx, named, AGE)


def _is_ours(rt: Runtime, each: Named) -> bool:
    try:
        return payloads.is_ours(rt, each.message_id, each.payload_ref)
    except PayloadMissingError:
        return False


def _told(found: Orphans) -> dict[str, object]:
    return {name: getattr(found, name) for name in ("seen", "orphans", "foreign", "deleted", "held", "why")}
