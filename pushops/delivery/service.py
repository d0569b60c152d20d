"""The verbs that others may call."""

from pushops.delivery.cancelling import cancel
from pushops.delivery.reading import all_results, message, messages, messages_like, results
from pushops.delivery.sending import preview, send

__all__ = ["all_results", "cancel", "message", "messages", "messages_like", "preview", "results", "send"]
