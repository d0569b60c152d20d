"""The usual row in a third of the time: what is not plainly fit is left to the careful way, which says why.

It takes nothing that the careful way refuses, and gives the same line for it: a test compares them. All the same
checks are made, on values that need no cleaning: plain ASCII, canonical base64url, a host that was let in before.
"""

import hashlib
import re
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pushops.importing import lines
from pushops.importing.shapes import EARLIEST
from pushops.importing.words import Rules
from pushops.subscriptions.keychain import AUTH, Keychain
from pushops.subscriptions.material import is_point

_USUAL: Final = frozenset(("endpoint", "keys", "user", "tags", "origin", "created_at"))
# Without padding, and with zeros in the spare bits of the last character.
_P256DH: Final = re.compile(r"[A-Za-z0-9_-]{86}[AEIMQUYcgkosw048]")
_AUTH: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
_LONGEST: Final = 128  # characters of a name, whatever it names
_TAGS: Final = 100
_HTTPS: Final = len("https://")
_HOSTS: Final = 1024  # vendors have thousands of names at most, and rules of one's own may allow any
_ENCODING: Final = "aes128gcm"


@dataclass(frozen=True)
class Quick:
    """``hosts``: from "https://host" to the label of its push service, of hosts that the careful way let in."""

    chain: Keychain
    rules: Rules
    hosts: dict[str, str] = field(default_factory=dict)

    def learn(self, endpoint: str, service: str) -> None:
        """A host that was let in once is let in again."""
        if len(self.hosts) < _HOSTS:
            self.hosts.setdefault(_host(endpoint), service)

    def line(self, number: int, row: Mapping[str, Any]) -> str | None:
        """None where the row is not plainly what it should be."""
        if self.rules.application_server_key is not None or not row.keys() <= _USUAL:
            return None
        head, tail = self._credentials(number, row.get("endpoint"), row.get("keys")), self._known(row)
        return None if head is None or tail is None else f"{head}\t{_ENCODING}\t{lines.NULL}\t{lines.NULL}\t{tail}\n"

    def _credentials(self, number: int, endpoint: object, keys: object) -> str | None:
        if type(endpoint) is not str or type(keys) is not dict or len(endpoint) > self.chain.rules.max_endpoint:
            return None
        service, p256dh, auth = self.hosts.get(_host(endpoint)), keys.get("p256dh"), keys.get("auth")
        if service is None or type(p256dh) is not str or type(auth) is not str:
            return None
        if not (_is_plain(endpoint) and " " not in endpoint and "#" not in endpoint):
            return None
        if not (_P256DH.fullmatch(p256dh) and _AUTH.fullmatch(auth) and is_point(_decode(p256dh + "="))):
            return None
        digest = hashlib.sha256(endpoint.encode()).digest()
        sealed = self.chain.ring.seal(AUTH, digest, _decode(auth + "=="))
        return lines.begin(number, digest, endpoint, service, p256dh, sealed)

    def _known(self, row: Mapping[str, Any]) -> str | None:
        """The columns from the user on."""
        names = (_name(row.get("user")), _tags(row.get("tags")), _name(row.get("origin")))
        created = self._time(row.get("created_at"))
        if None in names or created is None:
            return None
        user, tags, origin = names
        return f"{user}\t{tags}\t{lines.NULL}\t{lines.NULL}\t{origin}\t{created}\t{created}"

    def _time(self, value: object) -> str | None:
        if value is None:
            return lines.NULL
        try:
            when = datetime.fromisoformat(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        return lines.time(when) if when.tzinfo is not None and EARLIEST <= when <= self.rules.until else None


def _host(endpoint: str) -> str:
    """What stands before the path; all of it where there is none."""
    end = endpoint.find("/", _HTTPS)
    return endpoint if end < 0 else endpoint[:end]


def _decode(text: str) -> bytes:
    return a2b_base64(text.replace("-", "+").replace("_", "/"))


def _is_plain(text: str) -> bool:
    """Visible ASCII and spaces, and nothing that COPY would take for its own."""
    return text.isascii() and text.isprintable() and "\\" not in text


def _is_name(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= _LONGEST and _is_plain(value)


def _name(value: object) -> str | None:
    if value is None:
        return lines.NULL
    return value if _is_name(value) else None  # type: ignore[return-value]


def _tags(value: object) -> str | None:
    if value is None:
        return lines.NULL
    if type(value) is not list or len(value) > _TAGS or not all(map(_is_name, value)):
        return None
    return _array(tuple(value))


@lru_cache(maxsize=1024)  # an application has few sets of tags
def _array(values: tuple[str, ...]) -> str:
    return lines.array(sorted(set(values)))
