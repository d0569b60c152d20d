"""The refusals that callers of the verbs catch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from pushops.errors import PushopsError, RefusedError


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a message, or worth knowing; nothing in it repeats the payload."""

    field: str
    reason: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, got {self.got} ({self.reason})"


class MessageRefused(RefusedError):  # noqa: N818  (the public name says what happened)
    """Nothing was written. ``findings`` has every fault at once; all of it is safe to show."""

    label: ClassVar[str] = "message_refused"

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(tuple(findings))
        self.findings = tuple(findings)

    def __str__(self) -> str:
        return "; ".join(map(str, self.findings))


class ConflictError(RefusedError):
    """The idempotency key belongs to another request; ``message_id`` is the message that it made."""

    label: ClassVar[str] = "conflict"

    def __init__(self, message_id: UUID, text: str) -> None:
        super().__init__(message_id, text)
        self.message_id = message_id
        self.text = text

    def __str__(self) -> str:
        return self.text


class PayloadMissingError(PushopsError):
    """The payload store has no object where the message says that its payload lies."""

    label: ClassVar[str] = "payload_missing"


class PayloadStoreError(PushopsError):
    """The payload store could not be reached or refused."""

    label: ClassVar[str] = "payload_store"
    retryable: ClassVar[bool] = True
