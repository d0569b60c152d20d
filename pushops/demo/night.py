"""The night itself: beats and workers purge, browsers come back, things go wrong, and the run ends all the same."""

import time
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pushops.demo import audience, store
from pushops.demo.crew import Crew
from pushops.demo.faults import Trouble
from pushops.demo.readers import Readers
from pushops.demo.report import After
from pushops.demo.stage import Scale
from pushops.demo.telling import Moved, Teller
from pushops.demo.traffic import Traffic
from pushops.errors import PushopsError
from pushops.runtime import Runtime
from pushops.sandbox import processes

LOOK_EVERY: Final = 0.3
START_SECONDS: Final = 90.0
PATIENCE: Final = 240.0  # beyond what the purge should take: the machine may be busy
OPEN: Final = frozenset({"running", "pausing", "paused", "cancelling"})


@dataclass(frozen=True)
class Night:
    rt: Runtime
    scale: Scale
    teller: Teller
    hired: Crew
    readers: Readers

    def purge(self) -> After:
        """Purge it all, with trouble; what the database holds afterwards. Raises PushopsError past its patience."""
        self._announce()
        traffic = Traffic(self.rt.settings, audience.doomed(self.scale), self.scale.returning)
        with traffic.closed_at_the_end():
            self.hired.hire_workers(self.scale.WORKERS)
            traffic.come_back(self.scale.returning // 4)
            self.teller.say(f"{len(traffic.returns)} browsers come back before it begins, with fresh keys")
            self.hired.hire_beats(self.scale.BEATS)
            self.hired.wait_for_workers()
            trouble = Trouble(self.rt, self.hired, self._first_run())
            self.readers.phase = "purge"
            with traffic.flowing(self.scale.seconds * 0.9), trouble.brewing():
                self._watch(traffic, trouble)
        self._send_the_crew_home()
        return self._look(traffic, trouble)

    def _announce(self) -> None:
        share = self.scale.tombstones / (self.scale.tombstones + self.scale.live)
        self.teller.act("Then pushops: two beats and two workers, many small transactions, and trouble")
        self.teller.say(
            f"PUSHOPS_SWEEP_MAX_SHARE=1, since a run that takes {share:.0%} of a table is refused without it"
        )
        pace = f"PUSHOPS_SWEEP_BATCH_ROWS={self.scale.batch_rows} PUSHOPS_SWEEP_PAUSE_MS={self.scale.pause_ms}"
        self.teller.say(f"{pace}, slow enough to watch")

    def _first_run(self) -> UUID:
        processes.wait_until(lambda: bool(self._runs()), START_SECONDS, "a beat to open a run")
        return self._runs()[0].run_id

    def _runs(self) -> list[store.Run]:
        with self.rt.db.transaction(statement_timeout=audience.PATIENCE) as tx:
            return store.runs(tx)

    def _watch(self, traffic: Traffic, trouble: Trouble) -> None:
        deadline = time.monotonic() + self.scale.seconds + PATIENCE
        with self.teller.progress("purged", self.scale.tombstones) as moved:
            while not self._over(traffic, trouble, moved):
                if time.monotonic() > deadline:
                    raise PushopsError("expected the purge to end, got a run that is still open")
                time.sleep(LOOK_EVERY)

    def _over(self, traffic: Traffic, trouble: Trouble, moved: Moved) -> bool:
        """Whether the run is closed and both beats have had their turn."""
        while trouble.news:
            self.teller.say(trouble.news.pop(0))
        runs = self._runs()
        moved(sum(run.rows for run in runs), f"{len(traffic.returns)} came back")
        return runs[0].state not in OPEN and self._asked() == len(self.hired.beats)

    def _asked(self) -> int:
        return sum(1 for beat in self.hired.beats if beat.says("Sending due task purge-tombstones"))

    def _send_the_crew_home(self) -> None:
        """The beats first: what they asked for in the last moment opens a run that finds nothing, and closes."""
        self.readers.phase = "after"
        self.hired.dismiss(self.hired.beats)
        idle = lambda: not any(run.state in OPEN for run in self._runs())  # noqa: E731  (a name for a condition)
        processes.wait_until(idle, START_SECONDS, "the last run to close")
        self.hired.dismiss(self.hired.workers)

    def _look(self, traffic: Traffic, trouble: Trouble) -> After:
        with self.rt.db.transaction(statement_timeout=audience.PATIENCE) as tx:
            return After(
                rows=store.rows(tx),
                returns=traffic.returns,
                runs=store.runs(tx),
                folded=store.folded(tx),
                killed=store.attempts(tx, trouble.killed),
                ignored=self._ignored(trouble.doubled),
                beats=self._asked(),
                reader_errors=len(self.readers.errors),
                traffic_errors=len(traffic.errors),
            )

    def _ignored(self, doubled: UUID | None) -> int:
        """Deliveries of the doubled batch that found its receipt, as the workers' own events say."""
        return sum(
            event.get("outcome") == "already_applied" and event.get("batch") == str(doubled)
            for worker in self.hired.workers
            for event in worker.events()
        )
