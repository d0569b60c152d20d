"""A letter as JSON, for the statement that writes it and for the spool: whatever came, it can be stored."""

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pushops.deadletters.letter import ErrorClass, Letter

SNIPPET_BYTES: Final = 512
STRANGE: Final = "\ufffd"
# What PostgreSQL takes in no text: NUL, and halves of characters.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def spell(letter: Letter) -> dict[str, Any]:
    """What ``json.dumps`` takes; strings can be stored, the snippet has at most 512 bytes and ends with a character."""
    found = {each.name: _plain(getattr(letter, each.name)) for each in fields(Letter)}
    return found | {"error_snippet": cut(found["error_snippet"])}


def read(spelled: Mapping[str, Any]) -> Letter:
    """The letter that was spelled so. Raises ValueError, TypeError and KeyError."""
    values = {each.name: spelled[each.name] for each in fields(Letter)}
    for name in ("first_attempt_at", "last_attempt_at", "expires_at"):
        values[name] = _time(values[name])
    return Letter(
        **values
        | {
            "message_id": UUID(values["message_id"]),
            "subscription_id": UUID(values["subscription_id"]),
            "endpoint_hash": bytes.fromhex(values["endpoint_hash"].removeprefix("\\x")),
            "error_class": ErrorClass(values["error_class"]),
        }
    )


def cut(text: str) -> str:
    """At most so many bytes of UTF-8 as a snippet may have, never within a character."""
    return text.encode()[:SNIPPET_BYTES].decode(errors="ignore")


def storable(text: str) -> str:
    return _UNSTORABLE.sub(STRANGE, text)


def _plain(value: Any) -> Any:  # noqa: ANN401  (JSON)
    match value:
        case str():
            return storable(value)
        case bytes():
            return rf"\x{value.hex()}"
        case UUID() | datetime():
            return str(value)
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def _time(text: str | None) -> datetime | None:
    found = None if text is None else datetime.fromisoformat(text)
    if found is not None and found.tzinfo is None:
        raise ValueError("expected a time with its zone")
    return found
