"""What the settings hold, ready for use: the ring that seals, the key of log tags, VAPID ids and intake rules."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pydantic import SecretStr

from pushops.errors import SettingsError
from pushops.settings import Settings
from pushops.subscriptions.hosts import DEFAULT_RULES, parse_host_rules
from pushops.subscriptions.identity import endpoint_tag, user_hmac
from pushops.subscriptions.intake import IntakeRules
from pushops.subscriptions.keyforms import read_bytes
from pushops.subscriptions.keys import VapidKey, load_vapid_key
from pushops.subscriptions.sealing import KeyRing

AUTH: Final = "auth"  # the purpose that auth secrets are sealed for
_LOG_KEY_BYTES: Final = 32
PROVIDED: Final = ("seal_keys", "seal_key_version", "log_hmac_key", "vapid_keys")

_Pairs = tuple[tuple[str, SecretStr], ...]


@dataclass(frozen=True)
class Keychain:
    """``vapid`` is by key id; ``vapid_id`` is what a new subscription is marked with that names no key."""

    ring: KeyRing
    log_key: bytes = field(repr=False)
    vapid: Mapping[str, VapidKey] = field(repr=False)
    vapid_id: str | None
    rules: IntakeRules

    def tag(self, endpoint: str | bytes) -> str:
        """What logs call an endpoint (or its hash)."""
        return endpoint_tag(endpoint, key=self.log_key)

    def user_hmac(self, user: str) -> bytes:
        """All that is kept of a user who was erased."""
        return user_hmac(user, key=self.log_key)

    def vapid_id_of(self, public: bytes) -> str | None:
        """The id of the key whose public half a client subscribed with, if we hold it."""
        return next((key_id for key_id, key in self.vapid.items() if key.public == public), None)

    def serves(self, key_id: str | None) -> bool:
        """Whether a subscription under this VAPID key can be sent to; who holds no key at all cannot say."""
        return not self.vapid or key_id is None or key_id in self.vapid


def keychain(settings: Settings) -> Keychain:
    """The keychain of these settings, made once; raises SettingsError that lists every fault and shows no value."""
    return _make(
        _Configured(
            seal_keys=tuple(settings.seal_keys.items()),
            seal_key_version=settings.current_seal_version,
            log_hmac_key=settings.log_hmac_key,
            vapid_keys=tuple(settings.vapid_keys.items()),
            vapid_key_id=settings.vapid_key_id,
            hosts=tuple(settings.extra_hosts.items()),
            endpoint_max=settings.endpoint_max,
            provider=settings.key_provider,
        )
    )


@dataclass(frozen=True)
class _Configured:
    """The settings that make a keychain, comparable: a settings object itself is not."""

    seal_keys: _Pairs
    seal_key_version: int | None
    log_hmac_key: SecretStr | None
    vapid_keys: _Pairs
    vapid_key_id: str | None
    hosts: tuple[tuple[str, str], ...]
    endpoint_max: int
    provider: str | None

    def keys(self) -> dict[str, Any]:
        """By the names that a provider may give too, and whose values win."""
        return {name: getattr(self, name) for name in PROVIDED} | {
            "seal_keys": dict(self.seal_keys),
            "vapid_keys": dict(self.vapid_keys),
        }


@lru_cache(maxsize=16)
def _make(configured: _Configured) -> Keychain:
    faults: list[str] = []
    keys, chain = configured.keys(), dict[str, Any](vapid={})
    with _collected(faults, "PUSHOPS_KEY_PROVIDER"):
        keys |= _provided(configured.provider)
    with _collected(faults, "PUSHOPS_SEAL_KEYS"):
        chain["ring"] = _ring(keys["seal_keys"], keys["seal_key_version"])
    with _collected(faults, "PUSHOPS_LOG_HMAC_KEY"):
        chain["log_key"] = _log_key(keys["log_hmac_key"])
    for key_id, text in keys["vapid_keys"].items():
        with _collected(faults, f"PUSHOPS_VAPID_KEYS, id {key_id!r}"):
            chain["vapid"][key_id] = load_vapid_key(_plain(text))
    with _collected(faults, "PUSHOPS_VAPID_KEY_ID"):
        chain["vapid_id"] = _vapid_id(keys["vapid_keys"], configured.vapid_key_id)
    with _collected(faults, "PUSHOPS_EXTRA_HOSTS"):
        rules = (*parse_host_rules(dict(configured.hosts)), *DEFAULT_RULES)
        chain["rules"] = IntakeRules(rules, configured.endpoint_max)
    if faults:
        raise SettingsError("\n".join(faults))
    return Keychain(**chain)


@contextmanager
def _collected(faults: list[str], setting: str) -> Iterator[None]:
    """A ValueError's text says what was expected and never what was given; anything else may hold a key."""
    try:
        yield
    except ValueError as error:
        faults.append(f"{setting}: {error}")


def _provided(provider: str | None) -> Mapping[str, Any]:
    """What ``module:function`` returns: a mapping with any of the four, as the settings have them or raw bytes."""
    if provider is None:
        return {}
    module, _, function = provider.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001  (whatever a KMS client raises; its text may hold anything)
        raise ValueError(f"expected {provider} to return keys, it raised {type(error).__name__}") from None
    if not isinstance(found, Mapping) or found.keys() - set(PROVIDED):
        raise ValueError(f"expected {provider} to return a mapping with any of {', '.join(PROVIDED)}")
    return found


def _ring(keys: Mapping[Any, Any], version: int | None) -> KeyRing:
    if not keys:
        raise ValueError("expected at least one seal key: see pushops keys generate")
    if not all(str(name).isascii() and str(name).isdigit() for name in keys):
        raise ValueError(f"expected versions that are positive integers, got {sorted(map(str, keys))}")
    raw = {int(name): _raw(f"seal key {name}", key) for name, key in keys.items()}
    if version is None and len(raw) > 1:
        raise ValueError(f"expected PUSHOPS_SEAL_KEY_VERSION to name one of {sorted(raw)}")
    return KeyRing(raw, version or next(iter(raw)))


def _log_key(key: object) -> bytes:
    if key is None:
        raise ValueError("expected a base64url key of 32 bytes: see pushops keys generate")
    raw = _raw("the log key", key)
    if len(raw) != _LOG_KEY_BYTES:
        raise ValueError(f"expected the log key to be {_LOG_KEY_BYTES} bytes, got {len(raw)}")
    return raw


def _vapid_id(keys: Mapping[str, object], named: str | None) -> str | None:
    if named is None and len(keys) > 1:
        raise ValueError(f"expected one of {sorted(keys)}, got none")
    if named is not None and named not in keys:
        raise ValueError(f"expected one of {sorted(keys)}, got {named!r}")
    return named or next(iter(keys), None)


def _raw(name: str, key: object) -> bytes:
    plain = _plain(key)
    if isinstance(plain, bytes):
        return plain
    try:
        return read_bytes(plain)
    except ValueError:
        raise ValueError(
            f"expected {name} to be base64url, base64 or hex, got {len(plain)} characters that are not"
        ) from None


def _plain(key: object) -> str | bytes:
    if isinstance(key, SecretStr):
        return key.get_secret_value()
    if isinstance(key, str | bytes):
        return key
    raise ValueError(f"expected a key as text or bytes, got {type(key).__name__}")
