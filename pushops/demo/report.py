"""The end: what the database holds against what it should hold. A pure function judges, nothing is assumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pushops.demo.store import Attempts, Row, Run
from pushops.demo.traffic import Return


@dataclass(frozen=True)
class Before:
    """The table before the first look of a beat: ids of what was doomed, and the live rows with their states."""

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
    left_by_one_delete: int = 0
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
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def summary(self) -> dict[str, object]:
        return {"ok": self.ok, **self.numbers}


def judge(before: Before, after: After) -> Verdict:
    """Every row is accounted for: the living, those that came back, and nothing else."""
    now = {row.id: row for row in after.rows}
    back = {found.id: found.inserted for found in after.returns}
    resurrected = {id_ for id_, inserted in back.items() if not inserted}
    purged = len(before.doomed - now.keys())
    live_kept = sum(1 for id_, state in before.live.items() if id_ in now and _is(now[id_], state))
    resurrected_kept = sum(1 for id_ in resurrected if id_ in now and _is(now[id_], "pending"))
    again = sum(1 for id_ in back.keys() - resurrected if id_ in now and _is(now[id_], "pending"))
    checks = [
        Check(
            "rows after the one DELETE was cancelled", len(before.doomed) + len(before.live), after.left_by_one_delete
        ),
        Check("live rows as they were", len(before.live), live_kept),
        Check("tombstones that came back, pending", len(resurrected), resurrected_kept),
        Check("came back after the purge, as new rows", len(back) - len(resurrected), again),
        Check("tombstones that came back and were doomed", len(resurrected), len(resurrected & before.doomed)),
        Check("tombstones purged", len(before.doomed) - len(resurrected), purged),
        Check("rows that nobody can account for", 0, len(now.keys() - before.live.keys() - back.keys())),
        Check("rows folded into daily counters", purged, after.folded),
        *_checks_of_runs(after, purged),
        Check("beats that asked for the purge", 2, after.beats),
        Check("readers' errors", 0, after.reader_errors),
        Check("browsers that were turned away", 0, after.traffic_errors),
    ]
    return Verdict(
        checks,
        {
            "eligible": len(before.doomed),
            "purged": purged,
            "resurrected_kept": resurrected_kept,
            "live_kept": live_kept,
            "batches": sum(run.done for run in after.runs),
            "duplicates_ignored": after.ignored,
            "workers_killed": len(after.killed),
            "seconds": round(after.seconds, 1),
        },
    )


def _is(row: Row, state: str) -> bool:
    return row.state == state and row.sendable and not row.deleted


def _checks_of_runs(after: After, purged: int) -> list[Check]:
    done = sum(run.done for run in after.runs)
    survived = [batch for batch in after.killed if batch.attempts > 1 and batch.state in ("done", "split")]
    return [
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
