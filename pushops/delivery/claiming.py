"""Taking rows that are due, within the push services' rates; from lanes that are held only a probe at a time."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import holds
from pushops.delivery.store import lanes as lanes_store
from pushops.delivery.store import ledger
from pushops.delivery.store.lanes import Lane
from pushops.delivery.store.ledger import Claimed
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX

PROBE_TRIES: Final = 100
FOR_EVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Taken:
    """What a claim brought, and when by the database's clock.

    ``more``: the limit was reached, or what was picked had ended, so that more may be due. ``limited``: nothing may be
    sent at the moment, by the push service's rate.
    """

    rows: list[Claimed]
    at: datetime = FOR_EVER
    probe: bool = False
    more: bool = False
    limited: bool = False


def take(
    rt: Runtime,
    service: str,
    lanes: Sequence[Lane],
    *,
    token: UUID,
    lease: timedelta,
    limit: int,
    without: Collection[UUID] = (),
) -> Taken:
    """Claim one probe if it is time, whatever else is due; else rows of those lanes that may be sent to.

    ``without``: messages to leave alone.
    """
    going = [lane.lane_id for lane in lanes if not lane.held and not lane.waits]
    probe = _take_probe(rt, service, lanes, token=token, lease=lease, more=bool(going))
    if probe.rows or not going:
        return probe
    return _take(rt, service, going, token=token, lease=lease, limit=limit, without=without)


def _take(
    rt: Runtime,
    service: str,
    lanes: Sequence[int],
    *,
    token: UUID,
    lease: timedelta,
    limit: int,
    without: Collection[UUID],
) -> Taken:
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        allowed = min(limit, lanes_store.lock_rate(tx, service, rt.settings.rate_of(service)))
        if allowed < 1:
            return Taken([], more=True, limited=True)
        rows = ledger.claim(tx, lanes, token=token, lease=lease, limit=allowed, horizon=tx.now, without=without)
        lanes_store.take(tx, service, len(rows))
        picked = rows[0].picked if rows else 0
        more = picked == allowed or (not rows and not without and ledger.any_due(tx, lanes, tx.now))
    return Taken(rows, tx.now, more=more)


def _take_probe(
    rt: Runtime, service: str, lanes: Sequence[Lane], *, token: UUID, lease: timedelta, more: bool
) -> Taken:
    """One row of a lane that is held or a push service that is unhealthy, for whoever moves the probe's clock.

    Another lane each time, the held ones last: what a lane that is at fault alone answers says nothing of its service.
    """
    for lane in sorted(lanes, key=lambda lane: (lane.held, random.random())):  # noqa: S311  (keeps no secret)
        if not (lane.held or lane.waits) or not (lane.probe_due if lane.held else lane.provider_probe_due):
            continue
        with rt.db.transaction(planner=PLAN_INDEX) as tx:
            if not _clock_is_ours(tx, rt, service, lane):
                continue
            rows = _claim_one(tx, lane.lane_id, rt.settings.unhealthy_probe, token=token, lease=lease)
        if rows:
            return Taken(rows, tx.now, probe=True, more=more)
    return Taken([])


def _claim_one(tx: Tx, lane: int, every: timedelta, *, token: UUID, lease: timedelta) -> list[Claimed]:
    """The first row that may be sent: of those that may not, each would cost the probe its turn.

    Before the one that was the last probe, however urgent, those that have waited for longer than between two probes.
    """
    for horizon in (tx.now - every, FOR_EVER):
        for _ in range(PROBE_TRIES):
            rows = ledger.claim(tx, [lane], token=token, lease=lease, limit=1, horizon=horizon)
            if rows:
                return rows
            if not ledger.any_due(tx, [lane], horizon):
                break
    return []


def _clock_is_ours(tx: Tx, rt: Runtime, service: str, lane: Lane) -> bool:
    every = rt.settings.unhealthy_probe
    if lane.waits and not holds.take_probe(tx, service, every):
        return False
    return not lane.held or holds.take_lane_probe(tx, lane.lane_id, every)
