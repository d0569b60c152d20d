"""Which ledger rows that end leave a dead letter: what is not resolved by its end, and is no trouble of everybody's."""

from typing import Final

from pushops.deadletters.letter import RESOLVED, ErrorClass
from pushops.delivery.classify import Dead
from pushops.delivery.meaning import Attempt
from pushops.delivery.retry import End

_CLASSES: Final = {End.POISON: ErrorClass.POISON, End.EXHAUSTED: ErrorClass.EXHAUSTED}


def dead(attempt: Attempt, end: End | None) -> ErrorClass | None:
    """The class of the letter that a row leaves which this attempt ended; None for no letter."""
    if end is None or attempt.verdict.dead is Dead.NO or attempt.answer.status in RESOLVED:
        return None
    return _CLASSES.get(end)
