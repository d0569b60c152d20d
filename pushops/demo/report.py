"""The end: what the database holds against what it should hold. A pure function judges, nothing is assumed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pushops.demo.stage import Scale
from pushops.demo.store import Attempts, Row, Run
from pushops.demo.traffic import Return

Number = int | float | Mapping[str, int]  # by name, of the summary


@dataclass(frozen=True)
class Before:
    """The table once the one DELETE was cancelled: ids of the doomed, live rows with their states.

    ``written`` is how many rows were put there in the first place.
    """

    written: int
    doomed: frozenset[UUID]
    live: Mapping[UUID, str]


@dataclass(frozen=True)
class After:
    """The database at the end, and what was done to it meanwhile.

    ``killed``: batches whose worker was killed; ``ignored``: deliveries of the doubled batch that found its receipt.
    """

    rows: Sequence[Row]
    returns: Sequence[Return]
    runs: Sequence[Run]
    folded: int
    killed: Sequence[Attempts]
    ignored: int
    beats: int
    reader_errors: int
    traffic_errors: int
    seconds: float = 0


@dataclass(frozen=True)
class Check:
    what: str
    expected: int | str
    found: int | str
    at_least: bool = False

    @property
    def ok(self) -> bool:
        if self.at_least and isinstance(self.found, int) and isinstance(self.expected, int):
            return self.found >= self.expected
        return self.found == self.expected

    def row(self) -> tuple[str, str, str, bool]:
        expected, found = (f"{v:,}" if isinstance(v, int) else v for v in (self.expected, self.found))
        return self.what, f"at least {expected}" if self.at_least else expected, found, self.ok


@dataclass(frozen=True)
class Verdict:
    checks: Sequence[Check]
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def __add__(self, other: "Verdict") -> "Verdict":
        """Both together; the right one's numbers win."""
        return Verdict([*self.checks, *other.checks], {**self.numbers, **other.numbers})

    def summary(self) -> dict[str, object]:
        return {"ok": self.ok, **self.numbers}


@dataclass(frozen=True)
class _Tally:
    """Who is where, by id. ``resurrected``: came back to their tombstones; ``new``: after those had been purged."""

    before: Before
    now: Mapping[UUID, Row]
    resurrected: frozenset[UUID]
    new: frozenset[UUID]

    @property
    def purged(self) -> int:
        return len(self.before.doomed - self.now.keys())

    @property
    def live_kept(self) -> int:
        return sum(1 for id_, state in self.before.live.items() if self._is(id_, state))

    @property
    def strangers(self) -> int:
        """Tombstones that outlived the night, and rows from nowhere."""
        return len(self.now.keys() - self.before.live.keys() - self.resurrected - self.new)

    def kept(self, ids: Iterable[UUID]) -> int:
        return sum(1 for id_ in ids if self._is(id_, "pending"))

    def _is(self, id_: UUID, state: str) -> bool:
        row = self.now.get(id_)
        return row is not None and row.state == state and row.sendable and not row.deleted


def judge(before: Before, after: After) -> Verdict:
    """Every row is accounted for: the living, those that came back, and nothing else."""
    resurrected = frozenset(found.id for found in after.returns if not found.inserted)
    new = frozenset(found.id for found in after.returns if found.inserted)
    tally = _Tally(before, {row.id: row for row in after.rows}, resurrected, new)
    checks = [*_checks_of_rows(tally), *_checks_of_runs(after, tally.purged), *_checks_of_guests(after)]
    return Verdict(checks, _numbers(tally, after))


def _numbers(tally: _Tally, after: After) -> dict[str, Number]:
    return {
        "eligible": len(tally.before.doomed),
        "purged": tally.purged,
        "resurrected_kept": tally.kept(tally.resurrected),
        "live_kept": tally.live_kept,
        "batches": sum(run.done for run in after.runs),
        "duplicates_ignored": after.ignored,
        "workers_killed": len(after.killed),
        "seconds": round(after.seconds, 1),
    }


def _checks_of_rows(tally: _Tally) -> list[Check]:
    doomed, live, back = tally.before.doomed, tally.before.live, tally.resurrected
    return [
        Check("rows after the one DELETE was cancelled", tally.before.written, len(doomed) + len(live)),
        Check("live rows as they were", len(live), tally.live_kept),
        Check("tombstones that came back, pending", len(back & doomed), tally.kept(back)),
        Check("came back after their purge, as new rows", len(tally.new - doomed), tally.kept(tally.new)),
        Check("tombstones purged", len(doomed - back), tally.purged),
        Check("rows that nobody can account for", 0, tally.strangers),
    ]


def _checks_of_runs(after: After, purged: int) -> list[Check]:
    done = sum(run.done for run in after.runs)
    survived = [batch for batch in after.killed if batch.attempts > 1 and batch.state in ("done", "split")]
    return [
        Check("rows folded into daily counters", purged, after.folded),
        Check("rows in the receipts", purged, sum(run.rows for run in after.runs)),
        Check("runs that took rows, whoever asked", 1, sum(1 for run in after.runs if run.rows)),
        Check("runs that ended done", len(after.runs), sum(1 for run in after.runs if run.state == "done")),
        Check("batches left undone", 0, sum(run.open for run in after.runs)),
        Check("done batches with their receipt", done, sum(run.settled for run in after.runs)),
        Check("receipts", done, sum(run.receipts for run in after.runs)),
        Check("workers killed in mid-transaction", 1, len(after.killed)),
        Check("their batches, done at a later attempt", len(after.killed), len(survived)),
        Check("second deliveries that did nothing", 1, after.ignored, at_least=True),
    ]


def _checks_of_guests(after: After) -> list[Check]:
    return [
        Check("beats that asked for the purge", Scale.BEATS, after.beats),
        Check("readers' errors", 0, after.reader_errors),
        Check("browsers that were turned away", 0, after.traffic_errors),
    ]
