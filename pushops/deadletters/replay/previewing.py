"""What a replay asked for now would do to which letters, by the gates that the replay itself goes through."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pushops.deadletters.filters import Filter
from pushops.deadletters.letter import ReplayOutcome, counted_as
from pushops.deadletters.store import gates
from pushops.deadletters.store.gates import Counted, LeftOut
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain
from pushops.sweeps import history

COUNTING: Final = timedelta(seconds=60)  # millions of letters, each looked up in four tables


@dataclass(frozen=True)
class Preview:
    """``total`` letters are parked and named by the filter. ``would_send`` to ``held`` are those that a replay would
    look at now; ``reasons`` says which gate ends how many. ``waiting``: they back off after a replay that failed.
    ``poison_left_out``: not asked for. ``services``: how many would be sent to which push service. ``eta``: at the pace
    of the settings, or of the rate that was named.
    """

    total: int
    would_send: int
    stale: int
    gone: int
    duplicate: int
    in_doubt: int
    held: int
    waiting: int
    poison_left_out: int
    reasons: Mapping[str, int]
    services: Mapping[str, int]
    eta: timedelta


def preview(rt: Runtime, wanted: Filter, *, rate: float | None = None, ramp: timedelta | None = None) -> Preview:
    """Count, in one read-only transaction. Raises StatementTimeoutError."""
    with rt.db.transaction(statement_timeout=COUNTING) as tx:
        history.read_only(tx)
        rows = gates.preview(tx, wanted, keychain(rt.settings).vapid)
        left_out = gates.left_out(tx, wanted)
    return tell(rt.settings, rows, left_out, rate=rate, ramp=ramp)


def tell(
    settings: Settings, rows: Sequence[Counted], left_out: LeftOut, *, rate: float | None, ramp: timedelta | None
) -> Preview:
    """Pure: from the database's counts to what an operator reads."""
    reasons, services = Counter[str](), Counter[str]()
    for row in rows:
        if row.verdict is None:
            services[row.push_service] += row.letters
        else:
            reasons[row.verdict] += row.letters
    counted = Counter[ReplayOutcome]()
    for reason, letters in reasons.items():
        counted[counted_as(reason)] += letters
    seconds = [
        seconds_for(letters, rate or settings.replay_share * settings.rate_of(service), ramp or settings.replay_ramp)
        for service, letters in services.items()
    ]
    return Preview(
        total=left_out.total,
        would_send=services.total(),
        stale=counted[ReplayOutcome.STALE],
        gone=counted[ReplayOutcome.GONE],
        duplicate=counted[ReplayOutcome.DUPLICATE],
        in_doubt=counted[ReplayOutcome.IN_DOUBT],
        held=counted[ReplayOutcome.HELD],
        waiting=left_out.waiting,
        poison_left_out=left_out.poison,
        reasons=dict(reasons),
        services=dict(services),
        eta=timedelta(seconds=math.ceil(max(seconds, default=0))),
    )


def seconds_for(letters: int, pace: float, ramp: timedelta) -> float:
    """How long it takes where the pace grows in a line from nothing, for the length of the ramp."""
    over = ramp.total_seconds()
    within = pace * over / 2
    return math.sqrt(2 * letters * over / pace) if letters < within else over / 2 + letters / pace
