"""``reseal-auth``: auth secrets are opened with an old key and sealed with the current one, in memory only.

Every row is readable at every moment: with the old version until its page is settled, with the new one from then on.
"""

from datetime import timedelta
from typing import Final

from pushops.db import Tx
from pushops.errors import SetupError
from pushops.rolling import store, turn
from pushops.rolling.store import Resealed, Taken
from pushops.rolling.turn import Turn
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.subscriptions.sealing import KeyRing, TamperedSealError
from pushops.sweeps.sql import PLAN_INDEX
from pushops.sweeps.sweep import Acted, Acting, Batch, Column, Page, RunOptions, Settled, Sweep

NAME: Final = "reseal-auth"
PAGE: Final = 1_000  # opened and sealed in 25 ms, and written in about as many
FEW: Final = 10  # rows that may all be at fault themselves; of more, none of which opens, the key is
KEYLESS: Final = timedelta(seconds=30)  # before a worker that lacks a key looks again: it may have been restarted


def page_rows(settings: Settings, _options: RunOptions) -> int:
    return min(PAGE, settings.sweep_batch_rows)


def _claim(tx: Tx, batch: Batch) -> list[Taken]:
    return store.take(tx, batch)


def _act(rt: Runtime, page: Page) -> Acted:
    """Seal a page's secrets anew. Who lacks one of the keys leaves the page to those that have both.

    Raises TamperedSealError: the page is then cut, until the row that does not open stands alone in quarantine. And
    SetupError, which holds the run, where the old key opens no row: none is to blame. And where the new one opens none
    that has it already: another process has another key of that version, and nobody could open them all.
    """
    ring, wanted = keychain(rt.settings).ring, Turn.from_key(page.filter)
    if not {wanted.source, wanted.target} <= set(ring.versions):
        rt.events.emit("keys.missing", run=page.run_id, batch=page.batch_id, turn=page.filter)
        return Acted(0, again=KEYLESS)
    _check_key(rt, ring, wanted.target)
    try:
        return Acted(len(page.rows), result=(wanted, [_reseal(ring, wanted, row) for row in page.rows]))
    except TamperedSealError:
        _check_key(rt, ring, wanted.source)
        raise


def _reseal(ring: KeyRing, wanted: Turn, row: Taken) -> Resealed:
    auth = ring.open(AUTH, row.endpoint_hash, wanted.source, row.old)
    return Resealed(row, ring.seal(AUTH, row.endpoint_hash, auth, version=wanted.target).blob)


def _check_key(rt: Runtime, ring: KeyRing, version: int) -> None:
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        some = store.some(tx, version)
    if len(some) >= FEW and not any(_opens(ring, version, row) for row in some):
        raise SetupError(f"expected seal key {version} to open rows of its version, it opens none: is it another key?")


def _opens(ring: KeyRing, version: int, row: Taken) -> bool:
    try:
        ring.open(AUTH, row.endpoint_hash, version, row.old)
    except TamperedSealError:
        return False
    return True


def _settle(tx: Tx, _batch: Batch, acted: Acted) -> Settled:
    if acted.result is None:
        return Settled(0)
    wanted, rows = acted.result
    done = store.reseal(tx, wanted, rows)
    # Rows that somebody held, and those that came back under the old key: both are looked at once more.
    return Settled(done, store.left(tx, wanted, rows) if done < len(rows) else 0)


RESEAL_AUTH: Final = Sweep(
    name=NAME,
    meaning="auth secrets under an old seal key are sealed with the current one: pushops keys seal roll",
    table="{schema}.push_subscription",
    index="push_subscription_reseal",
    key=(Column("id", "uuid"),),
    predicate=store.SEALED_WITH,
    windows=(),
    acting=Acting(_claim, _act, _settle),
    filtered=turn.filtered,
    admits=turn.admits,
    page_rows=page_rows,
    paced=True,
    lease=lambda settings: settings.sweep_lease,
)
