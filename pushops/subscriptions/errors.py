"""The refusals that callers of the verbs catch."""

from typing import ClassVar

from pushops.errors import RefusedError
from pushops.subscriptions.rejection import Advice, Rejected


class SubscriptionRefused(RefusedError):  # noqa: N818  (the public name says what happened)
    """Nothing was written. All attributes are safe to show; ``reason`` is a metric label.

    ``advice`` is what the client should do with the subscription that its browser holds.
    """

    label: ClassVar[str] = "subscription_refused"

    def __init__(self, field: str, reason: str, expected: str, got: str, advice: str) -> None:
        super().__init__(field, reason, expected, got, advice)
        self.field = field
        self.reason = reason
        self.expected = expected
        self.got = got
        self.advice = Advice(advice)

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, got {self.got} ({self.reason})"


def refusal(found: Rejected) -> SubscriptionRefused:
    return SubscriptionRefused(found.field, found.reason, found.expected, found.got, found.advice)
