"""What an answer of a push service means: a versioned table, and the most specific row that fits."""

from pushops.delivery.classify import wording
from pushops.delivery.classify.classifying import Explanation, classify, explain
from pushops.delivery.classify.learning import Learnt, learn
from pushops.delivery.classify.snippets import snippet
from pushops.delivery.classify.table import Table, load_table, table_of
from pushops.delivery.classify.verdict import Dead, Lifecycle, Outcome, Retry, Scope, Verdict

__all__ = [
    "Dead",
    "Explanation",
    "Learnt",
    "Lifecycle",
    "Outcome",
    "Retry",
    "Scope",
    "Table",
    "Verdict",
    "classify",
    "explain",
    "learn",
    "load_table",
    "snippet",
    "table_of",
    "wording",
]
