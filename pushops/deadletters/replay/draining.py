"""The sweep that sends letters again: at a pace, through four gates, and no letter twice."""

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final
from uuid import UUID, uuid4

from pushops.db import Tx
from pushops.deadletters.filters import CLAUSE, from_key
from pushops.deadletters.letter import HELD, ReplayOutcome
from pushops.deadletters.replay.pacing import Pace
from pushops.deadletters.replay.sending import Sender, Sent, ends_of, make_lanes
from pushops.deadletters.replay.settling import Hand
from pushops.deadletters.store import gates, replaying
from pushops.deadletters.store.gates import POISON_TOO
from pushops.deadletters.store.replaying import Sifted
from pushops.delivery.store import lanes
from pushops.delivery.tools import Tools, tools_of
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps import store as sweeps_store
from pushops.sweeps.sql import PLAN_INDEX
from pushops.sweeps.sweep import Acted, Acting, Batch, Column, Page, RunOptions, Sweep, Window

NAME: Final = "drain-dead-letters"
PAGE: Final = 2_000  # of which a few hundred are claimed at a time: beginning and ending a page costs as much as they
AHEAD: Final = 2.0  # seconds' worth of letters in a page
LEAST: Final = 50
OF_ONE: Final = 200.0  # letters a second to a push service that one worker is enough for, with others beside it
SPARE: Final = 0.5  # of a push service's bucket is left to live messages: they come first
CROWDED: Final = 0.5  # seconds until live messages may leave room
SOONEST: Final = 0.05
REST: Final = timedelta(seconds=1)  # for whom the pace grants nothing: another worker has it
# Of a slot and a page, which nothing depends on: letters have a token and a lease of their own. For so long a worker
# that died keeps others from going on.
LEASE: Final = timedelta(seconds=20)
STORE_AWAY: Final = timedelta(seconds=30)


def claim(_tx: Tx, batch: Batch) -> Sequence[Batch]:
    """Nothing yet: letters are claimed a group at a time, where they are opened."""
    return [batch]


def act(rt: Runtime, page: Page) -> Acted:
    """Send as many of a page's letters as the pace grants now; the rest comes back later."""
    return _Act(rt, page, tools_of(rt)).run()


def settle(tx: Tx, batch: Batch, acted: Acted) -> int:
    """Letters are settled by then. What was left alone is counted once, when the page is done."""
    if acted.result and acted.again is None:
        sweeps_store.add_outcomes(tx, UUID(batch.run_id), {ReplayOutcome.HELD: acted.result})
    return acted.rows


@dataclass
class _Act:
    """One page's letters, once round."""

    rt: Runtime
    page: Page
    tools: Tools
    held: int = 0
    counted: Counter[ReplayOutcome] = field(default_factory=Counter)
    waiting: dict[str, deque[Sifted]] = field(default_factory=dict)  # by push service
    left: int = 0  # claimed and not tried
    wait_until: float = 0.0  # when the pace grants more, on the monotonic clock

    def run(self) -> Acted:
        """Once round: whoever waits for a pace holds no worker meanwhile, since live messages come first."""
        pace = Pace(self.rt, self.page.options, self.page.opened_at, self._sift())
        granted = self._take(pace)
        sent = self._send(granted) if granted else Sent()
        return self._acted(STORE_AWAY if sent.store_failed else self._again(), sent.stop)

    def _waits(self) -> int:
        return sum(map(len, self.waiting.values()))

    def _again(self) -> timedelta | None:
        """Whether the page comes back: at once where the time was over, after a rest where the pace was."""
        if not self._waits():
            return timedelta() if self.left else None
        rest = timedelta(seconds=max(SOONEST, self.wait_until - time.monotonic()))
        return rest if self.counted else max(REST, rest)

    def _acted(self, again: timedelta | None, stop: str | None = None) -> Acted:
        done = self.counted.total() - self.counted[ReplayOutcome.HELD]
        return Acted(done, again, stop, result=self.held)

    def _sift(self) -> datetime:
        """End what the gates end; what they let through waits for the pace."""
        (batch,) = self.page.rows
        by, run_id = self._hand().by, UUID(self.page.run_id)
        with self.rt.db.transaction(planner=PLAN_INDEX, asynchronous=True) as tx:
            known = gates.params(self.tools.chain.vapid)
            found = replaying.sift(tx, batch.clause, batch.params, known, by=by, run_id=run_id)
            ended = ends_of(found)
            if ended:
                sweeps_store.add_outcomes(tx, run_id, ended)
            now = tx.now
        self.counted.update(ended)
        self.held = sum(one.verdict == HELD for one in found)
        for one in found:
            if one.verdict is None:
                self.waiting.setdefault(one.push_service, deque()).append(one)
        return now

    def _take(self, pace: Pace) -> list[Sifted]:
        """As many of each push service as its pace grants now."""
        granted: list[Sifted] = []
        waits = []
        for service, letters in self.waiting.items():
            grant = pace.take(service, len(letters))
            granted += [letters.popleft() for _ in range(grant.granted)]
            if letters:
                waits.append(grant.wait)
        self.wait_until = time.monotonic() + min(waits, default=0.0)
        return granted

    def _send(self, granted: Sequence[Sifted]) -> Sent:
        hand = self._hand()
        allowed = self._allowed(granted)
        if not allowed:
            return Sent()
        rendered = {one.dlq_id for one in granted if one.rendered}
        sender = Sender(self.rt, self.tools, hand, stop_at=self.page.stop_at, asked=self.page.asked)
        sent = sender.run(allowed, rendered)
        self.counted.update(sent.counted)
        self.held += sent.held
        self.left += sent.left
        return sent

    def _allowed(self, granted: Sequence[Sifted]) -> list[UUID]:
        """Those of them that live messages leave room for, and a way there for each."""
        with self.rt.db.transaction(planner=PLAN_INDEX, asynchronous=True) as tx:
            make_lanes(tx, granted)
            return sorted(self._beside_live(tx, granted))

    def _beside_live(self, tx: Tx, granted: Sequence[Sifted]) -> list[UUID]:
        """What the push services' own buckets have to spare; the rest waits as if the pace had not granted it."""
        allowed: list[UUID] = []
        for service in sorted({one.push_service for one in granted}):
            letters = [one for one in granted if one.push_service == service]
            rate = self.rt.settings.rate_of(service)
            spare = lanes.lock_rate(tx, service, rate) - int(SPARE * rate if rate > 1 else 0)
            room = max(0, min(spare, len(letters)))
            lanes.take(tx, service, room)
            allowed += [one.dlq_id for one in letters[:room]]
            self.waiting[service].extendleft(reversed(letters[room:]))
            if letters[room:]:
                self.wait_until = time.monotonic() + CROWDED
        return allowed

    def _hand(self) -> Hand:
        return Hand(uuid4(), f"run:{self.page.run_id}", UUID(self.page.run_id))


def filtered(key: str) -> Mapping[str, Any]:
    """A run's filter as parameters of the predicate."""
    return from_key(key).params()


def admits(key: str) -> None:
    """No replay is of everything: who asks says which letters are meant, whichever way they ask."""
    if not from_key(key).words():
        raise RefusedError(
            "expected a condition that says which letters are meant, got none: see pushops dlq triage, and"
            " pushops dlq replay --dry-run; --since 30d means all of a month"
        )


def page_rows(settings: Settings, options: RunOptions) -> int:
    """As many as are sent within a third of their lease, and no more than an act or two is granted: it looks at all."""
    pace = _fastest(settings) if (asked := options.get("rate")) is None else min(float(asked), _whole(settings))
    seconds = min(settings.replay_lease.total_seconds() / 3, AHEAD)
    return min(PAGE, max(LEAST, int(pace * seconds)))


def slots(settings: Settings) -> int:
    """No more workers at once than the pace gives work to: the others are there for live messages."""
    return min(settings.replay_parallel, max(1, ceil(_fastest(settings) / OF_ONE)))


def _whole(settings: Settings) -> float:
    return max([settings.provider_rate, *settings.provider_rates.values()])


def _fastest(settings: Settings) -> float:
    """Letters a second, to the push service that takes most of them."""
    return settings.replay_share * _whole(settings)


DRAIN: Final = Sweep(
    name=NAME,
    meaning="parked letters are sent again, at a share of the pace, as far as they still make sense",
    table="{schema}.push_dlq",
    index="push_dlq_parked",
    key=(Column("dlq_id", "uuid"),),
    identity=Column("dlq_id", "uuid"),
    predicate="replay_state = 'parked' AND next_replay_at <= %(asked)s::timestamptz AND "
    + POISON_TOO
    + " AND "
    + CLAUSE,
    windows=(Window("asked", (), floor=timedelta()),),
    acting=Acting(claim, act, settle),
    filtered=filtered,
    admits=admits,
    page_rows=page_rows,
    max_parallel=slots,
    lease=lambda _settings: LEASE,
)
