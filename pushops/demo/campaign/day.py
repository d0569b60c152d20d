"""The acts in order: a campaign on a bad day, the first minute of an outage, the rest of it, and an operator's word."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pushops.delivery import guard
from pushops.demo.browsers import SERVICES
from pushops.demo.campaign import looking, store, subscribers
from pushops.demo.campaign.desk import Desk
from pushops.demo.campaign.judging import CAMPAIGN, EARLY, LATE, Counted, Found, Planned, Rows
from pushops.demo.campaign.mix import CUTS, DAWN, DAY, LASTING, OUTAGE, Mix, cut_connections, mend_connections
from pushops.demo.campaign.subscribers import PATIENCE, Subscriber
from pushops.demo.crew import Crew
from pushops.demo.stage import Scale
from pushops.demo.telling import Teller
from pushops.runtime import Runtime
from pushops.sandbox.push import PushService

TIME_PASSES: Final = timedelta(hours=2)  # beyond the hour of answers that the guard looks at
CUT_AFTER: Final = 0.3  # of the campaign
OPERATOR: Final = "demo-operator"
REASON: Final = "the push services were down, the browsers are alive"
_SERVICES: Final = [name for name, _, _ in SERVICES]


@dataclass
class Day:
    """Everything that sends, everyone who is sent to, and what was seen on the way."""

    rt: Runtime
    desk: Desk
    scale: Scale
    teller: Teller
    hired: Crew
    everyone: list[Subscriber] = field(default_factory=list)
    counted: dict[str, Counted] = field(default_factory=dict)

    def tell(self) -> tuple[Planned, Found]:
        """All of it, in order. Raises PushopsError past its patience."""
        self._register()
        planned = self._plan()
        self._campaign(planned)
        guards_of_the_day = len(looking.guards(self.rt))
        self._let_time_pass()
        before = frozenset(key for key, row in looking.rows(self.rt).items() if row.live)
        self._first_minute(planned)
        took = looking.believed(self.rt)
        self._outage()
        gave = looking.taken_back(self.rt)
        rejected = self._judge()
        self.desk.watch(LATE, lambda now: now.done)
        self._count(LATE)
        found = Found(
            messages=self.counted,
            before=before,
            rows=looking.rows(self.rt),
            guards_of_the_day=guards_of_the_day,
            took=took,
            gave=gave,
            rejected=rejected,
            guards=looking.guards(self.rt),
            pages=looking.pages(self.hired),
        )
        return planned, found

    @property
    def _push(self) -> PushService:
        return self.desk.service

    def _register(self) -> None:
        self.teller.act(f"A campaign to {self.scale.subscribers:,} browsers of four push services")
        self.hired.hire_workers(self.scale.WORKERS)
        self.hired.hire_beats(1)
        self.everyone = subscribers.issue(self.rt, self._push, self.scale)
        subscribers.register(self.rt, self.everyone)
        with self.rt.db.transaction() as tx:
            store.write_history(tx, _SERVICES)
        counts = ", ".join(f"{name} {count:,}" for name, count in subscribers.by_service(self.everyone))
        self.teller.say(f"registered in bulk, their secrets sealed: {counts}")
        self.teller.say("the sandbox's push service plays all four: it checks every token and decrypts every message")
        self.teller.say("four weeks of answers with 3 % of deaths are written down as known: what is usual here")
        self.hired.wait_for_workers()

    def _plan(self) -> Planned:
        """Whom what will meet: the scripts' hash decides, so all of it is known before anything is sent."""
        day = self._chosen(DAY, self.everyone)
        dawn = self._chosen(DAWN, [one for one in self.everyone if EARLY in one.tags])
        return Planned(frozenset(one.endpoint_hash for one in self.everyone), day, dawn, len(_SERVICES))

    def _chosen(self, mix: Mix, among: list[Subscriber]) -> dict[str, Rows]:
        chosen = mix.chosen(self._push, [one.endpoint for one in among])
        return {fate: subscribers.hashes(among, endpoints) for fate, endpoints in chosen.items()}

    def _campaign(self, planned: Planned) -> None:
        shares = ", ".join(f"{part.share:.1%} {part.fate}" for part in DAY.parts)
        self.teller.say(f"its answers today: {shares}, 201 for the rest")
        DAY.begin(self._push, planned.day)
        self.desk.send(CAMPAIGN)
        self.desk.watch(CAMPAIGN, lambda now: now.ended > CUT_AFTER * now.recipients or now.done)
        cut_connections(self._push)
        self.teller.say(f"the next {CUTS} requests to FCM are accepted, and their connections reset with all on them")
        self.desk.watch(CAMPAIGN, lambda now: now.done)
        mend_connections(self._push)
        DAY.end(self._push, but=LASTING)
        counted = self._count(CAMPAIGN)
        ends = ", ".join(f"{name} {len(counted.ended(name)):,}" for name in ("accepted", "gone", "not_found", "poison"))
        self.teller.say(f"{ends}; {len(counted.retried):,} were tried again, {len(counted.doubled):,} came twice")

    def _let_time_pass(self) -> None:
        with self.rt.db.transaction(statement_timeout=PATIENCE) as tx:
            store.age(tx, TIME_PASSES)

    def _first_minute(self, planned: Planned) -> None:
        self.teller.act("Two hours later (the rows are aged, no clock is touched) an outage begins")
        shares = " and ".join(f"{part.share:.0%} {part.fate}" for part in DAWN.parts)
        self.teller.say(f"{shares}: more than usual, not yet more than can be, so it is believed")
        DAWN.begin(self._push, planned.dawn)
        self.desk.send(EARLY, [EARLY])
        self.desk.watch(EARLY, lambda now: now.done)
        self._count(EARLY)

    def _outage(self) -> None:
        took = looking.believed(self.rt)
        self.teller.say(f"its first minute ended {len(took.ended):,} and voted against {len(took.voted):,}")
        self.teller.act("Then everything answers 404 and 410")
        self._push.outage(OUTAGE)
        self.desk.send(LATE, [LATE])
        self.desk.watch(LATE, lambda _: self._all_guarded())
        gave = looking.taken_back(self.rt)
        self.teller.say(f"the guard opened and gave back {len(gave.ended):,} and the votes of {len(gave.voted):,}")
        for one in guard.list_guards(self.rt):
            self.teller.say(f"guard of {one.push_service} ({one.why}): {one.pending:,} answers wait for an operator")

    def _all_guarded(self) -> bool:
        found = looking.guards(self.rt)
        return len(found) == len(_SERVICES) and all(one.turned_back for one in found)

    def _quiet(self) -> None:
        """Wait for the last answers of the outage: one that came after the operator's word would be believed."""
        self.desk.watch(LATE, lambda now: now.claimed == 0)

    def _judge(self) -> int:
        """The push services are well again; the operator says that what the guards kept was not so."""
        self.teller.act("The push services recover, and an operator rejects the evidence")
        self._quiet()
        DAWN.end(self._push)
        self._push.outage(None)
        rejected = 0
        for name in _SERVICES:
            judged = self.desk.ops.reject_guard(name, reason=REASON, actor=OPERATOR, dry_run=False)
            rejected += judged.answers
            self.teller.say(f"guard reject {name}: {judged.answers:,} answers discarded")
        return rejected

    def _count(self, name: str) -> Counted:
        self.counted[name] = self.desk.count(name, self.everyone)
        return self.counted[name]
