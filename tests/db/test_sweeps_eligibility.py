"""Which rows each built-in sweep takes: every state, with NULLs, on both sides of every cut-off (F04, F06, F18, F20).

The oracles are written from the lifecycle's words, not from the SQL: what they say decides.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from pushops.retention.policies import (
    AGE_EXPIRED,
    AGE_STALE,
    PURGE_PERIODS,
    PURGE_RECEIPTS,
    PURGE_RUNS,
    PURGE_TOMBSTONES,
    SCRUB_TOMBSTONES,
)
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.sweeps.sweep import Sweep
from tests import rows
from tests.browser import new_endpoint, subscribe
from tests.sweepdb import P256DH, Conn, add_tombstones, copy_rows, drive, ids, new_hash, open_run, opened, receipts

Cutoffs = Mapping[str, datetime]
Row = dict[str, Any]
US: Final = timedelta(microseconds=1)
EDGES: Final = (-US, timedelta(), US)
DAY: Final = timedelta(days=1)
LIVE: Final = ("pending", "active", "stale")
ENDED: Final = ("expired", "revoked")


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, pg: Conn, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of this process and of every session: neither may move a cut-off (F18)."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    set_session_zone(pg, request.param)
    yield request.param
    monkeypatch.undo()
    time.tzset()


def set_session_zone(pg: Conn, zone: str) -> None:
    name = pg.info.dbname
    pg.execute(f"ALTER DATABASE {name} SET timezone = '{zone}'".encode())


def subscription(state: str, now: datetime, **columns: Any) -> Row:
    row: Row = {
        "endpoint_hash": new_hash(),
        "push_service": "test",
        "endpoint": "https://push.example/x",
        "p256dh": P256DH,
        "auth_sealed": b"x",
        "auth_key_version": 1,
        "state": state,
        "state_since": now,
        "registered_at": now,
        "last_seen_at": now,
        "last_success_at": None,
        "last_tried_at": None,
        "revoked_at": None,
        "deleted_at": None,
        "end_reason": None,
        "scrubbed_at": None,
        "legal_hold": False,
    } | columns
    if state in ENDED:
        row |= {"revoked_at": row["deleted_at"], "end_reason": "gone"}
    if row["scrubbed_at"] is not None:
        row |= dict.fromkeys(("endpoint", "p256dh", "auth_sealed", "auth_key_version"))
    return row


def around(*times: datetime) -> list[datetime]:
    return [at + edge for at in times for edge in EDGES]


def contact(row: Row) -> datetime:
    last: datetime = max(at for at in (row["last_seen_at"], row["last_success_at"]) if at is not None)
    return last


def tried(row: Row) -> bool:
    return row["last_tried_at"] is not None and row["last_tried_at"] > contact(row)


def quiet(row: Row, cut: Cutoffs) -> bool:
    """Neither seen nor a success, though a send was tried since, for the window; untried, for the long one."""
    kept = row["state"] != "active" or row["deleted_at"] is not None or row["legal_hold"]
    return not kept and contact(row) < (cut["tried"] if tried(row) else cut["untried"])


def aged_out(row: Row, cut: Cutoffs) -> bool:
    """Stale: so long in stale, and quiet for both windows together. Pending: so long since its registration or undo."""
    if row["deleted_at"] is not None or row["legal_hold"]:
        return False
    if row["state"] == "stale" and tried(row):
        return row["state_since"] < cut["stale"] and contact(row) < cut["contact"]
    if row["state"] == "stale":
        return row["state_since"] < cut["untried"] and contact(row) < cut["untried_contact"]
    if row["state"] == "pending":
        since = cut["pending"] if tried(row) else cut["untried"]
        return row["registered_at"] < since and contact(row) < since and row["state_since"] < cut["pending"]
    return False


def undo_is_over(row: Row, cut: Cutoffs) -> bool:
    return over(row, cut) and row["scrubbed_at"] is None


def over(row: Row, cut: Cutoffs) -> bool:
    ended = row["state"] in ENDED and row["deleted_at"] is not None and row["deleted_at"] < cut["cutoff"]
    return ended and not row["legal_hold"]


def ageing_rows(contacts: list[datetime], since: list[datetime], now: datetime) -> Iterator[Row]:
    """Live rows: the last contact was a visit or a success, with a send before, at or after it, or none."""
    for state, at, began in product(LIVE, contacts, since):
        for send in (None, at - US, at, at + US):
            times = {"last_tried_at": send, "state_since": began, "registered_at": began}
            yield subscription(state, now, last_seen_at=at, **times)
            yield subscription(state, now, last_seen_at=at - DAY, last_success_at=at, **times)
            yield subscription(state, now, last_seen_at=at, last_success_at=at - DAY, **times)
            yield subscription(state, now, last_seen_at=at, **times | {"state_since": now})
    old = min(contacts) - 400 * DAY
    exempt: tuple[Row, ...] = ({"legal_hold": True}, {"deleted_at": old})
    for state, kept in product(LIVE, exempt):
        times = {"last_seen_at": old, "last_tried_at": now, "state_since": old, "registered_at": old}
        yield subscription(state, now, **times, **kept)
    for state in ENDED:
        yield subscription(state, now, last_seen_at=old, last_tried_at=now, deleted_at=old, state_since=old)


def quiet_rows(cut: Cutoffs, now: datetime) -> Iterator[Row]:
    yield from ageing_rows(around(cut["tried"], cut["untried"]), [now], now)


def aged_rows(cut: Cutoffs, now: datetime) -> Iterator[Row]:
    contacts = [at + edge for at in set(cut.values()) for edge in (-US, timedelta())]
    yield from ageing_rows(contacts, around(cut["stale"], cut["pending"], cut["untried"]), now)


def ended_rows(cut: Cutoffs, now: datetime) -> Iterator[Row]:
    for state, at, scrubbed, held in product(
        (*LIVE, *ENDED), (None, *around(cut["cutoff"])), (None, now), (False, True)
    ):
        if at is None and (state in ENDED or scrubbed is not None):
            continue  # the table's own CHECKs refuse these
        yield subscription(state, now, deleted_at=at, scrubbed_at=scrubbed, legal_hold=held)


CASES: Final[dict[str, tuple[Sweep, Callable[[Cutoffs, datetime], Iterator[Row]], Callable[[Row, Cutoffs], bool]]]] = {
    "age-stale": (AGE_STALE, quiet_rows, quiet),
    "age-expired": (AGE_EXPIRED, aged_rows, aged_out),
    "scrub": (SCRUB_TOMBSTONES, ended_rows, undo_is_over),
    "purge": (PURGE_TOMBSTONES, ended_rows, over),
}
TOUCHED: Final = {
    "age-stale": "state = 'stale' AND previous_state = 'active' AND state_since >= %(opened)s",
    "age-expired": "state = 'expired' AND end_reason = 'aged_out' AND end_run_id = %(run)s AND deleted_at >= %(opened)s"
    " AND revoked_at = deleted_at AND previous_state IN ('pending', 'stale')",
    "scrub": "num_nonnulls(endpoint, p256dh, auth_sealed, auth_key_version) = 0 AND scrubbed_at > %(opened)s",
}


@pytest.mark.parametrize(
    ("case", "walk"), [(c, w) for c in CASES for w in ("index", "blocks")[: 1 + CASES[c][0].blocks]]
)
def test_a_sweep_takes_exactly_the_rows_that_the_lifecycle_says(
    case: str, walk: str, zone: str, settings: Settings, pg: Conn
) -> None:
    sweep, make, due = CASES[case]
    with opened(settings, sweep_walk=walk, sweep_batch_rows=500) as rt:
        run = open_run(rt, sweep)
        assert run.walk == walk
        rows = list(make(run.cutoff_times, run.opened_at))
        copy_rows(pg, "push_subscription", rows)
        pg.execute("UPDATE sweep_run SET walk_end = ARRAY['1000'] WHERE walk = 'blocks'")  # the rows came after it
        done = drive(rt, sweep)
    expected = {row["endpoint_hash"] for row in rows if due(row, run.cutoff_times)}
    assert 0 < len(expected) < len(rows)
    assert taken(pg, case, run.run_id, run.opened_at, rows) == expected, zone
    assert (done.state, done.why) == ("done", None)
    assert receipts(pg, run.run_id) == (len(expected), 0)


def taken(pg: Conn, case: str, run_id: object, opened_at: datetime, rows: list[Row]) -> set[bytes]:
    """The hashes of the rows that show what the sweep does; of the purge, of those that are gone."""
    if case == "purge":
        return {row["endpoint_hash"] for row in rows} - ids(pg, key="endpoint_hash")
    query = f"SELECT endpoint_hash FROM push_subscription WHERE {TOUCHED[case]}"
    return {row[0] for row in pg.execute(query.encode(), {"run": run_id, "opened": opened_at})}


def test_what_was_taken_back_stays_back_at_the_next_run(runtime: Runtime, pg: Conn) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    rows.age(pg, endpoint, 200 * DAY, "created_at", "registered_at", "last_seen_at", "state_since")
    drive(runtime, AGE_EXPIRED)
    assert rows.row(pg, endpoint)["state"] == "expired"
    assert service.undo(runtime, reason="aged_out", dry_run=False, actor="test").rows == 1
    drive(runtime, AGE_EXPIRED)
    assert rows.row(pg, endpoint)["state"] == "pending"


def test_expiry_ends_the_consent_period_and_forgets_the_browser(settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        run = open_run(rt, AGE_EXPIRED)
        old = min(run.cutoff_times.values()) - DAY
        times = {"last_seen_at": old, "registered_at": old, "state_since": old}
        row = subscription("pending", run.opened_at, user_agent="browser", locale="de", **times)
        copy_rows(pg, "push_subscription", [row])
        period = {"push_service": "test", "began_at": old}
        copy_rows(
            pg, "subscription_period", [period | {"endpoint_hash": h} for h in (row["endpoint_hash"], new_hash())]
        )
        drive(rt, AGE_EXPIRED)
    assert pg.execute("SELECT state, user_agent, locale FROM push_subscription").fetchall() == [("expired", None, None)]
    found = pg.execute("SELECT endpoint_hash, end_reason, ended_at IS NULL FROM subscription_period").fetchall()
    assert (row["endpoint_hash"], "aged_out", False) in found
    assert sum(still_open for _, _, still_open in found) == 1


@pytest.mark.parametrize("walk", ["index", "blocks"])
def test_only_periods_that_ended_before_the_cutoff_are_purged(
    walk: str, zone: str, settings: Settings, pg: Conn
) -> None:
    with opened(settings, sweep_walk=walk) as rt:
        run = open_run(rt, PURGE_PERIODS)
        cut = run.cutoff_times["cutoff"]
        rows: list[Row] = [
            {"endpoint_hash": new_hash(), "push_service": "test", "began_at": cut - DAY, "ended_at": at}
            | {"end_reason": "gone" if at else None}
            for at in (None, *around(cut), cut - DAY)
        ]
        copy_rows(pg, "subscription_period", rows)
        pg.execute("UPDATE sweep_run SET walk_end = ARRAY['10'] WHERE walk = 'blocks'")
        drive(rt, PURGE_PERIODS)
    kept = {row["endpoint_hash"] for row in rows if row["ended_at"] is None or row["ended_at"] >= cut}
    assert ids(pg, "subscription_period", "endpoint_hash") == kept, zone
    assert receipts(pg, run.run_id) == (2, 0)


def old_run(pg: Conn, closed_at: datetime | None) -> Any:
    query = """INSERT INTO sweep_run (sweep, state, started_by, cutoffs, windows, walk, closed_at)
               VALUES (gen_random_uuid()::text, %s, 'test', '{}', '{}', 'index', %s) RETURNING run_id"""
    row = pg.execute(query, ["done" if closed_at else "running", closed_at]).fetchone()
    assert row is not None
    return row[0]


def old_batch(pg: Conn, run_id: Any, finished_at: datetime | None) -> Any:
    query = """INSERT INTO sweep_batch (batch_id, run_id, seq, hi, state, finished_at)
               VALUES (gen_random_uuid(), %s, 1, '{}', %s, %s) RETURNING batch_id"""
    row = pg.execute(query, [run_id, "done" if finished_at else "due", finished_at]).fetchone()
    assert row is not None
    pg.execute("INSERT INTO sweep_receipt VALUES (%s, %s, 1, 0, 0, 'test', now(), NULL)", [row[0], run_id])
    return row[0]


def test_receipts_go_with_their_batches_and_only_of_closed_runs(zone: str, settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        run = open_run(rt, PURGE_RECEIPTS)
        cut = run.cutoff_times["cutoff"]
        made = {
            (closed, finished): old_batch(pg, old_run(pg, closed), finished)
            for closed, finished in product((None, cut - DAY, run.opened_at), (None, *around(cut)))
        }
        drive(rt, PURGE_RECEIPTS)
    gone = {batch for (closed, at), batch in made.items() if closed is not None and at is not None and at < cut}
    own = {row[0] for row in pg.execute("SELECT batch_id FROM sweep_batch WHERE run_id = %s", [run.run_id])}
    assert ids(pg, "sweep_batch", "batch_id") - own == set(made.values()) - gone, zone
    assert ids(pg, "sweep_receipt", "batch_id") - own == set(made.values()) - gone
    assert receipts(pg, run.run_id) == (2, 0)


def test_runs_go_once_they_are_old_and_their_batches_are_gone(zone: str, settings: Settings, pg: Conn) -> None:
    with opened(settings) as rt:
        run = open_run(rt, PURGE_RUNS)
        cut = run.cutoff_times["cutoff"]
        made = {(closed, busy): old_run(pg, closed) for closed, busy in product((None, *around(cut)), (False, True))}
        for (_, busy), run_id in made.items():
            if busy:
                old_batch(pg, run_id, cut - DAY)
        drive(rt, PURGE_RUNS)
    gone = {run_id for (closed, busy), run_id in made.items() if closed is not None and closed < cut and not busy}
    assert ids(pg, "sweep_run", "run_id") == {run.run_id, *made.values()} - gone, zone
    assert receipts(pg, run.run_id) == (1, 0)


def in_quarantine(pg: Conn, run_id: Any, released_at: datetime | None) -> Any:
    query = """INSERT INTO sweep_quarantine (sweep, run_id, batch_id, identity, walk, hi, error, released_at)
               VALUES ('test', %s, gen_random_uuid(), 'x', 'index', '{}', 'test', %s) RETURNING quarantine_id"""
    row = pg.execute(query, [run_id, released_at]).fetchone()
    assert row is not None
    return row[0]


def test_what_was_released_goes_with_its_run_and_a_run_stays_for_what_was_not(
    zone: str, settings: Settings, pg: Conn
) -> None:
    """A key in quarantine that names no run any more would tell nobody anything, and nothing would ever end it."""
    with opened(settings) as rt:
        run = open_run(rt, PURGE_RUNS)
        cut = run.cutoff_times["cutoff"]
        old, young, both = (old_run(pg, cut - DAY) for _ in range(3))
        gone = {in_quarantine(pg, old, cut - DAY / 2) for _ in range(2)}
        kept = {
            in_quarantine(pg, young, run.opened_at),
            in_quarantine(pg, both, None),
            in_quarantine(pg, both, cut - DAY / 2),
            in_quarantine(pg, old_run(pg, None), cut - DAY / 2),
        }
        drive(rt, PURGE_RUNS)
    assert not ids(pg, "sweep_quarantine", "quarantine_id") & gone
    assert ids(pg, "sweep_quarantine", "quarantine_id") == kept, zone
    assert {young, both} <= ids(pg, "sweep_run", "run_id")
    assert old not in ids(pg, "sweep_run", "run_id")


def test_a_cutoff_is_the_window_in_real_time_across_a_daylight_saving_change(settings: Settings, pg: Conn) -> None:
    """F20: 90 days are 2,160 hours, whatever the clocks on the walls of the server did meanwhile."""
    berlin = ZoneInfo("Europe/Berlin")
    set_session_zone(pg, "Europe/Berlin")
    now = datetime.now(tz=berlin)
    window = next(n * DAY for n in range(40, 400) if (now - n * DAY).utcoffset() != now.utcoffset())
    with opened(settings, tombstone_retention=window) as rt:
        run = open_run(rt, PURGE_TOMBSTONES)
    elapsed = run.opened_at.timestamp() - run.cutoff_times["cutoff"].timestamp()
    assert timedelta(seconds=round(elapsed)) == window


@pytest.mark.parametrize("window", [timedelta(0), timedelta(days=-1), timedelta(days=29)])
def test_no_row_younger_than_the_floor_goes_whatever_the_settings_say(
    window: timedelta, settings: Settings, pg: Conn
) -> None:
    """F03: settings refuse such windows at load; SQL refuses them again."""
    for days in (0, 1, 29, 31, 500):
        add_tombstones(pg, 1, deleted_at=f"now() - interval '{days} days'")
    with opened(settings, tombstone_retention=window) as rt:
        assert drive(rt, PURGE_TOMBSTONES).state == "done"
    assert len(ids(pg)) == 5


@pytest.fixture(autouse=True)
def _no_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if "TZ" in os.environ:
        monkeypatch.delenv("TZ")
