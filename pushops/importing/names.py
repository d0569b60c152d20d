"""What other stores call what we call something else: folded names of members and columns."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

# Of the browser's object, pywebpush, web-push (Node and PHP), django-push-notifications, django-webpush, Laravel's
# channel and OneSignal's export. Case and what is no letter or digit do not count.
_ALIASES: Final[Mapping[str, str]] = {
    "subscription": "subscriptioninfo subscriptionjson subscriptiondata pushsubscription",
    "endpoint": "registrationid identifier pushendpoint subscriptionendpoint subscriptioninfoendpoint",
    "keys": "",
    "p256dh": "keysp256dh keyp256dh p256dhkey publickey webp256 subscriptionkeysp256dh subscriptioninfokeysp256dh",
    "auth": "keysauth keyauth authkey authtoken authsecret webauth subscriptionkeysauth subscriptioninfokeysauth",
    "content_encoding": "contentencoding",
    "expiration_time": "expirationtime",
    "application_server_key": "applicationserverkey vapidpublickey",
    "user": "userid externaluserid externalid subscribableid",
    "origin": "",
    "tags": "",
    "user_agent": "useragent",
    "locale": "language",
    "created_at": "createdat datecreated",
    "seen_at": "seenat lastseenat lastseen lastactive lastactiveat updatedat",
    "active": "isactive",
    "invalid": "invalididentifier",
    "browser": "",
}
FIELDS: Final = tuple(_ALIASES)
_NOISE: Final = re.compile(r"[^a-z0-9]")


def _fold(name: str) -> str:
    return _NOISE.sub("", name.lower())


_KNOWN: Final = {_fold(alias): field for field, aliases in _ALIASES.items() for alias in (field, *aliases.split())}


@lru_cache(maxsize=1024)  # a store has a few dozen names; a stranger's file may make up any
def field_of(name: str) -> str | None:
    """Our name for a member or a column, or None where it says nothing to us."""
    return _KNOWN.get(_fold(name)) if len(name) <= 64 else None  # noqa: PLR2004  (longer is none of them)
