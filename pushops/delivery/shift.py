"""One shift of the pump: claims, encrypts, posts and settles, push services side by side.

No transaction holds the shift up: a clerk has threads and connections of their own, and claims the next rows and
settles the last answers while the network and encryption go on. What was claimed and not begun within two seconds is
given back, since owner and state were looked at when it was claimed.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from pushops.delivery import loading, settling, valves
from pushops.delivery.answer import Answer
from pushops.delivery.classify import Outcome
from pushops.delivery.clerk import Batch, Brought, Clerk, Look
from pushops.delivery.errors import PayloadStoreError
from pushops.delivery.preparing import Outgoing, host_of, prepare
from pushops.delivery.settling import Attempt, Settled
from pushops.delivery.store import lanes as lanes_store
from pushops.delivery.store import ledger
from pushops.delivery.store.lanes import Lane
from pushops.delivery.store.ledger import Claimed
from pushops.delivery.tools import Tools, open_tools
from pushops.delivery.transport import Request
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_INDEX
from pushops.sweeps.valves import Reading

__all__ = ["NAME", "Shift", "Tools", "open_tools"]

NAME: Final = "send-due"
# Seconds, on the monotonic clock.
FRESH: Final = 2.0  # how long a claim's look at owner and state is good for
SETTLE_AFTER: Final = 0.2
LOOK_AGAIN: Final = 0.05  # between two looks that found nothing
LOOK_BESIDE: Final = 0.5  # between two looks for other push services while one goes on
QUICK: Final = 0.5  # a claim that is used up sooner was too small
READING_GOOD_FOR: Final = 1.0
RENDERING: Final = 0.5  # of all push services together, before what is rendered goes out: it must be fresh by then

CLAIM_LEAST: Final = 50
CLAIM_MOST: Final = 500
STORE_AWAY: Final = 3  # messages whose payload the object store does not give
SETTLE_ROWS: Final = 500  # a batch costs five milliseconds of its own: about fifteen statements
SETTLE_MOST: Final = 2_000  # answers that wait behind a batch, then the network waits too
WORKER_LOST: Final = "worker_lost"
FAILURES: Final = 20  # in a row: so many may be a trouble, in which every further request is one too many


@dataclass
class _Service:
    """What a shift has of one push service: rows that wait for the network, answers that wait to be settled."""

    waiting: deque[Outgoing] = field(default_factory=deque)
    answers: list[Attempt] = field(default_factory=list)
    batch: Batch | None = None  # that is being settled; one batch at a time: streaks are in the order of answers
    out: int = 0
    claim: int = CLAIM_LEAST
    more: bool = False
    limited: bool = False  # by its rate: more may be claimed in a moment
    failures: int = 0  # in a row, the last of the answers
    claimed_at: float = 0.0
    shut_at: float = 0.0  # when it was last found to be in trouble
    answered_at: float = 0.0  # since when the oldest answer waits

    @property
    def runs_low(self) -> bool:
        return len(self.waiting) < max(1, self.claim // 2)


class Shift:
    """Runs once. ``rows`` counts attempts that were settled, ``more`` says that rows were due when it ended."""

    def __init__(self, rt: Runtime, tools: Tools, length: timedelta, on_full: Callable[[], None]) -> None:
        self.rows = 0
        self.closed: Reading | None = None
        self._rt = rt
        self._tools = tools
        self._token: UUID = uuid4()
        self._until = time.monotonic() + length.total_seconds()
        self._read_at = time.monotonic()
        self._looked_at = 0.0
        self._clerk = Clerk(rt, tools.chain.vapid, self._token)
        self._looking: Future[Look] | None = None
        self._settled_since = False  # since the last look began: what is to be tried again at once is due
        self._services: dict[str, _Service] = {}
        self._service_of: dict[int, str] = {}  # by lane: a row keeps the label that its host had when it was saved
        self._unreadable: set[UUID] = set()  # messages whose payload the object store does not give at the moment
        self._on_full: Callable[[], None] | None = on_full

    @property
    def more(self) -> bool:
        return not self._unreadable and any(service.more for service in self._services.values())

    def run(self) -> None:
        """Send until nothing is due or the time is over; what is out is waited for, what was not begun given back."""
        try:
            exchange = self._tools.transport.exchange(self._requests(), in_flight=self._rt.settings.in_flight_total)
            for request, answer in exchange:
                service = self._services[self._service_of[request.tag.row.lane_id]]
                service.out -= 1
                if answer is None:
                    self._give_back([request.tag])
                else:
                    self._answered(service, request.tag, answer)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Answers first: what is not settled is ambiguous, what is not given back is only late.

        From the last line up, and each whatever becomes of the others: one push service's answers are not another's.
        """
        with ExitStack() as last:
            last.callback(self._clerk.close)
            last.callback(self._give_back_all)
            for service in self._services.values():
                last.callback(self._await, service)
            for name, service in self._services.items():
                last.callback(self._hand_over, name, service, least=1, wait=True)

    def _give_back_all(self) -> None:
        """What waits, and what is being claimed. It is still due."""
        for service in self._services.values():
            service.more = service.more or bool(service.waiting)
            self._give_back(service.waiting)
        for one in self._looking.result().brought if self._looking is not None else ():
            service = self._of(one.service)
            service.more = service.more or bool(one.taken.rows)
            self._give_back_rows(one.taken.rows)

    def _requests(self) -> Iterator[Request[Outgoing] | None]:
        """What the network takes next; None where there is nothing at the moment and something is still out."""
        while True:
            self._settle(least=SETTLE_ROWS)
            found = self._next()
            if found is not None:
                service, out = found
                made = prepare(self._tools.chain, self._tools.tokens, out)
                if isinstance(made, Answer):
                    self._answered(service, out, made)
                else:
                    service.out += 1
                    yield made
            elif self._over():
                return
            elif self._outstanding():
                yield None
            elif self._last_look():
                if not any(service.waiting for service in self._services.values()):
                    yield None  # what is due had ended, or is in somebody else's hands: not as fast as one can
            elif any(service.limited for service in self._services.values()):
                yield None
            else:
                return

    def _next(self) -> tuple[_Service, Outgoing] | None:
        """A row whose push service has room, claimed freshly enough."""
        self._look_ahead()
        limit = self._rt.settings.in_flight
        for service in self._services.values():
            while service.waiting and service.out < limit:
                out = service.waiting.popleft()
                if out.now >= out.row.expires_at:
                    self._give_back([out])
                    continue
                if time.monotonic() - out.since < FRESH:
                    return service, out
                self._give_back([out, *service.waiting])
                service.waiting.clear()
                service.claim = max(CLAIM_LEAST, service.claim // 2)
        return None

    def _over(self) -> bool:
        now = time.monotonic()
        if self.closed is None and now - self._read_at > READING_GOOD_FOR:
            self.closed, self._read_at = valves.reading(self._rt, NAME), now
        return self.closed is not None or now >= self._until

    def _outstanding(self) -> bool:
        return any(service.out for service in self._services.values())

    def _look_ahead(self) -> None:
        """Take in what the clerk claimed, and have more claimed before the rows run out."""
        if self._looking is not None:
            if not self._looking.done():
                return
            self._take_in(self._looking)
        if self._runs_low() and not self._over():
            self._look()

    def _runs_low(self) -> bool:
        """A push service that has more is about to run out; else now and then, as long as some have nothing waiting."""
        limit = self._rt.settings.in_flight
        dry, going = False, False
        for service in self._services.values():
            room = service.out < limit
            if room and service.runs_low and service.more and not service.limited:
                return True
            dry = dry or not service.waiting
            going = going or (room and bool(service.waiting))
        since = time.monotonic() - self._looked_at
        return (dry and since >= LOOK_BESIDE) if going else since >= LOOK_AGAIN

    def _look(self) -> "Future[Look]":
        limit = self._rt.settings.in_flight
        busy = {name for name, one in self._services.items() if not one.runs_low or one.out >= limit}
        sizes = {name: service.claim for name, service in self._services.items()}
        self._settled_since = False
        self._looking = self._clerk.look(busy, sizes, CLAIM_LEAST, frozenset(self._unreadable))
        return self._looking

    def _last_look(self) -> bool:
        """Nothing waits and nothing is out. Whether there is more after all, once everything is settled."""
        self._settle(least=1, wait=True)
        if self._looking is not None and self._take_in(self._looking):
            return True
        if not self._settled_since and self._looked_at:
            return False
        return self._take_in(self._look())

    def _take_in(self, looking: "Future[Look]") -> bool:
        """True where the look brought anything."""
        self._looking = None
        look = looking.result()
        self._looked_at = time.monotonic()
        for name, service in self._services.items():
            if name not in look.services:
                service.more = service.limited = False
        found = [self._took(one) for one in look.brought]
        if look.error is not None:
            raise look.error
        return any(found)

    def _of(self, name: str) -> _Service:
        return self._services.setdefault(name, _Service())

    def _took(self, brought: Brought) -> bool:
        service, taken, lanes = self._of(brought.service), brought.taken, brought.lanes
        service.more, service.limited = taken.more, taken.limited
        if taken.more and not taken.limited:
            if brought.since - service.claimed_at < QUICK:
                service.claim = min(CLAIM_MOST, service.claim * 2)
            if service.claim == CLAIM_MOST and self._on_full is not None:
                self._on_full()
                self._on_full = None
        service.claimed_at = brought.since
        if brought.since < service.shut_at and not taken.probe:  # claimed before the trouble was known
            self._give_back_rows(taken.rows)
            return True
        known = {lane.lane_id: lane for lane in lanes}
        self._service_of.update(dict.fromkeys(known, brought.service))
        rows = self._alone(service, self._in_lane(taken.rows, known))
        loaded = self._loaded(rows)
        if len(loaded) < len(rows):
            service.claim = max(1, len(loaded))
        for row, payload in loaded:
            out = Outgoing(row, payload if isinstance(payload, bytes) else b"", taken.at, brought.since, taken.probe)
            if isinstance(payload, Answer):
                self._answered(service, out, payload)
            else:
                service.waiting.append(out)
        return bool(taken.rows) or (taken.more and not taken.limited)

    def _loaded(self, rows: Sequence[Claimed]) -> list[loading.Loaded]:
        """The rows with their payloads. What takes too long to render is given back: the next claim is smaller by it.

        Where the object store fails, a message's rows are given back and left alone for this shift, and others go on;
        after a few such messages it is away, and the shift ends. Nobody is rung then: beat looks again.
        """
        by_message: dict[UUID, list[Claimed]] = {}
        for row in rows:
            by_message.setdefault(row.message_id, []).append(row)
        loaded: list[loading.Loaded] = []
        until = time.monotonic() + RENDERING / len(self._services)
        for message_id, its_rows in by_message.items():
            try:
                if message_id not in self._unreadable:
                    loaded += list(loading.load(self._rt, self._token, its_rows, until - time.monotonic()))
                    continue
            except PayloadStoreError as error:
                self._rt.events.emit("send.store_failed", error=str(error))
                self._unreadable.add(message_id)
            self._give_back_rows(its_rows)
        if len(self._unreadable) >= STORE_AWAY:
            self._until = 0.0
        return loaded

    def _in_lane(self, rows: Sequence[Claimed], known: dict[int, Lane]) -> list[Claimed]:
        """Rows whose host and key are still those of their lane; who came back with another key changes lanes."""
        moved = [row for row in rows if not _belongs(row, known[row.lane_id])]
        if moved:
            with self._rt.db.transaction() as tx:
                found = [
                    lanes_store.find(tx, row.push_service, host_of(row.endpoint), row.vapid_key_id or "")
                    for row in moved
                ]
                ledger.release(tx, self._token, moved, found)
        return [row for row in rows if _belongs(row, known[row.lane_id])] if moved else list(rows)

    def _alone(self, service: _Service, rows: Sequence[Claimed]) -> Sequence[Claimed]:
        """What was rendered when a worker died is rendered with nobody beside it: one of them is who did it."""
        suspect = next((row for row in rows if row.rendered and row.last_code == WORKER_LOST), None)
        if suspect is None:
            return rows
        service.claim = 1
        self._settle(least=1, wait=True)
        self._give_back_rows([row for row in rows if row is not suspect])
        return [suspect]

    def _answered(self, service: _Service, out: Outgoing, answer: Answer) -> None:
        if not service.answers:
            service.answered_at = time.monotonic()
        attempt = settling.judge(self._tools.table, out, answer)
        service.answers.append(attempt)
        service.failures = 0 if attempt.verdict.outcome is Outcome.ACCEPTED else service.failures + 1

    def _settle(self, *, least: int, wait: bool = False) -> None:
        """Have settled what has waited long enough, or is enough for a transaction of its own; ``wait``: all of it."""
        for name, service in self._services.items():
            self._hand_over(name, service, least=least, wait=wait)
        for service in self._services.values() if wait else ():
            self._await(service)

    def _hand_over(self, name: str, service: _Service, *, least: int, wait: bool) -> None:
        """One push service's answers to the clerk, if there are enough of them and its last batch is settled."""
        trouble = service.failures >= FAILURES
        if service.batch and (wait or trouble or service.batch.done() or len(service.answers) >= SETTLE_MOST):
            self._await(service)
        ripe = len(service.answers) >= least or time.monotonic() - service.answered_at > SETTLE_AFTER
        if service.batch is None and service.answers and (ripe or trouble):
            service.batch = self._clerk.settle(name, service.answers)
            service.answers, service.failures = [], 0
            if trouble:  # nothing more is sent before it is known whether it is one
                self._await(service)

    def _await(self, service: _Service) -> None:
        """The end of what is being settled."""
        batch, service.batch = service.batch, None
        if batch is not None:
            self._settled(service, batch)

    def _settled(self, service: _Service, batch: "Batch") -> None:
        self._settled_since = True
        self._learn(service, batch.result())
        if any(attempt.probe for attempt in batch.attempts):
            self._looked_at = 0.0  # what waited for the probe may be due now
        self.rows += len(batch.attempts)

    def _learn(self, service: _Service, settled: Settled) -> None:
        """What the answers say of those that are not asked yet: other tokens, or to leave them alone."""
        for origin, key_id in settled.to_resign:
            self._tools.tokens.renew(key_id, origin)
        if settled.waits or settled.held_lanes:
            service.shut_at = time.monotonic()
            waiting, service.waiting = service.waiting, deque()
            shut: list[Outgoing] = []
            for out in waiting:
                closed = settled.waits or out.row.lane_id in settled.held_lanes
                (shut if closed else service.waiting).append(out)
            self._give_back(shut)

    def _give_back(self, outs: Collection[Outgoing]) -> None:
        self._give_back_rows([out.row for out in outs])

    def _give_back_rows(self, rows: Sequence[Claimed]) -> None:
        if rows:
            with self._rt.db.transaction(planner=PLAN_INDEX) as tx:
                ledger.release(tx, self._token, rows)


def _belongs(row: Claimed, lane: Lane) -> bool:
    return (row.vapid_key_id or "") == lane.vapid_key_id and host_of(row.endpoint) == lane.host
