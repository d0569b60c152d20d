"""Fan-out: every live recipient once, in hash order, whoever works on it and whatever stops it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushops.delivery import fanning
from pushops.delivery.cancelling import cancel
from pushops.delivery.fanning import FanOut
from pushops.delivery.message import Audience
from pushops.delivery.store import fanning as store
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.conftest import Recorded
from tests.sending import HOSTS, SERVICES, Pg, fan_out, ledger, make_live, message, send_to, sent

PAGE = 7
NO_TIME = timedelta()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"sweep_batch_rows": PAGE})


def recipients(pg: Pg, message_id: Any) -> set[Any]:
    return {row["subscription_id"] for row in ledger(pg, message_id)}


def test_every_live_subscription_is_a_recipient_once(runtime: Runtime, pg: Pg) -> None:
    ids = make_live(pg, 30) + make_live(pg, 5, state="pending")
    make_live(pg, 4, block="bad_keys")
    made = send_to(runtime, ttl=3600, urgency="high")
    assert (made.created, made.state) == (True, "waiting")
    assert fan_out(runtime, made.message_id) == 35
    assert recipients(pg, made.message_id) == set(ids)
    assert len(ledger(pg, made.message_id)) == 35


def test_a_messages_time_begins_once_and_is_that_of_all_its_rows(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3 * PAGE)
    made = send_to(runtime, ttl=3600, urgency="high")
    fanning.fan_out(runtime, made.message_id, budget=NO_TIME)
    begun = message(pg, made.message_id)
    assert begun["expires_at"] - begun["first_dispatched_at"] == timedelta(hours=1)
    fan_out(runtime, made.message_id)
    rows, after = ledger(pg, made.message_id), message(pg, made.message_id)
    assert (after["state"], after["recipients"], after["expires_at"]) == ("sending", 21, begun["expires_at"])
    assert {(row["next_attempt_at"], row["expires_at"]) for row in rows} == {
        (begun["first_dispatched_at"], begun["expires_at"])
    }
    assert {(row["state"], row["priority"]) for row in rows} == {("due", 0)}


def test_pages_follow_the_hashes(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3 * PAGE)
    made = send_to(runtime)
    fanning.fan_out(runtime, made.message_id, budget=NO_TIME)
    hashes = [row[0] for row in pg.execute("SELECT endpoint_hash FROM push_subscription ORDER BY endpoint_hash")]
    assert [row["endpoint_hash"] for row in ledger(pg, made.message_id)] == hashes[:PAGE]
    assert message(pg, made.message_id)["cursor"] == hashes[PAGE - 1]


def test_each_host_and_key_has_a_lane_and_each_row_its_own(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 8)
    make_live(pg, 2, key=None)
    pg.execute("UPDATE push_subscription SET endpoint = replace(endpoint, '.com/push/', '.com:443/push/')")
    message_id = sent(runtime)
    lanes = pg.execute(
        """SELECT l.host, l.push_service, l.vapid_key_id, count(*) FROM push_dispatch AS d
             JOIN push_lane AS l USING (lane_id) WHERE d.message_id = %s GROUP BY 1, 2, 3 ORDER BY 3, 1""",
        [message_id],
    ).fetchall()
    assert sorted(lanes) == sorted(
        [(host, service, "test", 2) for host, service in zip(HOSTS, SERVICES, strict=True)]
        + [(HOSTS[0], "fcm", "", 1), (HOSTS[1], "mozilla", "", 1)]
    )


def test_the_owner_is_captured(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 1, user="before")
    pg.execute("UPDATE push_subscription SET user_id = 'now'")
    (row,) = ledger(pg, sent(runtime))
    assert (row["user_id"], row["owner_no"]) == ("now", 2)


@pytest.mark.parametrize(
    ("audience", "expected"),
    [
        ({"user": "ann"}, {"ann"}),
        ({"tags": ["news", "none"]}, {"ann", "site"}),
        ({"service": "mozilla"}, {"mozilla"}),
        ({"origin": "https://site.example"}, {"site"}),
        ({"locale": "de"}, {"site"}),
        ({"key": "old"}, {"mozilla"}),
        ({"tags": ["news"], "origin": "https://site.example"}, {"site"}),
        ({"user": "ann", "tags": ["sports"]}, set()),
    ],
)
def test_only_those_are_meant_for_whom_every_condition_holds(
    runtime: Runtime, pg: Pg, audience: dict[str, Any], expected: set[str]
) -> None:
    ids = {
        "ann": make_live(pg, 3, user="ann", tags=("news",)),
        "site": make_live(pg, 2 * PAGE, origin="https://site.example", locale="de", tags=("news", "x")),
        "mozilla": make_live(pg, 2, hosts=HOSTS[1:2], services=("mozilla",), key="old"),
        "other": make_live(pg, 3, hosts=HOSTS[:1], services=("fcm",)),
    }
    if audience == {"service": "mozilla"}:
        pg.execute("UPDATE push_subscription SET push_service = 'fcm' WHERE vapid_key_id <> 'old'")
    wanted = {one for name in expected for one in ids[name]}
    assert recipients(pg, sent(runtime, **audience)) == wanted
    assert sum(fanning.count(runtime, Audience(**_as_tuples(audience))).values()) == len(wanted)


def _as_tuples(audience: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in audience.items()}


def test_ids_and_users_are_in_the_ledger_when_send_returns(runtime: Runtime, pg: Pg) -> None:
    ids = make_live(pg, 2 * PAGE + 1, user="ann")
    by_user = send_to(runtime, user="ann")
    by_ids = send_to(runtime, ids=ids[:PAGE])
    assert (by_user.state, by_ids.state) == ("sending", "sending")
    assert recipients(pg, by_user.message_id) == set(ids)
    assert recipients(pg, by_ids.message_id) == set(ids[:PAGE])


def test_a_stale_row_is_meant_a_week_after_it_was_last_tried(runtime: Runtime, pg: Pg) -> None:
    now = message(pg, send_to(runtime).message_id)["created_at"]
    never = make_live(pg, 1, state="stale")
    long_ago = make_live(pg, 1, state="stale", tried=now - timedelta(days=7, minutes=1))
    make_live(pg, 1, state="stale", tried=now - timedelta(days=6, hours=23))
    assert recipients(pg, sent(runtime)) == {*never, *long_ago}


def test_what_has_ended_is_no_recipient(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3, user="ann")
    pg.execute(
        "UPDATE push_subscription SET state = 'revoked', revoked_at = now(), deleted_at = now(), end_reason = 'gone'"
    )
    assert ledger(pg, sent(runtime, user="ann")) == []
    assert ledger(pg, sent(runtime)) == []


def test_nothing_fans_out_before_its_time(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3, user="ann")
    now = pg.execute("SELECT now()").fetchone()
    assert now is not None
    made = send_to(runtime, user="ann", not_before=now[0] + timedelta(hours=1))
    assert made.state == "waiting"
    assert fanning.fan_out(runtime, made.message_id).outcome is FanOut.NOTHING
    assert fanning.due(runtime, 10) == []
    pg.execute("UPDATE push_message SET not_before = now()")
    assert fanning.due(runtime, 10) == [made.message_id]
    assert fan_out(runtime, made.message_id) == 3


def test_workers_and_messages_that_come_twice_reach_each_recipient_once(runtime: Runtime, pg: Pg) -> None:
    ids = make_live(pg, 40 * PAGE)
    made = send_to(runtime)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: _work_until_through(runtime, pg, made.message_id), range(4)))
    assert sum(rows) == len(ids)
    assert recipients(pg, made.message_id) == set(ids)
    assert message(pg, made.message_id)["recipients"] == len(ids)
    assert fanning.fan_out(runtime, made.message_id).outcome is FanOut.NOTHING


def _work_until_through(rt: Runtime, pg: Pg, message_id: Any) -> int:
    rows = 0
    while fanning.due(rt, 1) or message(pg, message_id)["fanned_out_at"] is None:
        rows += fanning.fan_out(rt, message_id, budget=timedelta(milliseconds=5)).rows
    return rows


def test_a_page_that_was_cut_off_is_begun_again(runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = make_live(pg, 2 * PAGE)
    made = send_to(runtime)
    with monkeypatch.context() as patch:
        patch.setattr(store, "advance", _cut_off)
        with pytest.raises(KeyboardInterrupt):
            fanning.fan_out(runtime, made.message_id)
    assert ledger(pg, made.message_id) == []
    assert message(pg, made.message_id)["expires_at"] is None
    assert fan_out(runtime, made.message_id) == len(ids)


def _cut_off(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_a_cancelled_message_fans_out_no_further(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3 * PAGE)
    made = send_to(runtime)
    fanning.fan_out(runtime, made.message_id, budget=NO_TIME)
    cancel(runtime, made.message_id)
    assert fanning.fan_out(runtime, made.message_id).outcome is FanOut.NOTHING
    assert len(ledger(pg, made.message_id)) == PAGE


def test_the_stop_file_and_a_pause_hold_fan_out(
    runtime: Runtime, pg: Pg, recorded: list[Recorded], tmp_path: Path
) -> None:
    make_live(pg, 3)
    made = send_to(runtime)
    pg.execute("INSERT INTO sweep_control (sweep, paused_at, paused_by) VALUES ('fan-out', now(), 'me')")
    assert fanning.fan_out(runtime, made.message_id).outcome is FanOut.HELD
    pg.execute("UPDATE sweep_control SET paused_at = NULL")
    stop = tmp_path / "stop"
    stop.touch()
    stopped = Runtime(runtime.settings.model_copy(update={"stop_file": stop}), runtime.db, None, runtime.events)
    assert fanning.fan_out(stopped, made.message_id).outcome is FanOut.HELD
    assert [fields["valve"] for _, name, fields in recorded if name == "message.held"] == ["pause", "stop_file"]
    assert ledger(pg, made.message_id) == []
    stop.unlink()
    assert fan_out(stopped, made.message_id) == 3


def test_a_message_of_nobody_is_closed_in_time(runtime: Runtime, pg: Pg) -> None:
    message_id = sent(runtime)
    found = message(pg, message_id)
    assert (found["state"], found["recipients"], found["look_at"] is not None) == ("sending", 0, True)
