"""The verbs that others may call."""

from pushops.subscriptions.registering import Candidate, Saved, save_many, save_subscription

__all__ = ["Candidate", "Saved", "save_many", "save_subscription"]
