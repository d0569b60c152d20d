"""Keys that load, and a VAPID subject that reaches somebody."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.errors import SettingsError
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain

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
