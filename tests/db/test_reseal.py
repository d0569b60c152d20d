"""Auth secrets are sealed anew: every row, none unreadable, and whoever changes a row meanwhile wins."""

from typing import Any

import psycopg
import pytest

from pushops.errors import RefusedError
from pushops.rolling import resealing, seal, store
from pushops.rolling.resealing import NAME, RESEAL_AUTH
from pushops.rolling.turn import Turn
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.sweeps.dispatch import dispatch
from pushops.sweeps.order import Order
from pushops.sweeps.work import work
from tests.browser import encode, subscribe
from tests.keyrolls import ONE_TO_TWO, add_sealed, holding, ring_of, roll, unreadable, versions
from tests.sweepdb import receipts, scalar

Pg = psycopg.Connection[Any]


def test_every_row_is_sealed_with_the_current_version_and_opens_to_the_same(settings: Settings, pg: Pg) -> None:
    """A10, A11."""
    with holding(settings, 1, 2, current=2, sweep_batch_rows=7) as rt:
        add_sealed(pg, ring_of(rt), 30)
        before = dict(pg.execute("SELECT endpoint_hash, auth_sealed FROM push_subscription").fetchall())
        run = roll(rt)
        assert (run.state, run.why, receipts(pg, run.run_id)) == ("done", None, (30, 0))
        assert versions(pg) == {2: 30}
        for digest, blob in pg.execute("SELECT endpoint_hash, auth_sealed FROM push_subscription").fetchall():
            assert blob != before[digest]
            assert ring_of(rt).open(AUTH, digest, 2, blob) == digest[:16]


def test_nothing_else_of_a_row_changes(settings: Settings, pg: Pg) -> None:
    query = "SELECT to_jsonb(s) - 'auth_sealed' - 'auth_key_version' FROM push_subscription AS s ORDER BY id"
    with holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 5)
        before = pg.execute(query).fetchall()
        roll(rt)
    assert pg.execute(query).fetchall() == before


def test_a_second_roll_finds_nothing_to_do(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 5)
        roll(rt)
        assert seal.begin(rt, actor="test") == []
        assert receipts(pg, roll(rt).run_id) == (0, 0)


def test_tombstones_are_sealed_anew_while_they_can_be_undone_and_scrubbed_ones_are_left_alone(
    settings: Settings, pg: Pg
) -> None:
    ended = "state = 'revoked', revoked_at = now(), deleted_at = now(), end_reason = 'gone'"
    scrubbed = "endpoint = NULL, p256dh = NULL, auth_sealed = NULL, auth_key_version = NULL, scrubbed_at = now()"
    with holding(settings, 1, 2, current=2) as rt:
        hashes = add_sealed(pg, ring_of(rt), 3)
        pg.execute(f"UPDATE push_subscription SET {ended} WHERE endpoint_hash = %s", [hashes[0]])
        pg.execute(f"UPDATE push_subscription SET {ended}, {scrubbed} WHERE endpoint_hash = %s", [hashes[1]])
        roll(rt)
        assert versions(pg) == {2: 2}
        assert unreadable(pg, ring_of(rt)) == 0


def test_a_registration_between_reading_and_writing_wins(
    settings: Settings, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one from a process that still seals with the old key: its secret is another, and is sealed anew later."""
    subscription = subscribe()
    with holding(settings, 1, 2, current=1) as old, holding(settings, 1, 2, current=2) as rt:
        service.save_subscription(old, subscribe(subscription["endpoint"]))
        meanwhile = [lambda: service.save_subscription(old, subscription)]
        reseal = store.reseal

        def late(*args: Any) -> int:
            if meanwhile:
                meanwhile.pop()()
            return reseal(*args)

        monkeypatch.setattr(store, "reseal", late)
        run = roll(rt)
        ((version, digest, blob),) = pg.execute(
            "SELECT auth_key_version, endpoint_hash, auth_sealed FROM push_subscription"
        ).fetchall()
        assert encode(ring_of(rt).open(AUTH, digest, version, blob)) == subscription["keys"]["auth"]
    assert (version, receipts(pg, run.run_id)) == (2, (1, 1))


def test_a_heartbeat_between_reading_and_writing_keeps_no_row_from_being_sealed(
    settings: Settings, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the row and not its secret."""
    with holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 3)
        pg.execute("UPDATE push_subscription SET last_seen_at = now() - interval '2 d'")
        endpoints = [row[0] for row in pg.execute("SELECT endpoint FROM push_subscription")]
        reseal = store.reseal

        def late(*args: Any) -> int:
            assert [service.touch(rt, endpoint).written for endpoint in endpoints] == [True] * 3
            return reseal(*args)

        monkeypatch.setattr(store, "reseal", late)
        assert receipts(pg, roll(rt).run_id) == (3, 0)
    assert (versions(pg), scalar(pg, "SELECT min(now() - last_seen_at) < interval '1 h' FROM push_subscription")) == (
        {2: 3},
        True,
    )


def test_rows_that_somebody_holds_are_not_waited_for_and_looked_at_once_more(settings: Settings, pg: Pg) -> None:
    assert settings.database_url is not None
    with (
        holding(settings, 1, 2, current=2, sweep_batch_rows=5) as rt,
        psycopg.connect(settings.database_url.get_secret_value(), options="-c search_path=pushops") as other,
    ):
        hashes = add_sealed(pg, ring_of(rt), 10)
        other.execute("SELECT FROM push_subscription WHERE endpoint_hash = %s FOR UPDATE", [hashes[0]])
        run = dispatch(rt, RESEAL_AUTH, None, ONE_TO_TWO).run
        assert run is not None
        work(rt, {NAME: RESEAL_AUTH}, run.run_id)
        assert versions(pg) == {1: 1, 2: 9}
        other.rollback()
        again = roll(rt)
    assert (again.run_id, again.state, versions(pg)) == (run.run_id, "done", {2: 10})


def test_a_row_that_does_not_open_is_set_apart_and_the_others_go_on(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=2) as rt:
        hashes = add_sealed(pg, ring_of(rt), 9)
        pg.execute(
            "UPDATE push_subscription SET auth_sealed = decode(repeat('00', 44), 'hex') WHERE endpoint_hash = %s",
            [hashes[4]],
        )
        run = roll(rt)
        assert (run.state, run.why, versions(pg)) == ("done", "1 quarantined", {1: 1, 2: 8})
        assert seal.turns(rt) == []  # and is not tried again every hour
        assert [(use.version, use.rows, use.apart) for use in seal.usage(rt)] == [(1, 1, 1), (2, 8, 0)]
        with pytest.raises(RefusedError, match="1 of them in quarantine"):
            seal.retire(rt, 1, actor="test")


def test_a_wrong_key_holds_the_run_and_sets_no_row_apart(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 12)
    with holding(settings, 1, 2, current=2, seal_keys={**rt.settings.seal_keys, "1": rt.settings.log_hmac_key}) as rt:
        run = dispatch(rt, RESEAL_AUTH, None, ONE_TO_TWO).run
        assert run is not None
        work(rt, {NAME: RESEAL_AUTH}, run.run_id)
    state, held_by, why = pg.execute("SELECT state, held_by, why FROM sweep_run").fetchone() or (None,) * 3
    assert (state, held_by) == ("running", "setup")
    assert "seal key 1 to open rows of its version" in str(why)
    assert (versions(pg), scalar(pg, "SELECT count(*) FROM sweep_quarantine")) == ({1: 12}, 0)


def test_another_key_of_the_new_version_holds_the_run_and_seals_nothing(settings: Settings, pg: Pg) -> None:
    """Each of two hosts made a key of its own and called it 2."""
    with holding(settings, 1, 2, current=2) as rt:
        ring = ring_of(rt)
        add_sealed(pg, ring, 12)
        add_sealed(pg, ring, 12, version=2)
    with holding(settings, 1, 2, current=2, seal_keys={**rt.settings.seal_keys, "2": rt.settings.log_hmac_key}) as rt:
        run = dispatch(rt, RESEAL_AUTH, None, ONE_TO_TWO).run
        assert run is not None
        work(rt, {NAME: RESEAL_AUTH}, run.run_id)
    assert scalar(pg, "SELECT held_by FROM sweep_run") == "setup"
    assert (versions(pg), unreadable(pg, ring)) == ({1: 12, 2: 12}, 0)


def test_a_worker_that_lacks_a_key_leaves_the_page_to_others(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=2) as rt, holding(settings, 1, current=1) as behind:
        add_sealed(pg, ring_of(rt), 3)
        run = dispatch(rt, RESEAL_AUTH, None, ONE_TO_TWO).run
        assert run is not None
        work(behind, {NAME: RESEAL_AUTH}, run.run_id)
        assert (versions(pg), scalar(pg, "SELECT sum(attempts) + sum(failures) FROM sweep_batch")) == ({1: 3}, 0)
        assert roll(rt).state == "done"
    assert versions(pg) == {2: 3}


def test_a_worker_whose_current_key_is_still_the_old_one_seals_with_the_runs(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=1) as behind:
        add_sealed(pg, ring_of(behind), 3)
        assert roll(behind).state == "done"
    assert versions(pg) == {2: 3}


def test_what_comes_under_an_old_key_after_a_roll_is_rolled_by_beat(settings: Settings, pg: Pg) -> None:
    rung: list[Any] = []
    bell = seal.Bell(ring=lambda *ids: rung.append(ids), depth=lambda: 0)
    with holding(settings, 1, 2, current=1) as behind, holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 3)
        assert seal.go_on(rt, bell) == []  # nobody has asked for a roll yet
        roll(rt)
        service.save_subscription(behind, subscribe())
        assert seal.go_on(behind, bell) == []  # its settings are behind, and would turn all of it back
        (again,) = seal.go_on(rt, bell)
        assert again.run is not None
        work(rt, {NAME: RESEAL_AUTH}, again.run.run_id)
    assert (versions(pg), len(rung)) == ({2: 4}, 1)


def test_a_roll_to_another_version_ends_the_one_before(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, 3, current=2) as rt:
        add_sealed(pg, ring_of(rt), 3)
        first = dispatch(rt, RESEAL_AUTH, None, ONE_TO_TWO).run
    assert first is not None
    with holding(settings, 1, 2, 3, current=3) as rt:
        (order,) = seal.begin(rt, actor="test")
        assert order.filter == Turn(1, 3).key()
        roll(rt, Turn(1, 3))
    state, why = pg.execute("SELECT state, why FROM sweep_run WHERE run_id = %s", [first.run_id]).fetchone() or ("", "")
    assert (state, why) == ("cancelled", "cancelled by test: the current seal key version is 3")
    assert versions(pg) == {3: 3}


@pytest.mark.parametrize("text", ["", "2", "1>1", "1>2>3", "x>y", "1 > 2"])
def test_a_run_names_the_old_and_the_new_version(text: str, runtime: Runtime) -> None:
    with pytest.raises(RefusedError, match="expected two versions of the seal key"):
        dispatch(runtime, RESEAL_AUTH, None, Order(started_by="test", filter=text))


def test_pages_are_cut_and_taken_along_the_index_made_for_it(settings: Settings, pg: Pg) -> None:
    with holding(settings, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 20, version=2)
        add_sealed(pg, ring_of(rt), 2000)
    pg.execute("ANALYZE push_subscription")
    plan = "\n".join(
        row[0]
        for row in pg.execute(
            "EXPLAIN SELECT id FROM push_subscription WHERE id > gen_random_uuid() AND (scrubbed_at IS NULL AND"
            " auth_key_version = 2) ORDER BY id LIMIT 1000"
        )
    )
    assert "push_subscription_reseal" in plan
    assert "Sort" not in plan
    assert resealing.RESEAL_AUTH.index == "push_subscription_reseal"
    assert keychain(rt.settings).ring.current == 2
