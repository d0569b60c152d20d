"""What goes into a payload: the caller's bytes as they are, or JSON that carries its message's id.

Under ``STAMP`` a mapping gets ``{"id": <message id>}``: a service worker that remembers ids drops what comes twice.
"""

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

STAMP: Final = "pushops"

Payload = bytes | str | Mapping[str, Any]


class UnusablePayloadError(ValueError):
    """A payload that cannot be put into bytes; the two arguments are what was expected and what came, without any of
    the content.
    """


def compose(payload: object, message_id: UUID, *, stamp: bool | None = None) -> bytes:
    """The final bytes. ``stamp`` None stamps mappings, False none; text and bytes are never touched.

    Raises UnusablePayloadError.
    """
    if isinstance(payload, Mapping):
        return _encoded(_text(payload if stamp is False else _stamped(payload, message_id)))
    if stamp:
        raise UnusablePayloadError("a mapping to put the message id into", f"{type(payload).__name__}")
    if isinstance(payload, str):
        return _encoded(payload)
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UnusablePayloadError("bytes, text or a mapping", f"{type(payload).__name__}")


def _stamped(payload: Mapping[str, Any], message_id: UUID) -> Mapping[str, Any]:
    if STAMP in payload:
        raise UnusablePayloadError(f"a mapping without a key {STAMP!r}, which is ours (or stamp=False)", "one with it")
    return {**payload, STAMP: {"id": str(message_id)}}


def _text(payload: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(payload), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:  # their texts may repeat values
        raise UnusablePayloadError("a mapping that JSON can hold", f"one that raises {type(error).__name__}") from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnusablePayloadError("text that UTF-8 can hold", "text with a lone surrogate") from None
