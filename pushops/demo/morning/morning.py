"""The acts in order: last night's letters, a backup that comes back, triage, a preview, a drain beside live traffic."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pushops import Ops
from pushops.deadletters.service import Preview
from pushops.demo.campaign import looking as campaign
from pushops.demo.campaign.subscribers import Subscriber
from pushops.demo.crew import Crew
from pushops.demo.morning import counting, desk, night
from pushops.demo.morning.bulletins import SENT_AGO, STALE_SHARE, WEATHER, Cast, Fate, cast
from pushops.demo.morning.judging import ALONE, DRAINING, WAITING, Found, Planned
from pushops.demo.morning.store import Live
from pushops.demo.morning.trouble import Trouble
from pushops.demo.morning.users import CAMPAIGN, PER_SECOND, Users
from pushops.demo.stage import Scale
from pushops.demo.telling import Moved, Teller
from pushops.errors import PushopsError
from pushops.runtime import Runtime
from pushops.sandbox import processes
from pushops.sandbox.push import PushService
from pushops.settings import format_duration

ALONE_SECONDS: Final = 12.0
LOOK_EVERY: Final = 0.5
WAIT_SECONDS: Final = 240.0  # beyond what anything here should take: the machine may be busy
OPEN: Final = frozenset({"running", "pausing", "paused", "cancelling"})
KILL_AFTER: Final = 0.05  # of what is sent again
GROUPS_SHOWN: Final = 9
STILL: Final = 2.0  # seconds without a letter sent, after which a drain only waits


@dataclass
class Morning:
    """The operator, the crew, the people who are sent to, and what was seen on the way."""

    ops: Ops
    service: PushService
    scale: Scale
    teller: Teller
    hired: Crew
    everyone: Sequence[Subscriber]
    letters: list[Cast] = field(default_factory=list)

    def tell(self) -> tuple[Planned, Found]:
        """All of it, in order. Raises PushopsError past its patience."""
        planned = self._stage()
        self._hire()
        self.service.reset_counts()
        early = self._restore()
        triaged = self._triage()
        asked = self._preview()
        users = Users(self._rt.settings, self._reachable())
        with users.talking():
            self._listen(users)
            began, trouble = desk.now(self._rt), self._drain(users, asked)
        live = self._hear_out(users)
        found = Found(
            triaged=triaged,
            preview=asked,
            early=early,
            killed=len(trouble.killed),
            begun=trouble.left,
            letters=desk.letters(self._rt),
            run=desk.run(self._rt, trouble.run_id),
            busiest=desk.busiest(self._rt, trouble.run_id),
            remaining=(max(planned.expiry.values()) - began).total_seconds(),
            counted=counting.count(self.service, self.everyone, self.letters),
            live=live,
            live_errors=len(users.errors),
            alarms=desk.alarms(self.hired),
            other_pages=sum(page != desk.ALARM for page in campaign.pages(self.hired)),
        )
        self._tell_pace(planned, found)
        return planned, found

    @property
    def _rt(self) -> Runtime:
        return self.ops.runtime

    def _hire(self) -> None:
        self.hired.hire_workers(self.scale.MORNING_WORKERS)
        self.hired.hire_beats(1)
        self.hired.wait_for_workers()

    def _stage(self) -> Planned:
        """Before anybody works: an alarm is for letters that come in now, and these came in the night."""
        self.teller.act("The morning after: letters of last night, which ten attempts could not deliver")
        processes.wait_until(lambda: desk.none_owed(self._rt), WAIT_SECONDS, "the campaign's own letters to be written")
        rows = campaign.rows(self._rt)
        taken = frozenset(one.endpoint_hash for one in desk.letters(self._rt))
        self.letters = cast(
            self.everyone,
            revoked=frozenset(key for key, row in rows.items() if row.state == "revoked"),
            shy=frozenset(key for key, row in rows.items() if row.votes),
            taken=taken,
        )
        expiry = night.stage(self._rt, self.letters)
        self.teller.say(
            f"{len(self.letters):,} letters beside {len(taken)} of the campaign's: written by the workers' writer, then"
            f" put back by {format_duration(SENT_AGO)} (no clock is touched); {STALE_SHARE:.0%} are stale by now"
        )
        left = [one.subscriber.endpoint for one in self.letters if one.fate is Fate.LEFT]
        self.ops.unsubscribe(endpoints=left, actor="demo")
        self.teller.say(f"{len(left)} of these people unsubscribe over breakfast")
        fates = {fate: frozenset(one.hash for one in self.letters if one.fate is fate) for fate in Fate}
        return Planned(fates, taken, self._rt.settings.replay_share * self.scale.morning_rate, expiry)

    def _restore(self) -> int:
        """Letters are there again although they were sent: their table comes from a backup, their attempts stand."""
        desk.back_up(self._rt, WEATHER.name)
        run_id = desk.drain(self._rt, campaign=WEATHER.name)
        processes.wait_until(lambda: self._is_over(run_id), WAIT_SECONDS, "the weather to be sent again")
        early = desk.run(self._rt, run_id).outcomes.get("replayed", 0)
        desk.restore(self._rt, WEATHER.name)
        self.teller.say(f"somebody sent {early:,} again at six; the letters' table is restored from a backup of five")
        return early

    def _triage(self) -> int:
        self.teller.act(f"pushops dlq triage --limit {GROUPS_SHOWN}")
        for line in desk.command("dlq", "triage", "--limit", str(GROUPS_SHOWN)):
            self.teller.say(line)
        return desk.triaged(self._rt)

    def _preview(self) -> Preview:
        """By the gates that the drain itself goes through."""
        asked = desk.preview(self._rt)
        self.teller.act("What a replay would do, gate by gate; nothing is changed")
        reasons = ", ".join(f"{name} {rows:,}" for name, rows in sorted(asked.reasons.items()))
        self.teller.say(f"{asked.total:,} letters: {reasons}; poison {asked.poison_left_out:,}, left out unasked")
        self.teller.say(f"would be sent: {asked.would_send:,}, in {format_duration(asked.eta)} at its pace")
        return asked

    def _reachable(self) -> list[Subscriber]:
        live = {key for key, row in campaign.rows(self._rt).items() if row.live and not row.votes}
        return [one for one in self.everyone if one.endpoint_hash in live]

    def _listen(self, users: Users) -> None:
        """How long live messages take while nothing else is sent."""
        whole, share = self.scale.morning_rate, self._rt.settings.replay_share
        self.teller.act(f"A drain at {share:.0%} of {whole:,.0f} messages a second, beside live traffic, and trouble")
        self.teller.say(
            f"live: {PER_SECOND:.0f} small messages a second, each to one person, for {ALONE_SECONDS:.0f} s alone"
        )
        users.phase = ALONE
        until = time.monotonic() + ALONE_SECONDS
        processes.wait_until(lambda: time.monotonic() > until, ALONE_SECONDS + 5, "the time to pass")

    def _drain(self, users: Users, asked: Preview) -> Trouble:
        users.phase = DRAINING
        run_id = desk.drain(self._rt, error_class="retry_exhausted")
        trouble = Trouble(self._rt, self.hired, run_id, max(1, round(asked.would_send * KILL_AFTER)))
        deadline, moved_at, before = time.monotonic() + WAIT_SECONDS, time.monotonic(), -1
        with trouble.brewing(), self.teller.progress("drain", asked.total - asked.poison_left_out) as moved:
            while not self._is_over(run_id):
                now = self._look(trouble, moved)
                if now != before:
                    before, moved_at = now, time.monotonic()
                users.phase = DRAINING if time.monotonic() < moved_at + STILL else WAITING
                if time.monotonic() > deadline:
                    raise PushopsError("expected the drain to end, got a run that is still open")
                time.sleep(LOOK_EVERY)
            self._look(trouble, moved)
        return trouble

    def _look(self, trouble: Trouble, moved: Moved) -> int:
        while trouble.news:
            self.teller.say(trouble.news.pop(0))
        now = desk.progress(self._rt)
        moved(now.ended, f"{now.replayed:,} sent again, {now.claimed:,} in hand")
        return now.replayed

    def _is_over(self, run_id: UUID) -> bool:
        return desk.run(self._rt, run_id).state not in OPEN

    def _hear_out(self, users: Users) -> list[tuple[Live, str]]:
        """Every live message with what went on when it was sent, once all have an end."""

        def ended() -> bool:
            found = desk.live(self._rt, CAMPAIGN)
            return len(found) == len(users.sent) and all(one.seconds is not None for one in found)

        processes.wait_until(ended, WAIT_SECONDS, "the last live messages to be sent")
        return [(one, users.sent[one.message_id]) for one in desk.live(self._rt, CAMPAIGN)]

    def _tell_pace(self, planned: Planned, found: Found) -> None:
        self.teller.say(f"at most {found.busiest:.0f} letters a second, for a pace of {planned.share:.0f}")
        alone, beside = (f"p99 {found.p99(phase) * 1000:,.0f} ms" for phase in (ALONE, DRAINING))
        self.teller.say(f"live messages: {beside} beside the drain ({alone} alone)")
