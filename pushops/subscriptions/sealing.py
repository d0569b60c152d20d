"""Sealing: AES-256-GCM under a key of its own for every record, so that a sealed value opens in its own place only.

The key comes from a versioned data key, a purpose ("auth", "payload") and what the value is bound to (the SHA-256
of the endpoint, the message id), which is the associated data too. One key so never sees near 2^32 random nonces.
"""

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pushops.errors import PushopsError

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_MAX_VERSION: Final = 32_767  # nobody rotates so often: beyond it is a date or a slip


class SealError(PushopsError):
    """A sealed value does not open; no message holds any of it."""

    label: ClassVar[str] = "seal"


class UnknownSealKeyError(SealError):
    """The value was sealed under a key version that is not configured; putting the key back mends it."""

    label: ClassVar[str] = "no_data_key"


class TamperedSealError(SealError):
    """The value was changed, cut, moved from another row or purpose, or sealed under another key."""

    label: ClassVar[str] = "seal_tampered"


@dataclass(frozen=True, slots=True)
class Sealed:
    """``blob`` is nonce (12 bytes), ciphertext and tag (16) in one; ``version`` names the data key."""

    version: int
    blob: bytes = field(repr=False)


class KeyRing:
    """Data keys by version: every version opens, the current one seals. Raises ValueError on keys that cannot do."""

    __slots__ = ("_current", "_keys")

    def __init__(self, keys: Mapping[int, bytes], current: int) -> None:
        for version, key in keys.items():
            _check_key(version, key)
        if len(set(keys.values())) != len(keys):
            raise ValueError("expected a different seal key for each version, got the same key twice")
        if current not in keys:
            raise ValueError(f"expected the current seal key version to be one of {sorted(keys)}, got {current!r}")
        self._keys = {version: _extract(key) for version, key in keys.items()}
        self._current = current

    def __repr__(self) -> str:
        return f"KeyRing(versions={self.versions}, current={self._current})"

    def __reduce__(self) -> str:
        raise TypeError("a key ring stays in the memory of its process")

    @property
    def current(self) -> int:
        return self._current

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._keys))

    def seal(self, purpose: str, bound_to: bytes, plaintext: bytes, *, version: int | None = None) -> Sealed:
        """Under the current version unless another is named; raises UnknownSealKeyError where that is not held."""
        version = self._current if version is None else version
        nonce = os.urandom(_NONCE_BYTES)
        cipher = _cipher(self._key(version), purpose, bound_to)
        return Sealed(version, nonce + cipher.encrypt(nonce, plaintext, bound_to))

    def open(self, purpose: str, bound_to: bytes, version: int, blob: bytes) -> bytes:
        """The plaintext, or UnknownSealKeyError, or TamperedSealError."""
        key = self._key(version)
        if len(blob) < _NONCE_BYTES + _TAG_BYTES:
            raise TamperedSealError(f"expected at least {_NONCE_BYTES + _TAG_BYTES} sealed bytes, got {len(blob)}")
        try:
            return _cipher(key, purpose, bound_to).decrypt(blob[:_NONCE_BYTES], blob[_NONCE_BYTES:], bound_to)
        except InvalidTag:
            raise TamperedSealError(f"expected a value sealed here as {purpose!r}, got one that is not") from None

    def _key(self, version: int) -> bytes:
        key = self._keys.get(version)
        if key is None:
            raise UnknownSealKeyError(f"expected a seal key version of {list(self.versions)}, got {version!r}")
        return key


def _check_key(version: object, key: object) -> None:
    if type(version) is not int or not 1 <= version <= _MAX_VERSION:
        raise ValueError(f"expected a seal key version from 1 to {_MAX_VERSION}, got {version!r}")
    if not isinstance(key, bytes):
        raise ValueError(f"expected seal key {version} to be bytes, got {type(key).__name__}")  # noqa: TRY004  # one class for all faults of configuration
    if len(key) != _KEY_BYTES:
        raise ValueError(f"expected seal key {version} to be {_KEY_BYTES} bytes, got {len(key)}")


def _cipher(key: bytes, purpose: str, bound_to: bytes) -> AESGCM:
    if not bound_to:
        raise ValueError("expected a purpose that is a name and something to bind to")
    return AESGCM(hmac.digest(key, _prefix(purpose) + bound_to + b"\x01", "sha256"))


@lru_cache(maxsize=8)
def _prefix(purpose: str) -> bytes:
    """The name ends at its NUL, so no two (purpose, bound_to) pairs share their info."""
    if not purpose.isidentifier():
        raise ValueError("expected a purpose that is a name and something to bind to")
    return b"pushops.seal.v1\x00" + purpose.encode() + b"\x00"


def _extract(key: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) in two halves: this one, without a salt, is the same for every record of a data key.

    The other is one block, all that a key of 32 bytes needs: a million records are sealed in half the time.
    """
    return hmac.digest(bytes(_KEY_BYTES), key, "sha256")
