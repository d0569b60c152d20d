"""URLs that hold passwords: read once, here, since the error of whoever reads a bad one later repeats it."""

from typing import Annotated, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, SecretStr
from redis.connection import parse_url
from sentry_sdk.utils import Dsn

from pushops.settings.values import Expected

_READ_BY_REDIS: Final = ("redis://", "rediss://", "unix://")
_ENCODED: Final = "(percent-encode special characters in the password)"


def check_database_url(url: str) -> str:
    """The same, if libpq can read it; raises ValueError that repeats nothing of it."""
    try:
        found = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        raise ValueError("not a libpq URL") from None
    # An unescaped / or @ makes a port, a host or a database of what was meant as a password.
    ports = [port for port in str(found.get("port") or "").split(",") if port]
    if not all(port.isdecimal() for port in ports) or "@" in str(found.get("host") or "")[1:] or _late_at(url):
        raise ValueError("not a libpq URL")
    return url


def check_broker_url(url: str) -> str:
    """The same, if it can be read; Celery takes several with ``;`` between. Raises ValueError that repeats nothing."""
    try:
        if url.startswith(_READ_BY_REDIS):
            parse_url(url)  # type: ignore[no-untyped-call]
        readable = [urlsplit(part).port for part in url.split(";")]
    except (ValueError, TypeError):
        readable = []
    if not readable or (url.startswith(_READ_BY_REDIS) and (_late_at(url) or urlsplit(url).fragment)):
        raise ValueError("not a URL")
    return url


def check_sentry_dsn(dsn: str) -> str:
    """The same, if the SDK can read it or would be turned off by it; raises ValueError that repeats nothing."""
    try:
        if dsn:
            Dsn(dsn)
    except ValueError:  # also a bad port's
        raise ValueError("not a DSN") from None
    return dsn


def check_proxy_url(url: str) -> str:
    """The same, if it is an HTTP proxy's; raises ValueError that repeats nothing of it."""
    try:
        parts = urlsplit(url)
        readable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        readable = False
    if not readable or parts.path.strip("/") or parts.query or parts.fragment or _late_at(url):
        raise ValueError("not a proxy URL")
    return url


def _late_at(url: str) -> bool:
    """Whether the user and password go on after what ended the place: a / # or ? in them was not encoded."""
    _, scheme, rest = url.partition("://")
    place = rest.split("/", 1)[0]
    return bool(scheme) and "@" not in place and "@" in rest.split("?", 1)[0]


def _database(value: SecretStr) -> SecretStr:
    check_database_url(value.get_secret_value())
    return value


def _sentry(value: SecretStr) -> SecretStr:
    check_sentry_dsn(value.get_secret_value())
    return value


def _proxy(value: SecretStr) -> SecretStr:
    check_proxy_url(value.get_secret_value())
    return value


def _broker(value: SecretStr) -> SecretStr:
    check_broker_url(value.get_secret_value())
    return value


DatabaseUrl = Annotated[
    Annotated[SecretStr, AfterValidator(_database)] | None,
    Expected(f"a libpq URL such as postgresql://user@host/db {_ENCODED}"),
]
BrokerUrl = Annotated[
    Annotated[SecretStr, AfterValidator(_broker)] | None,
    Expected(f"a URL such as redis://host:6379/0 {_ENCODED}"),
]
SentryDsn = Annotated[Annotated[SecretStr, AfterValidator(_sentry)] | None, Expected("a Sentry DSN")]
ProxyUrl = Annotated[
    Annotated[SecretStr, AfterValidator(_proxy)] | None,
    Expected(f"a URL such as http://proxy:3128 {_ENCODED}"),
]
