"""What the demo's ending believes, and its parts that need no server."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from pushops.demo.browsers import Browser
from pushops.demo.calibrate import LONGEST, SHORTEST, Measured
from pushops.demo.readers import percentile
from pushops.demo.report import After, Before, judge
from pushops.demo.store import Attempts, Row, Run
from pushops.demo.traffic import Return
from pushops.subscriptions.hosts import DEFAULT_RULES
from pushops.subscriptions.intake import IntakeRules, NewSubscription, parse

DOOMED = [uuid4() for _ in range(5)]
LIVE = [uuid4() for _ in range(3)]
BACK, NEW = DOOMED[0], uuid4()
KILLED = Attempts(uuid4(), "done", 2)
BEFORE = Before(8, frozenset(DOOMED), dict.fromkeys(LIVE, "active"))


def sendable(row: UUID, state: str = "active") -> Row:
    return Row(row, state, deleted=False, sendable=True)


GOOD = After(
    rows=[*map(sendable, LIVE), sendable(BACK, "pending"), sendable(NEW, "pending")],
    returns=[Return(BACK, inserted=False), Return(NEW, inserted=True)],
    runs=[Run(uuid4(), "done", done=2, open=0, settled=2, receipts=2, rows=4), Run(uuid4(), "done", 0, 0, 0, 0, 0)],
    folded=4,
    killed=[KILLED],
    ignored=1,
    beats=2,
    reader_errors=0,
    traffic_errors=0,
)
RUN = GOOD.runs[0]


def test_a_night_that_accounts_for_every_row_is_ok() -> None:
    assert judge(BEFORE, replace(GOOD, seconds=1.23)).summary() == {
        "ok": True,
        "eligible": 5,
        "purged": 4,
        "resurrected_kept": 1,
        "live_kept": 3,
        "batches": 2,
        "duplicates_ignored": 1,
        "workers_killed": 1,
        "seconds": 1.2,
    }


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(replace(GOOD, rows=GOOD.rows[1:]), id="a live row is gone"),
        pytest.param(
            replace(GOOD, rows=[sendable(LIVE[0], "stale"), *GOOD.rows[1:]]), id="a live row has another state"
        ),
        pytest.param(replace(GOOD, rows=[*GOOD.rows[:3], GOOD.rows[4]]), id="one that came back is gone"),
        pytest.param(replace(GOOD, rows=GOOD.rows[:4]), id="one that came back anew is gone"),
        pytest.param(
            replace(GOOD, rows=[*GOOD.rows[:3], replace(GOOD.rows[3], sendable=False), GOOD.rows[4]]),
            id="one that came back has no credentials",
        ),
        pytest.param(
            replace(GOOD, rows=[*GOOD.rows[:3], replace(GOOD.rows[3], deleted=True), GOOD.rows[4]]),
            id="one that came back is still a tombstone",
        ),
        pytest.param(
            replace(GOOD, rows=[*GOOD.rows, Row(DOOMED[1], "revoked", deleted=True, sendable=False)]),
            id="a tombstone is left",
        ),
        pytest.param(replace(GOOD, rows=[*GOOD.rows, sendable(uuid4())]), id="a row is there that nobody made"),
        pytest.param(replace(GOOD, folded=5), id="a row was counted twice"),
        pytest.param(replace(GOOD, runs=[replace(RUN, state="stopped")]), id="the run was stopped"),
        pytest.param(replace(GOOD, runs=[replace(RUN, open=1)]), id="a batch is open"),
        pytest.param(replace(GOOD, runs=[replace(RUN, settled=1)]), id="a done batch has no receipt"),
        pytest.param(replace(GOOD, runs=[replace(RUN, receipts=3)]), id="a receipt belongs to no batch that is done"),
        pytest.param(replace(GOOD, runs=[replace(RUN, rows=5)]), id="the receipts tell of more rows"),
        pytest.param(replace(GOOD, runs=[replace(RUN, rows=2), replace(RUN, rows=2)]), id="two runs took rows"),
        pytest.param(replace(GOOD, killed=[]), id="no worker was killed"),
        pytest.param(replace(GOOD, killed=[replace(KILLED, attempts=1)]), id="the kill had hit no batch"),
        pytest.param(replace(GOOD, killed=[replace(KILLED, state="quarantined")]), id="the killed batch was given up"),
        pytest.param(replace(GOOD, ignored=0), id="the second delivery was not seen"),
        pytest.param(replace(GOOD, beats=1), id="one beat only"),
        pytest.param(replace(GOOD, reader_errors=1), id="a reader failed"),
        pytest.param(replace(GOOD, traffic_errors=1), id="a browser was turned away"),
    ],
)
def test_a_night_with_one_thing_wrong_is_not_ok(after: After) -> None:
    assert not judge(BEFORE, after).ok


def test_a_delete_that_was_not_cancelled_is_not_ok() -> None:
    assert not judge(replace(BEFORE, written=9), GOOD).ok


def test_browsers_pass_the_door_and_keep_their_service() -> None:
    rules = IntakeRules(DEFAULT_RULES)
    for browser in map(Browser, range(300)):
        found = parse(browser.subscribe(), rules)
        assert isinstance(found, NewSubscription)
        assert (found.endpoint_hash, found.push_service) == (browser.endpoint_hash, browser.service)


@pytest.mark.parametrize(
    ("one_delete", "milliseconds"),
    [(0.001, SHORTEST.total_seconds() * 1000), (1.0, 500), (60.0, LONGEST.total_seconds() * 1000)],
)
def test_the_timeout_is_half_of_the_one_delete_within_what_settings_allow(
    one_delete: float, milliseconds: float
) -> None:
    assert Measured(0.001, one_delete).timeout.total_seconds() * 1000 == milliseconds


def test_a_timeout_fits_only_between_two_batches_and_the_one_delete() -> None:
    timeout = Measured(0.01, 1.0).timeout
    assert Measured(0.01, 1.0).fits(timeout)
    assert not Measured(0.25, 1.0).fits(timeout)
    assert not Measured(0.01, 0.5).fits(timeout)


def test_percentiles_of_nothing_and_of_a_hundred() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile(range(100), 0.99) == 99
    assert percentile(range(1000), 0.99) == 990
