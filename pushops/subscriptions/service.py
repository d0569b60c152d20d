"""The verbs that others may call."""

from pushops.subscriptions.evidence import record_evidence
from pushops.subscriptions.leaving import detach, detach_all, unsubscribe
from pushops.subscriptions.reading import list_subscriptions, show, stats
from pushops.subscriptions.registering import check_many, save_many, save_subscription
from pushops.subscriptions.rotating import rotate
from pushops.subscriptions.suppressing import confirm_unsubscribed
from pushops.subscriptions.touching import touch
from pushops.subscriptions.undoing import undo

__all__ = [
    "check_many",
    "confirm_unsubscribed",
    "detach",
    "detach_all",
    "list_subscriptions",
    "record_evidence",
    "rotate",
    "save_many",
    "save_subscription",
    "show",
    "stats",
    "touch",
    "undo",
    "unsubscribe",
]
