"""What answers say of the push service, and of our key there: counted and decided on before any is believed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, assert_never
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import health, holds
from pushops.delivery.health import Why, Window
from pushops.delivery.observation import Kind, Observation, Observed
from pushops.delivery.store import guard as guard_store
from pushops.delivery.store import health as store
from pushops.delivery.store.health import Provider, Tally
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.settings import Settings

__all__ = ["Kind", "Observation", "Observed", "announce", "observe"]

# Whose codes explain why a push service is not sent to.
_BLAMED: Final[Mapping[Why, Kind]] = {Why.FAULTS: Kind.FAULTY, Why.GUARD: Kind.TERMINAL}


def observe(
    tx: Tx, settings: Settings, service: str, observations: Sequence[Observation], *, probe: bool = False
) -> Observed:
    """Count a batch of one push service's answers and decide on guard, health and holds.

    Call it first in the transaction that settles them: it locks the push service's row, behind which settlers queue.
    """
    provider = store.lock(tx, service)
    lanes = holds.settle(tx, settings, observations, probe=probe)
    dying = {one.endpoint_hash for one in observations if one.kind is Kind.TERMINAL and one.endpoint_hash}
    observations = once(observations, store.dead(tx, service, dying))
    tally = count(observations)
    store.count(tx, service, tally)
    recovered = provider.waits and tally.accepted > 0
    if recovered:
        store.set_recovered(tx, service)
    streak = streak_after(provider.streak, observations)
    if streak != provider.streak:
        store.set_streak(tx, service, streak)
    fine = tally.accepted + tally.throttled == tally.attempts
    window = Window() if fine else store.window(tx, service, settings.unhealthy_window)
    usual, opens = _guard(tx, settings, service, provider, window, streak)
    opened = None if opens is None else _open(tx, service, opens, window, streak, usual)
    waits = provider.waits and not recovered
    why = _trouble(settings, provider, window, streak, opened=opened is not None, waits=waits)
    code = None if why is None else _code(observations, _BLAMED[why])
    page = why is Why.FAULTS and provider.may_page
    if why is not None:
        store.set_unhealthy(tx, service, why, code, settings.unhealthy_probe, page=page)
    return Observed(
        service,
        guard_id=opened or provider.guard_id,
        opened_guard=opened,
        opened_why=opens,
        window=window,
        streak=streak,
        usual=usual,
        became_unhealthy=why,
        code=code,
        page=page,
        recovered=recovered,
        waits=waits or why is not None,
        others_succeed=health.others_succeed(window),
        opened_holds=lanes.opened,
        released_holds=lanes.released,
        held_lanes=lanes.held,
        lifted=lanes.lifted,
    )


def announce(rt: Runtime, observed: Observed) -> None:
    """Say what became so, after the commit: one page for each trouble."""
    if observed.opened_guard is not None:
        _announce_guard(rt, observed)
    elif observed.became_unhealthy is not None:
        rt.events.emit(
            "provider.unhealthy",
            Level.PAGE if observed.page else None,
            service=observed.service,
            why=observed.became_unhealthy,
            code=observed.code,
            attempts=observed.window.attempts,
            faults=observed.window.faults,
        )
    if observed.recovered:
        rt.events.emit("provider.recovered", service=observed.service)
    holds.announce(rt, observed.opened_holds, observed.released_holds, lifted=len(observed.lifted))


def _announce_guard(rt: Runtime, observed: Observed) -> None:
    rt.events.emit(
        "guard.opened",
        service=observed.service,
        guard=observed.opened_guard,
        why=observed.opened_why,
        answers=observed.window.answers,
        terminal=observed.window.terminal,
        streak=observed.streak,
        usual=observed.usual,
    )


def once(observations: Sequence[Observation], dead: Collection[bytes]) -> list[Observation]:
    """A subscription dies once an hour, and its faults are one to a batch: many messages to one browser are no outage.

    ``dead``: whose death has been counted.
    """
    seen = {(whose, Kind.TERMINAL) for whose in dead}
    kept = []
    for one in observations:
        what = (one.endpoint_hash, one.kind)
        if one.kind in _ONCE and one.endpoint_hash:
            if what in seen:
                continue
            seen.add(what)
        kept.append(one)
    return kept


_ONCE: Final = frozenset({Kind.TERMINAL, Kind.FAULTY})


def count(observations: Sequence[Observation]) -> Tally:
    """A death without a status, such as a host that never was, is an answer all the same."""
    tally = Tally(attempts=len(observations))
    for one in observations:
        tally.answers += one.answered or one.kind is Kind.TERMINAL
        match one.kind:
            case Kind.ACCEPTED:
                tally.accepted += 1
            case Kind.TERMINAL:
                tally.terminal += 1
            case Kind.THROTTLED:
                tally.throttled += 1
            case Kind.FAULTY:
                tally.faults += 1
            case Kind.DENIED | Kind.MISMATCH | Kind.OTHER:
                pass
            case _:
                assert_never(one.kind)
    return tally


def streak_after(streak: int, observations: Sequence[Observation]) -> int:
    """Deaths in a row: only a success ends the row, since a 429 or a 503 says nothing of who lives."""
    for one in observations:
        if one.kind is Kind.ACCEPTED:
            streak = 0
        elif one.kind is Kind.TERMINAL:
            streak += 1
    return streak


def _code(observations: Sequence[Observation], kind: Kind) -> str | None:
    return next((one.code for one in reversed(observations) if one.kind is kind), None)


def _guard(
    tx: Tx, settings: Settings, service: str, provider: Provider, window: Window, streak: int
) -> tuple[float | None, Why | None]:
    """The usual share of dead, and whether the guard opens on these answers."""
    if provider.guard_id is not None or not window.terminal:
        return provider.usual_share, None
    usual = store.usual(tx, service, provider, settings.guard_min)
    return usual, health.guard_opens(window, streak, usual, settings)


def _open(tx: Tx, service: str, why: Why, window: Window, streak: int, usual: float | None) -> UUID:
    detail = {"answers": window.answers, "terminal": window.terminal, "streak": streak, "usual": usual}
    return guard_store.open_guard(tx, service, why, detail)


def _trouble(
    settings: Settings, provider: Provider, window: Window, streak: int, *, opened: bool, waits: bool
) -> Why | None:
    """Why the push service begins to wait, if it does."""
    if opened:
        return Why.GUARD
    if waits:
        return None
    if provider.guard_id is not None and min(streak, window.terminal) >= settings.guard_streak:
        return Why.GUARD
    return Why.FAULTS if health.fails(window, settings) else None
