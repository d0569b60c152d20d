"""What operators see of push services, and how they stop and start sending: to one, under a key, of a campaign."""

import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, assert_never

from pushops.delivery.store import providers as store
from pushops.delivery.store.providers import Listed, Pause
from pushops.errors import NotFoundError
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.store import auditing
from pushops.sweeps.sql import PLAN_INDEX

LATELY: Final = timedelta(minutes=5)
COUNTING: Final = timedelta(seconds=30)
PAGE: Final = 5_000
WAKING: Final = timedelta(seconds=30)


class Pausable(StrEnum):
    """What sending can be paused for."""

    PROVIDER = "provider"
    KEY = "key"
    CAMPAIGN = "campaign"


@dataclass(frozen=True)
class Provider:
    """A push service and, in ``waits``, each reason why not all that is due goes out."""

    now: Listed
    waits: tuple[str, ...]


def list_providers(rt: Runtime) -> list[Provider]:
    with rt.db.transaction(statement_timeout=COUNTING) as tx:
        return [Provider(found, why_it_waits(found)) for found in store.listed(tx, LATELY)]


def why_it_waits(found: Listed) -> tuple[str, ...]:
    """Pure: the reasons, the gravest first; none where all goes out at its rate."""
    reasons = []
    if found.paused_at is not None:
        reasons.append(f"paused by {found.paused_by}" + (f": {found.paused_why}" if found.paused_why else ""))
    if found.guard_open:
        reasons.append("guard open: evidence waits for pushops guard accept or reject")
    if found.unhealthy_at is not None:
        code = f" ({found.unhealthy_code})" if found.unhealthy_code else ""
        reasons.append(f"unhealthy: {found.unhealthy_why}{code}, only probes go out")
    reasons += [f"hold on {hold}" for hold in found.holds]
    if found.factor < 1:
        reasons.append(f"throttled to {found.factor:.0%} of its rate")
    return tuple(reasons)


def list_pauses(rt: Runtime) -> list[Pause]:
    with rt.db.transaction() as tx:
        return store.paused(tx)


def pause(rt: Runtime, kind: Pausable, name: str, *, actor: str, why: str | None = None) -> bool:
    """Send nothing more to a push service, under a key or of a campaign; whether it was not paused already.

    What is on its way ends as it ends. Raises NotFoundError for a push service or key that nobody knows.
    """
    _check(rt, kind, name)
    with rt.db.transaction() as tx:
        done = store.pause(tx, kind, name, actor, why)
        if done:
            auditing.note(tx, "pause", actor, {"kind": kind, "name": name, "why": why})
    if done:
        rt.events.emit("send.paused", kind=kind, what=name, verb="pause", actor=actor)
    return done


def resume(rt: Runtime, kind: Pausable, name: str, *, actor: str) -> bool:
    """Go on; whether it was paused. What expired meanwhile ends as that."""
    with rt.db.transaction() as tx:
        done = store.resume(tx, kind, name)
        if done:
            auditing.note(tx, "resume", actor, {"kind": kind, "name": name})
    if done:
        rt.events.emit("send.paused", kind=kind, what=name, verb="resume", actor=actor)
    wake(rt, WAKING)
    return done


def wake(rt: Runtime, budget: timedelta) -> int:
    """Make what paused campaigns had set aside due again, where they go on. Safe to interrupt: beat goes on with it."""
    ends = time.monotonic() + budget.total_seconds()
    rows = 0
    while True:
        with rt.db.transaction(planner=PLAN_INDEX) as tx:
            woken = store.wake(tx, PAGE)
        rows += woken
        if woken < PAGE or time.monotonic() > ends:
            return rows


def _check(rt: Runtime, kind: Pausable, name: str) -> None:
    """A campaign may be paused before its first message; a push service or a key that is not known is a slip."""
    chain = keychain(rt.settings)
    match kind:
        case Pausable.CAMPAIGN:
            return
        case Pausable.PROVIDER:
            known = {rule.service for rule in chain.rules.hosts}
        case Pausable.KEY:
            known = set(chain.vapid)
        case _:
            assert_never(kind)
    if name in known:
        return
    with rt.db.transaction() as tx:
        known |= store.names(tx, kind)
    if name not in known:
        raise NotFoundError(f"expected a {kind} that is known ({', '.join(sorted(known))}), got {name!r}")
