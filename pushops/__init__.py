"""pushops keeps a web-push subscriber table healthy.

Importing it reads no settings, opens nothing and loads next to nothing: the rest comes with ``pushops.open()``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pushops.delivery.errors import ConflictError, MessageRefused
    from pushops.delivery.sending import Sent
    from pushops.ops import Ops
    from pushops.settings import Settings
    from pushops.subscriptions.errors import SubscriptionRefused
    from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding
    from pushops.subscriptions.lifecycle import State
    from pushops.subscriptions.registering import Candidate, Saved
    from pushops.subscriptions.rejection import Advice, Rejected

__all__ = [
    "Advice",
    "Candidate",
    "ConflictError",
    "Evidence",
    "EvidenceOutcome",
    "Finding",
    "MessageRefused",
    "Ops",
    "Rejected",
    "Saved",
    "Sent",
    "State",
    "SubscriptionRefused",
    "open",
]

_HOMES: Final = {
    "Advice": "pushops.subscriptions.rejection",
    "Candidate": "pushops.subscriptions.registering",
    "ConflictError": "pushops.delivery.errors",
    "Evidence": "pushops.subscriptions.evidence",
    "EvidenceOutcome": "pushops.subscriptions.evidence",
    "Finding": "pushops.subscriptions.evidence",
    "MessageRefused": "pushops.delivery.errors",
    "Ops": "pushops.ops",
    "Rejected": "pushops.subscriptions.rejection",
    "Saved": "pushops.subscriptions.registering",
    "Sent": "pushops.delivery.sending",
    "State": "pushops.subscriptions.lifecycle",
    "SubscriptionRefused": "pushops.subscriptions.errors",
}


def open(settings: "Settings | None" = None) -> "Ops":  # noqa: A001  (pushops.open, like gzip.open)
    """The public verbs on a runtime of their own: ``with pushops.open() as ops: ops.save_subscription(...)``.

    Without ``settings`` they are read from ``PUSHOPS_*`` and ``pushops.toml``. Raises SettingsError listing every
    problem, unusable keys included. Nothing is connected before the first use. Open it after fork.
    """
    from pushops.ops import open_ops  # noqa: PLC0415  (importing pushops must stay fast)

    return open_ops(settings)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pushops' has no attribute {name!r}")
