"""Letters that are claimed go out in groups: opened, encrypted, posted, and settled while the next ones are sent."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters.letter import HELD, ReplayOutcome, counted_as
from pushops.deadletters.replay.deciding import FAILS, FAILURES, streaks
from pushops.deadletters.replay.settling import Hand, Opened, Settled, settle
from pushops.deadletters.store import gates, replaying
from pushops.deadletters.store.replaying import Sifted
from pushops.delivery import loading, meaning
from pushops.delivery.answer import Answer
from pushops.delivery.classify import Outcome
from pushops.delivery.errors import PayloadStoreError
from pushops.delivery.meaning import Attempt
from pushops.delivery.preparing import Outgoing, prepare
from pushops.delivery.store import lanes
from pushops.delivery.tools import Tools
from pushops.delivery.transport import Request
from pushops.runtime import Runtime
from pushops.sweeps import store as sweeps_store
from pushops.sweeps.sql import PLAN_INDEX

# Letters in an opening: if their worker is killed, they are in doubt. Few before anything succeeded.
GROUP: Final = 250
FIRST_GROUP: Final = 50
SETTLE_ROWS: Final = 250  # a transaction costs as much as fifty of its rows
FEW: Final = 8  # that are out before the first success
# Seconds, on the monotonic clock.
FRESH: Final = 2.0  # how long an opening's look at owner and state is good for
SETTLE_AFTER: Final = 0.2


@dataclass(frozen=True)
class Group:
    """Letters of one opening, at a moment by the database's clock and by the monotonic one."""

    letters: Sequence[Opened]
    at: datetime
    since: float


@dataclass
class Sent:
    """What came of letters, by outcome. ``left``: never claimed, or given back untried; ``held`` of them by a gate.

    ``stop``: why the run should end.
    """

    counted: Counter[ReplayOutcome] = field(default_factory=Counter)
    held: int = 0
    left: int = 0
    stop: str | None = None
    store_failed: bool = False


class Sender:
    """Sends letters of one hand, once. What was opened and not tried is given back unchanged at the end."""

    def __init__(
        self,
        rt: Runtime,
        tools: Tools,
        hand: Hand,
        *,
        stop_at: float,
        asked: Callable[[], bool] = lambda: False,
        forced: bool = False,
    ) -> None:
        self.sent = Sent()
        self._rt, self._tools, self._hand = rt, tools, hand
        self._stop_at, self._asked = stop_at, asked
        self._gates = gates.params(tools.chain.vapid, forced=forced)
        self._threads = ThreadPoolExecutor(2, "pushops-replay")  # one opens, the other settles
        self._left: deque[UUID] = deque()
        self._alone: deque[UUID] = deque()  # to be rendered: each may take this worker with it
        self._opening: Future[Group] | None = None
        self._ready: deque[tuple[Opened, Group]] = deque()
        self._unsent: list[Opened] = []
        self._tried: set[UUID] = set()
        self._out: Counter[str] = Counter()
        self._answers: list[Attempt] = []
        self._answered_at = 0.0
        self._settling: Future[list[Settled]] | None = None
        self._accepted = 0
        self._in_row = 0

    def run(self, ids: Sequence[UUID], rendered: Collection[UUID] = ()) -> Sent:
        """Parked letters, claimed as they are opened; those that are to be rendered come last and one by one."""
        self._left.extend(each for each in ids if each not in rendered)
        self._alone.extend(each for each in ids if each in rendered)
        return self._run(ids)

    def run_opened(self, group: Group) -> Sent:
        """The same for letters that have been opened."""
        self._ready.extend((letter, group) for letter in group.letters)
        return self._run([letter.dlq_id for letter in group.letters])

    def _run(self, ids: Sequence[UUID]) -> Sent:
        with ExitStack() as last:
            last.callback(self._threads.shutdown)
            last.callback(self._give_back, ids)
            last.callback(self._settle_all)
            exchange = self._tools.transport.exchange(
                self._requests(), in_flight=self._rt.settings.in_flight_total, stop_starting_at=self._stop_at
            )
            for request, answer in exchange:
                self._out[request.tag.row.push_service] -= 1
                if answer is None:
                    self._not_sent(request.tag)
                else:
                    self._answered(request.tag, answer)
                self._settle(least=SETTLE_ROWS)
        return self.sent

    def _requests(self) -> Iterator[Request[Outgoing] | None]:
        """What the network takes next; None where there is nothing at the moment and something is still out."""
        while True:
            self._settle(least=SETTLE_ROWS)
            out = self._next()
            if out is not None:
                self._tried.add(_letter(out).dlq_id)
                made = prepare(self._tools.chain, self._tools.tokens, out)
                if isinstance(made, Answer):
                    self._answered(out, made)
                else:
                    self._out[out.row.push_service] += 1
                    yield made
            elif self._over() or not (self._opening or self._ready or self._left or self._alone):
                self._settle(least=1)  # what hangs keeps nothing else in doubt
                return
            else:
                yield None

    def _over(self) -> bool:
        """Nothing more is begun: the time is over, somebody asked, or going on would fail as well."""
        stopped = self.sent.stop is not None or self.sent.store_failed or self._in_row >= FAILURES
        return stopped or time.monotonic() >= self._stop_at or self._asked()

    def _next(self) -> Outgoing | None:
        """The next letter that may go out; those that cannot be made are answers already."""
        while not self._over():
            self._open_ahead()
            if not self._ready or not self._has_room(self._ready[0][0]):
                return None
            letter, group = self._ready.popleft()
            out = self._made(letter, group)
            if out is not None:
                return out
        return None

    def _has_room(self, letter: Opened) -> bool:
        """Few are out before anything succeeded: what fails fails for few."""
        return self._out[letter.push_service] < self._limit()

    def _limit(self) -> int:
        return min(self._rt.settings.in_flight, FEW + 2 * self._accepted)

    def _open_ahead(self) -> None:
        """Take in what was opened, and have the next group opened before this one runs out."""
        if self._opening is not None and (self._opening.done() or not (self._ready or self._out.total())):
            self._take_in()
        size = min(GROUP, FIRST_GROUP + 2 * self._accepted)
        wanted = len(self._ready) < size // 2 if self._left else bool(self._alone) and not self._ready
        if self._opening is None and wanted:
            self._opening = self._threads.submit(self._open, self._next_group(size))
            if not self._ready and not self._out.total():
                self._take_in()

    def _next_group(self, size: int) -> list[UUID]:
        if not self._left:
            return [self._alone.popleft()]
        return [self._left.popleft() for _ in range(min(size, len(self._left)))]

    def _take_in(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        group = opening.result()
        self.sent.held += sum(letter.verdict == HELD for letter in group.letters)
        self.sent.counted.update(ends_of(group.letters))
        self._ready.extend((letter, group) for letter in group.letters if letter.verdict is None)

    def _open(self, ids: Sequence[UUID]) -> Group:
        """Claim and open in one transaction: who dies before its commit had none of them."""
        since = time.monotonic()
        hand, lease = self._hand, self._rt.settings.replay_lease
        with self._rt.db.transaction(planner=PLAN_INDEX) as tx:
            mine = replaying.claim(tx, ids, token=hand.token, lease=lease, run_id=hand.run_id)
            letters = opened(tx, self._rt, hand, sorted(mine), self._gates)
            ended = ends_of(letters)
            if ended and hand.run_id is not None:
                sweeps_store.add_outcomes(tx, hand.run_id, ended)
        return Group(letters, tx.now, since)

    def _made(self, letter: Opened, group: Group) -> Outgoing | None:
        """The letter with its payload; None where it is not sent now, or is at fault."""
        if time.monotonic() - group.since > FRESH:
            self._unsent.append(letter)
            return None
        payload = self._payload(letter)
        if payload is None:
            self._unsent.append(letter)
            return None
        out = Outgoing(letter, payload if isinstance(payload, bytes) else b"", group.at, group.since)
        if isinstance(payload, Answer):
            self._tried.add(letter.dlq_id)
            self._answered(out, payload)
            return None
        if out.now >= letter.expires_at:
            self._unsent.append(letter)
            return None
        return out

    def _payload(self, letter: Opened) -> bytes | Answer | None:
        """None where the object store is away: then nothing of this hand can be sent."""
        try:
            if letter.rendered:
                return loading.rendered_for(self._rt, letter)
            return loading.payload_of(self._rt, letter)
        except PayloadStoreError as error:
            self._rt.events.emit("send.store_failed", error=str(error))
            self.sent.store_failed = True
            return None

    def _not_sent(self, out: Outgoing) -> None:
        letter = _letter(out)
        self._tried.discard(letter.dlq_id)
        self._unsent.append(letter)

    def _answered(self, out: Outgoing, answer: Answer) -> None:
        attempt = meaning.judge(self._tools.table, out, answer)
        if not self._answers:
            self._answered_at = time.monotonic()
        self._answers.append(attempt)
        outcome = attempt.verdict.outcome
        if outcome is Outcome.ACCEPTED:
            self._accepted += 1
            self._in_row = 0 if self._in_row < FAILURES else self._in_row
        elif outcome in FAILS:
            self._in_row += 1

    def _settle(self, *, least: int) -> None:
        """Have settled what has waited long enough or is enough for a transaction of its own, one after the other."""
        if self._settling is not None:
            if not self._settling.done():
                return
            self._settled()
        ripe = len(self._answers) >= least or time.monotonic() - self._answered_at > SETTLE_AFTER
        if self._answers and (ripe or self._in_row >= FAILURES):
            answers, self._answers = self._answers, []
            streak = streaks(attempt.verdict.outcome for attempt in answers)
            self._settling = self._threads.submit(settle, self._rt, self._hand, answers, streak)

    def _settled(self) -> None:
        settling, self._settling = self._settling, None
        for done in settling.result() if settling is not None else ():
            self.sent.counted.update(done.counted)
            self.sent.stop = self.sent.stop or done.stop
            for origin, key_id in done.to_resign:
                self._tools.tokens.renew(key_id, origin)

    def _settle_all(self) -> None:
        while self._settling is not None or self._answers:
            self._settled()
            self._settle(least=1)

    def _give_back(self, ids: Sequence[UUID]) -> None:
        """What was never sent. What may have been is left as it is: its lease runs out, and then it is in doubt."""
        if self._opening is not None and self._opening.exception() is None:
            self._take_in()
        self._unsent += [letter for letter, _ in self._ready]
        self.sent.left = len(self._left) + len(self._alone)
        untried = set(ids).difference(self._tried, self._left, self._alone)
        if not untried:
            return
        opened = {letter.dlq_id: letter.attempt for letter in self._unsent}
        with self._rt.db.transaction(planner=PLAN_INDEX) as tx:
            if self._hand.closed:
                replaying.forget(tx, opened)
            else:
                self.sent.left += replaying.release(tx, self._hand.token, untried, opened)


def ends_of(letters: Iterable[Sifted | Opened]) -> Counter[ReplayOutcome]:
    """What a run counts of those that the gates have ended."""
    return Counter(counted_as(one.verdict) for one in letters if one.verdict not in (None, HELD))


def opened(tx: Tx, rt: Runtime, hand: Hand, ids: Sequence[UUID], known: Mapping[str, Any]) -> list[Opened]:
    """Letters of ours, each with an attempt, or with the verdict that kept it from having one."""
    return replaying.open_letters(
        tx,
        ids,
        known,
        Opened,
        token=hand.token,
        lease=rt.settings.replay_lease,
        by=hand.by,
        run_id=hand.run_id,
        why=hand.why,
        closed=hand.closed,
    )


def make_lanes(tx: Tx, letters: Iterable[Sifted]) -> None:
    """The ways there that nobody has taken yet."""
    ways = {(one.label or one.push_service, one.host, one.vapid_key_id) for one in letters if one.lane_id is None}
    for service, host, key in sorted(ways):
        lanes.find(tx, service, host, key)


def _letter(out: Outgoing) -> Opened:
    assert isinstance(out.row, Opened)  # noqa: S101  (we made it)
    return out.row
