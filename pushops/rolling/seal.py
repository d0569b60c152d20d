"""Rolling seal keys: what is sealed with which, sealing it with the current one, and letting an old one go."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pushops.db import Tx
from pushops.errors import RefusedError, StatementTimeoutError
from pushops.rolling import store
from pushops.rolling.resealing import NAME, RESEAL_AUTH
from pushops.rolling.turn import Turn
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.store import auditing
from pushops.sweeps import service
from pushops.sweeps import store as engine
from pushops.sweeps.dispatch import Bell, Dispatched, dispatch
from pushops.sweeps.order import Order
from pushops.sweeps.sql import PLAN_INDEX

COUNT_TIMEOUT: Final = timedelta(seconds=20)


@dataclass(frozen=True)
class SealUse:
    """What one version of the seal key is needed for.

    ``rows`` is None where counting took too long; ``apart`` of them are in quarantine, since they do not open.
    ``staged`` are rows of imports that run. ``until`` is when the last of the messages is over, None while one of them
    has no end yet.
    """

    version: int
    held: bool
    current: bool
    rows: int | None = 0
    apart: int = 0
    staged: int = 0
    messages: int = 0
    until: datetime | None = None

    @property
    def used(self) -> bool:
        return self.rows != 0 or self.messages > 0 or self.staged > 0


def usage(rt: Runtime) -> list[SealUse]:
    """Every version that is held or in use, ascending."""
    ring = keychain(rt.settings).ring
    with rt.db.transaction(statement_timeout=COUNT_TIMEOUT, planner=PLAN_INDEX) as tx:
        payloads = {use.version: use for use in store.payload_use(tx)}
        staged = {use.version: use.rows for use in store.staged(tx)}
        known = sorted({*ring.versions, *store.versions(tx), *payloads, *staged})
    return [
        _counted(
            rt,
            SealUse(
                version,
                held=version in ring.versions,
                current=version == ring.current,
                staged=staged.get(version, 0),
                messages=payloads[version].messages if version in payloads else 0,
                until=payloads[version].until if version in payloads else None,
            ),
        )
        for version in known
    ]


def _counted(rt: Runtime, use: SealUse) -> SealUse:
    """With its rows, which the index counts a few million of in a second."""
    try:
        with rt.db.transaction(statement_timeout=COUNT_TIMEOUT, planner=PLAN_INDEX) as tx:
            rows, apart = store.rows_sealed(tx, use.version), store.rows_apart(tx, use.version, NAME)
    except StatementTimeoutError:
        return replace(use, rows=None)
    return replace(use, rows=rows, apart=apart)


def turns(rt: Runtime) -> list[Turn]:
    """What is left to do: from every version that rows still have, and that is held, to the current one."""
    ring = keychain(rt.settings).ring
    with rt.db.transaction(planner=PLAN_INDEX) as tx:  # after a roll the statistics still speak of what was before it
        old = [version for version in store.versions(tx) if version in ring.versions and version != ring.current]
        return [Turn(version, ring.current) for version in old if store.outstanding(tx, version, NAME)]


def begin(rt: Runtime, *, actor: str) -> list[Order]:
    """The orders of a roll to the current version. Runs to any other are cancelled: they would undo this one."""
    target = keychain(rt.settings).ring.current
    with rt.db.transaction() as tx:
        others = [run.run_id for run in _open_turns(tx) if Turn.from_key(run.filter).target != target]
    for run_id in others:
        with suppress(RefusedError):  # it ended by itself meanwhile
            service.cancel_run(rt, run_id, actor=actor, why=f"the current seal key version is {target}")
    wanted = turns(rt)
    if wanted:
        with rt.db.transaction() as tx:
            auditing.note(tx, "seal_roll", actor, {"turns": [turn.key() for turn in wanted]})
    return [Order(started_by=actor, filter=turn.key()) for turn in wanted]


def roll(rt: Runtime, bell: Bell, *, actor: str) -> list[Dispatched]:
    """Open the runs of a roll to the current version, or join them, and ring for workers."""
    return [dispatch(rt, RESEAL_AUTH, bell, order) for order in begin(rt, actor=actor)]


def go_on(rt: Runtime, bell: Bell) -> list[Dispatched]:
    """Roll what came under an old key since an operator's last roll, from processes that had not heard of it yet.

    Nothing where that roll was to another version than is current here: a beat with old settings turns nothing back.
    """
    with rt.db.transaction() as tx:
        last = engine.recent_runs(tx, NAME, 1)
    if not last or Turn.from_key(last[0].filter).target != keychain(rt.settings).ring.current:
        return []
    return roll(rt, bell, actor="beat")


def retire(rt: Runtime, version: int, *, actor: str) -> SealUse:
    """Say that nothing needs this version any more, and note who asked. Raises RefusedError with all that does."""
    use = next((use for use in usage(rt) if use.version == version), None)
    if use is None:
        held = ", ".join(map(str, keychain(rt.settings).ring.versions))
        raise RefusedError(f"expected a version of the seal key that is held or in use ({held}), got {version}")
    reasons = [*_reasons(rt, use)]
    if reasons:
        raise RefusedError(f"expected nothing to need seal key version {version}, got: {'; '.join(reasons)}")
    with rt.db.transaction() as tx:
        auditing.note(tx, "seal_retire", actor, {"version": version})
    return use


def _reasons(rt: Runtime, use: SealUse) -> Iterator[str]:
    if use.current:
        yield "it is the current one (set PUSHOPS_SEAL_KEY_VERSION to another, everywhere, then pushops keys seal roll)"
    if use.rows is None:
        yield "its rows could not be counted in time (try again when the database is less busy)"
    elif use.rows:
        apart = f", {use.apart:,} of them in quarantine: pushops sweep quarantine list {NAME}" if use.apart else ""
        yield f"{use.rows:,} row(s) sealed with it{apart} (pushops keys seal roll)"
    if use.staged:
        yield f"{use.staged:,} row(s) of an import that runs (they are rows of the table when it is done)"
    if use.messages:
        until = "they are closed" if use.until is None else f"{use.until:%Y-%m-%d %H:%M}Z and PUSHOPS_PAYLOAD_GRACE"
        yield f"the payloads of {use.messages:,} message(s) (they are kept until {until})"
    with rt.db.transaction() as tx:
        if any(Turn.from_key(run.filter).target == use.version for run in _open_turns(tx)):
            yield "an open run that seals with it (pushops run list reseal-auth)"


def _open_turns(tx: Tx) -> list[engine.RunRow]:
    return [run for run in engine.open_runs(tx) if run.sweep == NAME]
