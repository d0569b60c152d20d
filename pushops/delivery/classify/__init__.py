"""What an answer of a push service means: a versioned table, and the most specific row that fits."""

from pushops.delivery.classify.verdict import Dead, Lifecycle, Outcome, Retry, Scope, Verdict

__all__ = ["Dead", "Lifecycle", "Outcome", "Retry", "Scope", "Verdict"]
