"""Keys: loadable, and known for every row that names one; and a VAPID subject that reaches somebody."""

import ipaddress
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from pushops.cli.doctor import store
from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.cli.doctor.store import KeyUse
from pushops.errors import SettingsError, StatementTimeoutError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import Keychain, keychain

COUNT_TIMEOUT: Final = timedelta(seconds=3)  # a probe must end soon, however large the table

_MAILBOX: Final = re.compile(r"[^\s@<>,;]+@(?P<host>[^\s@<>,;]+)")
# Apple answers 403 BadJwtToken to a subject that cannot reach anybody; others do so without saying why.
_NOWHERE: Final = ("localhost", "example", "example.com", "example.org", "example.net", "test", "invalid", "local")


def keys(settings: Settings) -> Iterator[Finding]:
    expected = "seal, log and VAPID keys that load"
    try:
        chain = keychain(settings)
    except SettingsError as error:
        for line in str(error).splitlines():
            yield problem("keys", expected, line, "pushops keys generate makes new ones")
        return
    found = f"seal versions {list(chain.ring.versions)}, VAPID ids {sorted(chain.vapid)}"
    if chain.vapid:
        yield fine("keys", expected, found)
    else:
        yield warning("keys", expected, found, "browsers cannot subscribe without one: pushops keys generate")


def subject(settings: Settings) -> Iterator[Finding]:
    expected = "a mailto: or https: URI that reaches you"
    found = settings.vapid_subject
    if found is None:
        yield warning("VAPID subject", expected, "not set", "set PUSHOPS_VAPID_SUBJECT; push services demand one")
    elif fault := fault_of_subject(found):
        yield problem("VAPID subject", expected, f"{found!r}: {fault}", "set PUSHOPS_VAPID_SUBJECT to a real one")
    else:
        yield fine("VAPID subject", expected, found)


def fault_of_subject(text: str) -> str | None:
    """What a push service would hold against it, None for nothing."""
    if text.startswith("mailto:"):
        mailbox = _MAILBOX.fullmatch(text.removeprefix("mailto:"))
        return _fault_of_host(mailbox["host"]) if mailbox else "not a mail address"
    if text.startswith("https://"):
        return _fault_of_host(urlsplit(text).hostname or "")
    return "neither mailto: nor https:"


def _fault_of_host(host: str) -> str | None:
    host = host.lower().rstrip(".")
    if any(host == name or host.endswith(f".{name}") for name in _NOWHERE):
        return f"{host} is nowhere"
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None if "." in host else f"{host or 'no host'} is not a public name"
    return "an address instead of a name"


def key_use(rt: Runtime) -> Iterator[Finding]:
    try:
        chain = keychain(rt.settings)
    except SettingsError:
        return  # keys() has said so
    try:
        with rt.db.transaction(statement_timeout=COUNT_TIMEOUT) as tx:
            use = store.key_use(tx)
    except StatementTimeoutError:
        found = f"counting took longer than {COUNT_TIMEOUT.total_seconds():.0f} s"
        yield warning("keys in rows", "only keys that are held", found, "look again when the database is less busy")
        return
    yield from judge_use(use, chain)


def judge_use(use: Sequence[KeyUse], chain: Keychain) -> Iterator[Finding]:
    """Rows under an unknown seal key cannot be sent to at all; those under an unknown VAPID key wait for it."""
    expected = "only keys that are held"
    sealed = _unknown({row.auth_key_version: 0 for row in use}, chain.ring.versions)
    vapid = _unknown({row.vapid_key_id: 0 for row in use if row.live}, chain.vapid)
    for version in sealed:
        rows = sum(row.rows for row in use if row.auth_key_version == version)
        advice = "put the key back into PUSHOPS_SEAL_KEYS: without it these rows are lost"
        yield problem("keys in rows", expected, f"{rows:,} row(s) sealed with version {version}", advice)
    for key_id in vapid:
        rows = sum(row.live for row in use if row.vapid_key_id == key_id)
        advice = "put the key back into PUSHOPS_VAPID_KEYS, or let these browsers subscribe again"
        yield warning("keys in rows", expected, f"{rows:,} live row(s) name VAPID key {key_id!r}", advice)
    if not sealed and not vapid:
        yield fine("keys in rows", expected, f"{sum(row.rows for row in use):,} row(s) with credentials")


def _unknown(used: Collection[object], known: Collection[object]) -> list[object]:
    return sorted((key for key in used if key is not None and key not in known), key=str)
