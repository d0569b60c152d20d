"""The keys that rows and payloads name: held, current, or lost."""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Final

from pushops.cli.doctor import store
from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.cli.doctor.store import KeyUse
from pushops.errors import SettingsError, StatementTimeoutError
from pushops.rolling import store as rolling
from pushops.rolling.store import PayloadUse
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import Keychain, keychain
from pushops.subscriptions.sealing import KeyRing
from pushops.sweeps.sql import PLAN_INDEX

COUNT_TIMEOUT: Final = timedelta(seconds=3)  # a probe must end soon, however large the table
NAME: Final = "keys in rows"
EXPECTED: Final = "only keys that are held"
CURRENT: Final = "every row sealed with the current version"
PUT_BACK: Final = "put the key back into PUSHOPS_SEAL_KEYS"
ROLL: Final = "pushops keys seal roll"


def key_use(rt: Runtime) -> Iterator[Finding]:
    try:
        chain = keychain(rt.settings)
    except SettingsError:
        return  # secrets.keys() has said so
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        versions = rolling.versions(tx)
    try:
        with rt.db.transaction(statement_timeout=COUNT_TIMEOUT) as tx:
            found = [*judge_payloads(rolling.payload_use(tx), chain.ring), *judge_use(store.key_use(tx), chain)]
    except StatementTimeoutError:
        found = [*judge_versions(versions, chain.ring)]
    yield from found


def judge_use(use: Sequence[KeyUse], chain: Keychain) -> Iterator[Finding]:
    """Rows under an unknown seal key cannot be sent to at all; those under an unknown VAPID key wait for it."""
    total = sum(row.rows for row in use)
    sealed = {version: sum(row.rows for row in use if row.auth_key_version == version) for version in _versions(use)}
    lost = [version for version in sealed if version not in chain.ring.versions]
    vapid = _unknown({row.vapid_key_id: 0 for row in use if row.live}, chain.vapid)
    for version in lost:
        found = f"{sealed[version]:,} row(s) sealed with version {version}"
        yield problem(NAME, EXPECTED, found, f"{PUT_BACK}: without it these rows are lost")
    for version in sealed.keys() - {*lost, chain.ring.current}:
        found = f"{sealed[version]:,} of {total:,} row(s) ({sealed[version] / total:.0%}) sealed with version {version}"
        yield warning(NAME, CURRENT, found, ROLL)
    for key_id in vapid:
        rows = sum(row.live for row in use if row.vapid_key_id == key_id)
        advice = "put the key back into PUSHOPS_VAPID_KEYS, or let these browsers subscribe again"
        yield warning(NAME, EXPECTED, f"{rows:,} live row(s) name VAPID key {key_id!r}", advice)
    if not vapid and not sealed.keys() - {chain.ring.current}:
        yield fine(NAME, EXPECTED, f"{total:,} row(s) with credentials")


def judge_versions(versions: Sequence[int], ring: KeyRing) -> Iterator[Finding]:
    """What can be said of a table that is too large to be counted by a probe."""
    for version in versions:
        if version not in ring.versions:
            yield problem(
                NAME, EXPECTED, f"rows sealed with version {version}", f"{PUT_BACK}: they are lost without it"
            )
        elif version != ring.current:
            yield warning(NAME, CURRENT, f"rows sealed with version {version}", ROLL)
    found = f"counting took longer than {COUNT_TIMEOUT.total_seconds():.0f} s"
    yield warning(NAME, "rows counted by their VAPID keys", found, "pushops keys vapid plan has more patience")


def judge_payloads(use: Sequence[PayloadUse], ring: KeyRing) -> Iterator[Finding]:
    for row in use:
        if row.version not in ring.versions:
            found = f"the payloads of {row.messages:,} message(s) sealed with version {row.version}"
            yield problem(NAME, EXPECTED, found, f"{PUT_BACK}: until then these messages wait")


def _versions(use: Sequence[KeyUse]) -> list[int]:
    return sorted({row.auth_key_version for row in use if row.auth_key_version is not None})


def _unknown(used: Collection[object], known: Collection[object]) -> list[object]:
    return sorted((key for key in used if key is not None and key not in known), key=str)
