"""Holds: a host under one of our keys is not sent to while our key or configuration is refused there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import health
from pushops.delivery.observation import OUR_FAULT, Kind, Observation
from pushops.delivery.store import health as health_store
from pushops.delivery.store import holds as store
from pushops.delivery.store.holds import Hold, Lane, Lifted, Opened, Released
from pushops.errors import NotFoundError
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.store import auditing

LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)
BY_PROBE: Final = "probe"
BY_CAUSE: Final = "cause"
NO_KEY: Final = "unknown_vapid_key"  # rows name a VAPID key that is not configured
CANNOT_SIGN: Final = "vapid_sign"  # what the classifier calls that, and a key that is there and does not sign
COUNTING: Final = timedelta(seconds=30)  # the messages behind every hold


@dataclass(frozen=True)
class Lanes:
    """What became of the lanes that a batch was sent through."""

    opened: tuple[Opened, ...] = ()
    released: tuple[Released, ...] = ()
    held: frozenset[int] = frozenset()
    lifted: tuple[Lifted, ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """What a batch says of one lane. ``faults``: the times of those of ours since the last success, and whose."""

    succeeded: bool
    faults: tuple[datetime, ...]
    faults_of: tuple[int, ...]
    answers: int
    code: str


def take_probe(tx: Tx, service: str, every: timedelta) -> bool:
    """Whether the next message to a push service that waits is ours to send; then nobody's until ``every`` is over."""
    return health_store.take_probe(tx, service, every)


def take_lane_probe(tx: Tx, lane_id: int, every: timedelta) -> bool:
    """The same for a lane that is held."""
    return store.take_probe(tx, lane_id, every)


def open_for_cause(rt: Runtime, lane_id: int, code: str, why: str | None = None) -> Opened | None:
    """Hold a lane for a fault that no answer tells of, and page once; None where it is held already."""
    with rt.db.transaction() as tx:
        opened = store.open_hold(tx, lane_id, code, why, 0, rt.settings.unhealthy_probe)
    if opened is not None:
        announce(rt, [opened], ())
    return opened


def settle(tx: Tx, settings: Settings, observations: Sequence[Observation], *, probe: bool) -> Lanes:
    """Count the answers of each lane, release those that had a success and hold those whose faults are ours."""
    by_lane: dict[int, list[Observation]] = {}
    for one in observations:
        by_lane.setdefault(one.lane_id, []).append(one)
    lanes = store.lock_lanes(tx, sorted(by_lane))
    stories = {lane.lane_id: tell(lane, by_lane[lane.lane_id], tx.now, settings) for lane in lanes}
    succeeded = [lane_id for lane_id, story in stories.items() if story.succeeded]
    if succeeded:
        store.succeeded(tx, succeeded)
    found = [_settle(tx, settings, lane, stories[lane.lane_id], len(by_lane[lane.lane_id]), probe) for lane in lanes]
    return Lanes(
        tuple(one.opened for one in found if one.opened),
        tuple(one.released for one in found if one.released),
        frozenset(one.lane_id for one in found if one.held),
        tuple(lifted for one in found for lifted in one.lifted),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    lane_id: int
    held: bool
    opened: Opened | None = None
    released: Released | None = None
    lifted: Sequence[Lifted] = ()


def _settle(tx: Tx, settings: Settings, lane: Lane, story: Story, answers: int, probe: bool) -> _Done:
    """One lane: a success releases it, and what came after may hold it anew."""
    held = lane.hold_id is not None
    released = store.release(tx, lane.lane_id, BY_PROBE) if held and story.succeeded else None
    if held and not story.succeeded:
        store.answered(tx, lane.lane_id, answers, int(probe))
        return _Done(lane.lane_id, held=True)
    if not health.holds(story.faults, story.faults_of, tx.now, settings):
        if story.faults != (() if story.succeeded else tuple(lane.faults)):
            store.set_faults(tx, lane.lane_id, story.faults, story.faults_of)
        return _Done(lane.lane_id, held=False, released=released)
    missing = story.code == CANNOT_SIGN and lane.vapid_key_id not in keychain(settings).vapid
    code = NO_KEY if missing else story.code
    opened = store.open_hold(tx, lane.lane_id, code, None, story.answers, settings.unhealthy_probe)
    since = tx.now if story.succeeded else lane.last_success_at or LONG_AGO
    lifted = store.lift(tx, lane.push_service, lane.lane_id, since)
    return _Done(lane.lane_id, held=True, opened=opened, released=released, lifted=lifted)


def tell(lane: Lane, observations: Sequence[Observation], now: datetime, settings: Settings) -> Story:
    """Pure: the faults since the last success, the newest as many as a hold takes."""
    faults, whose = list(lane.faults), list(lane.faults_of)
    succeeded, answers, code = False, 0, ""
    for one in observations:
        if one.kind is Kind.ACCEPTED:
            faults, whose, succeeded, answers = [], [], True, 0
        elif one.kind in OUR_FAULT:
            faults.append(now)
            whose.append(one.subject)
            answers += 1
            code = one.code
    most = settings.hold_faults
    return Story(succeeded, tuple(faults[-most:]), tuple(whose[-most:]), answers, code)


def announce(rt: Runtime, opened: Sequence[Opened], released: Sequence[Released], *, lifted: int = 0) -> None:
    """One page for each lane that begins to be held; a lane that was so lately wakes nobody again."""
    for hold in opened:
        rt.events.emit("hold.opened", None if hold.page else Level.WARNING, **_who(hold), lifted=lifted)
    for done in released:
        rt.events.emit("hold.released", **_who(done), members=done.members)


def _who(hold: Opened | Released) -> dict[str, Any]:
    return {
        "hold": hold.hold_id,
        "service": hold.push_service,
        "host": hold.host,
        "key": hold.vapid_key_id,
        "code": hold.code,
    }


def list_holds(rt: Runtime, *, released: bool = False, limit: int = 100) -> list[Hold]:
    """Holds that are open, or all, newest first; members are the messages that wait, counted now."""
    with rt.db.transaction(statement_timeout=COUNTING) as tx:
        return store.listed(tx, released=released, limit=limit)


def release(rt: Runtime, hold_id: UUID, *, actor: str, why: str) -> Released:
    """End a hold: its lane is sent to at once, and held again if our key is still refused. Raises NotFoundError."""
    with rt.db.transaction() as tx:
        lane = store.lane_of(tx, hold_id)
        done = None if lane is None else store.release(tx, lane, actor, why)
        if done is None:
            raise NotFoundError(f"expected a hold that is open, got {hold_id}")
        auditing.note(tx, "hold_release", actor, {"hold": str(hold_id), "host": done.host, "why": why})
    rt.events.emit("hold.released", **_who(done), members=done.members, actor=actor, why=why)
    return done


def release_by_cause(rt: Runtime) -> int:
    """Release what was held because a VAPID key was missing, where it is here now; how many.

    Other faults show their end to the probe only.
    """
    with rt.db.transaction() as tx:
        found = store.open_by_code(tx, [NO_KEY])
        mended = [hold for hold in found if hold.vapid_key_id in keychain(rt.settings).vapid]
        done = [freed for hold in mended if (freed := store.release(tx, hold.lane_id, BY_CAUSE))]
    announce(rt, (), done)
    return len(done)


def holds_like(rt: Runtime, prefix: str) -> list[UUID]:
    """Open holds whose ids begin so, two at most."""
    with rt.db.transaction() as tx:
        return store.like(tx, prefix)
