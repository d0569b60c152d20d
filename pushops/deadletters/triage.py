"""What waits for an operator: letters in groups, and beneath them what is no letter because everybody has it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pushops.deadletters.filters import Filter
from pushops.deadletters.store import triage as store
from pushops.deadletters.store.triage import Fault, GroupRow
from pushops.errors import RefusedError
from pushops.runtime import Runtime

PATIENCE: Final = timedelta(seconds=20)  # ten million letters are grouped within it
NEW: Final = timedelta(days=1)
MOST_GROUPS: Final = 10_000
MOST_MESSAGES: Final = 20_000  # of a campaign; with more its recipients are not counted
MOST_WAITING: Final = 100_000

# What is named differs from call to call, and so does the index that finds it: no plan is kept for them all. An index
# that holds all that is read beats the table by as much as its pages are fewer, wherever they lie.
PLANNER: Final = {"plan_cache_mode": "force_custom_plan", "jit": "off", "random_page_cost": "1.1"}


@dataclass(frozen=True)
class Group:
    """Letters that are parked, or in a drain's hands, and alike.

    ``campaign_share``: of the recipients of its campaign, None where those are not known. ``oldest``: for how long
    the first has lain here; ``ttl_used``: how much of their time to live they have lain here, on average.
    ``replayable``: those that may be sent again and have a minute left. ``new``: none of it was parked before.
    """

    error_class: str
    error_code: str
    endpoint_host: str
    campaign_id: str | None
    letters: int
    campaign_share: float | None
    oldest: timedelta
    ttl_used: float
    replayable: int
    replayable_share: float
    first_seen: datetime
    last_seen: datetime
    new: bool


@dataclass(frozen=True)
class Triage:
    """The largest groups first; ``letters`` and ``all_groups`` count those that are not shown, too."""

    at: datetime
    new_since: datetime
    letters: int
    all_groups: int
    groups: tuple[Group, ...]
    faults: tuple[Fault, ...]


def triage(rt: Runtime, meant: Filter | None = None, *, new_since: datetime | None = None, limit: int = 50) -> Triage:
    """Group what is parked by class, code, host and campaign. A million letters take half a second.

    ``new_since``: a day ago unless said. Raises RefusedError, and StatementTimeoutError after 20 s.
    """
    if not 1 <= limit <= MOST_GROUPS:
        raise RefusedError(f"expected a limit from 1 to {MOST_GROUPS}, got {limit}")
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLANNER) as tx:
        rows = store.groups(tx, meant or Filter(), limit)
        campaigns = sorted({row.campaign_id for row in rows if row.campaign_id is not None})
        found = {one.name: one.recipients for one in store.recipients(tx, campaigns, MOST_MESSAGES)}
        faults = store.faults(tx, MOST_WAITING)
    since = new_since or tx.now - NEW
    groups = tuple(_group(row, found.get(row.campaign_id or ""), tx.now, since) for row in rows)
    return Triage(
        at=tx.now,
        new_since=since,
        letters=rows[0].all_letters if rows else 0,
        all_groups=rows[0].groups if rows else 0,
        groups=groups,
        faults=tuple(faults),
    )


def _group(row: GroupRow, recipients: int | None, now: datetime, since: datetime) -> Group:
    left_out = {"groups", "all_letters"}
    values: dict[str, Any] = {name: getattr(row, name) for name in GroupRow.__slots__ if name not in left_out}
    share = row.letters / recipients if recipients else None
    return Group(
        **values,
        campaign_share=share,
        replayable_share=row.replayable / row.letters,
        oldest=now - row.first_seen,
        new=row.first_seen >= since,
    )
