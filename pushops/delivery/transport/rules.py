"""How the transport behaves, read from the settings once; nothing else in the environment has a say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pushops.delivery.transport.routes import parse_target
from pushops.errors import SettingsError
from pushops.settings import Settings
from pushops.subscriptions.hosts import parse_host_rules

# Where Debian, Fedora, openSUSE, Alpine, the BSDs and macOS keep the certificates that the system trusts.
CA_FILES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
)


@dataclass(frozen=True, slots=True)
class TransportRules:
    """``deadline`` is the whole of one POST; ``connections`` are per host, ``streams`` per HTTP/2 connection.

    ``connect_to``: host pattern to "host:port". ``proxy`` may hold a password.
    """

    ca_file: str
    connect_timeout: timedelta = timedelta(seconds=3.05)
    deadline: timedelta = timedelta(seconds=10)
    proxy: str | None = field(default=None, repr=False)
    connect_to: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    private_hosts: tuple[str, ...] = ()
    connections: int = 16
    streams: int = 100

    @property
    def user_agent(self) -> str:
        return f"pushops/{version('pushops')}"


def transport_rules(settings: Settings) -> TransportRules:
    """Raises SettingsError for a host pattern or target that is none, and where there are no certificates to trust."""
    _check("PUSHOPS_CONNECT_TO", settings.connect_to)
    _check("PUSHOPS_ALLOW_PRIVATE_HOSTS", settings.allow_private_hosts)
    return TransportRules(
        ca_file=ca_file(settings.ca_file),
        connect_timeout=settings.connect_timeout,
        deadline=settings.read_timeout,
        proxy=settings.proxy.get_secret_value() if settings.proxy else None,
        connect_to=MappingProxyType(settings.connect_to),
        private_hosts=tuple(settings.allow_private_hosts),
    )


def _check(setting: str, hosts: Mapping[str, str] | Sequence[str]) -> None:
    try:
        parse_host_rules(dict.fromkeys(hosts, "own"))
        for target in hosts.values() if isinstance(hosts, Mapping) else ():
            parse_target(target)
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}") from None


def ca_file(named: Path | None) -> str:
    """The file named, or the system's; raises SettingsError. What a library or a variable brings along is not asked."""
    found = named or next((path for path in map(Path, CA_FILES) if path.is_file()), None)
    if found is None:
        raise SettingsError("expected PUSHOPS_CA_FILE to name a PEM file of trusted certificates, found no system's")
    if not found.is_file():
        raise SettingsError(f"expected PUSHOPS_CA_FILE to name a PEM file of trusted certificates, {found} is none")
    return str(found)
