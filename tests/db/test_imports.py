"""An import stores what a registration would, once, and leaves alone what is the same; nothing of it stays behind."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from pushops.errors import RefusedError
from pushops.importing import brake, merging, service, staging
from pushops.importing.service import StagingLostError, import_subscriptions
from pushops.importing.sources import Lines, Numbered, Source
from pushops.importing.store import merging as merging_store
from pushops.importing.store import staging as staging_store
from pushops.runtime import Runtime
from pushops.runtime import runtime as runtime_of
from pushops.settings import Settings
from pushops.subscriptions import base64url
from pushops.subscriptions import service as subscriptions
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.subscriptions.registering import Candidate
from pushops.sweeps import gauge, valves
from tests.browser import subscribe
from tests.importing import bring, everything, staged
from tests.rows import Pg, owners, periods, put_in_state, row

OLD, NEW = "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"
BEFORE: Final = (
    *((state, None) for state in ("pending", "active", "stale", "expired")),
    *(("revoked", reason) for reason in ("gone", "rotated", "user_limit")),
)
# What two ways of storing the same row may differ in.
OF_ITS_OWN: Final = {
    "id",
    "auth_sealed",
    "state_since",
    "registered_at",
    "last_seen_at",
    "created_at",
    "last_success_at",
}


def auth_of(runtime: Runtime, pg: Pg, endpoint: str) -> str:
    found = row(pg, endpoint)
    ring = keychain(runtime.settings).ring
    return base64url.encode(ring.open(AUTH, found["endpoint_hash"], found["auth_key_version"], found["auth_sealed"]))


def notes(pg: Pg) -> list[dict[str, Any]]:
    return [found for (found,) in pg.execute("SELECT detail FROM audit WHERE endpoint_hash IS NULL ORDER BY audit_id")]


@pytest.mark.parametrize("members", [{}, {"locale": "de"}])
@pytest.mark.parametrize("zone", ["+20:00", "-23:59", "+00:00:30.5"])
def test_a_zone_that_postgresql_refuses_stops_no_import(
    runtime: Runtime, pg: Pg, zone: str, members: dict[str, str]
) -> None:
    given = [subscribe(created_at=f"2024-01-01T00:00:00{zone}", **members) for _ in range(2)]
    done, _ = bring(runtime, given)
    assert done.inserted == 2
    expected = datetime.fromisoformat(given[1]["created_at"])
    assert row(pg, given[1]["endpoint"])["created_at"] == expected


def test_what_is_new_is_stored_sealed_with_its_consent_from_its_own_date(runtime: Runtime, pg: Pg) -> None:
    given = subscribe(user="u1", tags=["b", "a"], origin="https://acme.io", created_at=OLD, locale="de", user_agent="F")
    done, _ = bring(runtime, [given])
    found = row(pg, given["endpoint"])
    assert (done.lines, done.inserted, done.stored) == (1, 1, 1)
    assert (found["user_id"], found["tags"], found["locale"], found["state"]) == ("u1", ["a", "b"], "de", "pending")
    assert (found["vapid_key_id"], found["vapid_key_assumed"], found["registration_no"]) == ("test", True, 1)
    assert auth_of(runtime, pg, given["endpoint"]) == given["keys"]["auth"]
    (period,) = periods(pg, given["endpoint"])
    assert (period["began_at"], period["user_id"]) == (datetime(2024, 1, 1, tzinfo=UTC), "u1")
    (note,) = notes(pg)
    assert (note["inserted"], note["refused"]) == (1, 0)


def test_a_second_import_changes_nothing_at_all(runtime: Runtime, pg: Pg) -> None:
    given = [subscribe(user=f"u{n % 3}", tags=["news"], created_at=NEW, origin="https://acme.io") for n in range(20)]
    given += [subscribe(), given[0] | {"user": None}]
    bring(runtime, given)
    before = everything(pg)
    done, refusals = bring(runtime, given)
    assert (done.inserted, done.updated, done.unchanged, done.duplicates, refusals) == (0, 0, 21, 1, [])
    assert everything(pg) == before


def test_what_is_the_same_stays_whatever_it_went_through_meanwhile(runtime: Runtime, pg: Pg) -> None:
    """A file is no sign of life: it neither wakes what is quiet nor lifts a block. What evidence ended comes back."""
    given = {state: subscribe(user="u") for state in ("active", "stale", "revoked", "expired")}
    bring(runtime, given.values())
    for state, each in given.items():
        put_in_state(pg, each["endpoint"], state)
    pg.execute("UPDATE push_subscription SET send_block = 'bad_keys' WHERE state = 'active'")
    done, _ = bring(runtime, given.values())
    assert (done.unchanged, done.updated) == (2, 2)
    assert [row(pg, each["endpoint"])["state"] for each in given.values()] == ["active", "stale", "pending", "pending"]
    assert row(pg, given["active"]["endpoint"])["send_block"] == "bad_keys"


@pytest.mark.parametrize(
    "change",
    [
        {"user": "u2"},
        {"tags": ["other"]},
        {"tags": []},
        {"origin": "https://other.io"},
        {"locale": "fr"},
        {"created_at": OLD},
        {"expirationTime": 1767323045000},
        {"keys": "auth"},
        {"keys": "both"},
    ],
)
def test_a_change_of_anything_is_stored_once(runtime: Runtime, pg: Pg, change: dict[str, Any]) -> None:
    given = subscribe(user="u1", tags=["news"], origin="https://acme.io", locale="de", created_at=NEW)
    fresh = subscribe()["keys"]
    keys = {"auth": given["keys"] | {"auth": fresh["auth"]}, "both": fresh}
    changed = given | change | ({"keys": keys[change["keys"]]} if "keys" in change else {})
    bring(runtime, [given])
    done, _ = bring(runtime, [changed])
    again, _ = bring(runtime, [changed])
    assert (done.updated, again.updated, again.unchanged) == (1, 0, 1)
    assert row(pg, given["endpoint"])["registration_no"] == 2
    assert auth_of(runtime, pg, given["endpoint"]) == changed["keys"]["auth"]


def test_where_the_file_says_nothing_a_row_keeps_what_it_has(runtime: Runtime) -> None:
    given = subscribe(user="u1", tags=["news"], origin="https://acme.io", locale="de", created_at=OLD)
    bare = {name: given[name] for name in ("endpoint", "keys")}
    bring(runtime, [given])
    done, _ = bring(runtime, [bare | {"created_at": NEW}])
    assert done.unchanged == 1


def test_another_user_in_the_file_takes_the_row_over_with_a_period_of_their_own(runtime: Runtime, pg: Pg) -> None:
    given = subscribe(user="u1", tags=["news"], created_at=OLD)
    bring(runtime, [given])
    bring(runtime, [{name: given[name] for name in ("endpoint", "keys")} | {"user": "u2", "created_at": OLD}])
    found = row(pg, given["endpoint"])
    assert (found["user_id"], found["tags"]) == ("u2", [])
    assert owners(pg, given["endpoint"]) == [("u1", "owner_changed"), ("u2", None)]
    assert periods(pg, given["endpoint"])[1]["began_at"] > datetime(2024, 6, 1, tzinfo=UTC), "no inherited consent"


def test_an_import_leaves_the_row_that_registering_would_have_left(runtime: Runtime, pg: Pg) -> None:
    """Both ways, row by row, from every state that a known row may be in."""
    cases: list[tuple[str, str | None, dict[str, Any], dict[str, Any]]] = [
        (state, reason, was, given)
        for state, reason in BEFORE
        for was in ({"user_id": "u1", "tags": ["a"]}, {})
        for given in ({"user_id": "u2"}, {"tags": ["b"]}, {"user_id": "u1", "locale": "de"}, {"origin": "https://x.io"})
    ]
    pairs = []
    for state, reason, was, given in cases:
        saved, imported = subscribe(), subscribe()
        for each in (saved, imported):
            list(subscriptions.save_many(runtime, [Candidate(each, **was)]))
            put_in_state(pg, each["endpoint"], state, reason)
        fresh = subscribe()["keys"]
        list(subscriptions.save_many(runtime, [Candidate(saved | {"keys": fresh}, **given)]))
        pairs.append((saved["endpoint"], imported | {"keys": fresh} | given))
    done, refusals = bring(runtime, [given for _, given in pairs])
    assert (done.updated, refusals) == (len(cases), [])
    for saved_endpoint, given in pairs:
        one, other = row(pg, saved_endpoint), row(pg, given["endpoint"])
        differ = {name for name in one if one[name] != other[name]} - OF_ITS_OWN
        assert differ == {"endpoint", "endpoint_hash"}
        assert owners(pg, saved_endpoint) == owners(pg, given["endpoint"])


def winners() -> Iterator[Any]:
    given = subscribe()
    dated = [given | {"user": "old", "created_at": OLD}, given | {"user": "new", "created_at": NEW}]
    yield pytest.param(dated, "new", id="the latest")
    yield pytest.param(dated[::-1], "new", id="the latest, wherever it stands")
    yield pytest.param(
        [given | {"user": "dated", "created_at": OLD}, given | {"user": "u"}], "dated", id="a date first"
    )
    seen = given | {"user": "seen", "created_at": OLD, "last_seen_at": "2025-06-01T00:00:00Z"}
    yield pytest.param([seen, dated[1]], "seen", id="seen counts as well")
    yield pytest.param([given | {"user": "signed in"}, given], "signed in", id="then who is signed in")
    yield pytest.param([given | {"user": "first"}, given | {"user": "last"}], "last", id="then the last line")


@pytest.mark.parametrize(("rows", "winner"), list(winners()))
def test_of_rows_with_one_endpoint_a_defined_one_stands(
    runtime: Runtime, pg: Pg, rows: list[dict[str, Any]], winner: str
) -> None:
    done, refusals = bring(runtime, [subscribe(), *rows, subscribe()])
    assert (done.inserted, done.duplicates, refusals) == (3, 1, [])
    assert row(pg, rows[0]["endpoint"])["user_id"] == winner


def test_who_unsubscribed_is_refused_by_line_and_tag_and_comes_back_only_if_told(runtime: Runtime, pg: Pg) -> None:
    given = [subscribe(user=f"u{n}") for n in range(4)]
    bring(runtime, given)
    subscriptions.unsubscribe(runtime, endpoint=given[2]["endpoint"])
    before = everything(pg)
    done, (refusal,) = bring(runtime, [*given, given[2]])
    assert (done.unchanged, done.duplicates, dict(done.reasons)) == (3, 1, {"unsubscribed": 1})
    assert (refusal.line, refusal.found.reason) == (5, "unsubscribed")
    assert refusal.tag == keychain(runtime.settings).tag(given[2]["endpoint"])
    assert everything(pg) == before
    done, _ = bring(runtime, given, revive=True)
    assert (done.updated, row(pg, given[2]["endpoint"])["state"]) == (1, "pending")


def test_a_dry_run_knows_what_the_import_would_do_and_does_nothing(runtime: Runtime, pg: Pg) -> None:
    known, changed, left, ended = (subscribe(user="u") for _ in range(4))
    bring(runtime, [known, changed, left, ended])
    subscriptions.unsubscribe(runtime, endpoint=left["endpoint"])
    put_in_state(pg, ended["endpoint"], "revoked", "gone")
    rows = [known, changed | {"user": "v"}, left, ended, subscribe(), subscribe(endpoint="http://x"), known]
    before = everything(pg)
    dry, _ = bring(runtime, rows, dry_run=True)
    assert (everything(pg), staged(pg)) == (before, 0)
    real, _ = bring(runtime, rows)
    assert vars(dry) == vars(real) | {"dry_run": True}
    assert (real.lines, real.inserted, real.updated, real.unchanged, real.duplicates, real.refused) == (
        7,
        1,
        2,
        1,
        1,
        2,
    )


def test_keys_that_are_not_ours_are_refused_and_counted_by_what_they_are(runtime: Runtime) -> None:
    ours = base64url.encode(keychain(runtime.settings).vapid["test"].public)
    foreign = subscribe()["keys"]["p256dh"]
    rows = [subscribe(applicationServerKey=foreign), subscribe(applicationServerKey=foreign), subscribe()]
    done, _ = bring(runtime, [*rows, subscribe(applicationServerKey=ours)])
    assert (done.inserted, dict(done.reasons), list(done.foreign_keys.values())) == (2, {"unknown_vapid_key": 2}, [2])
    done, _ = bring(runtime, rows, application_server_key=foreign, dry_run=True)
    assert done.refused == 3


def test_a_key_that_is_said_for_all_is_no_assumption(runtime: Runtime, pg: Pg) -> None:
    given = subscribe()
    ours = base64url.encode(keychain(runtime.settings).vapid["test"].public)
    bring(runtime, [given], application_server_key=ours)
    assert (row(pg, given["endpoint"])["vapid_key_id"], row(pg, given["endpoint"])["vapid_key_assumed"]) == (
        "test",
        False,
    )


def test_text_that_copy_or_arrays_would_take_for_their_own_comes_through(runtime: Runtime, pg: Pg) -> None:
    tags = ["a,b", 'say "x"', "back\\slash", "{}", "NULL", "tab\there", "é\n"]
    for user in ("back\\slash", "tab\tnew\nline\r", r"\N", "é, \\."):
        given = subscribe(user=user, tags=tags, user_agent="\\t \t")
        bring(runtime, [given])
        found = row(pg, given["endpoint"])
        assert (found["user_id"], found["tags"], found["user_agent"]) == (user, sorted(tags), "\\t \t")


def test_who_was_erased_is_refused_and_nothing_is_stored_for_them(runtime: Runtime, pg: Pg) -> None:
    given = [subscribe(user=f"u{n}") for n in range(3)]
    bring(runtime, given[:2])
    pg.execute(
        "INSERT INTO suppression (endpoint_hash) VALUES (%s), (%s)",
        [endpoint_hash(each["endpoint"]) for each in given[1:]],
    )
    pg.execute("DELETE FROM push_subscription WHERE user_id = 'u1'")
    dry, _ = bring(runtime, [*given, given[2]], dry_run=True)
    done, refusals = bring(runtime, [*given, given[2]])
    assert vars(dry) == vars(done) | {"dry_run": True}
    assert (done.unchanged, done.inserted, done.duplicates, dict(done.reasons)) == (1, 0, 1, {"erased": 2})
    assert sorted(refusal.line for refusal in refusals) == [2, 4]
    assert [found["user_id"] for found in everything(pg)["push_subscription"]] == ["u0"]


def test_who_is_erased_while_a_page_is_stored_is_not_stored(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [subscribe() for _ in range(3)]
    add = merging_store.add

    def erased_meanwhile(*words: Any) -> Any:
        pg.execute("INSERT INTO suppression (endpoint_hash) VALUES (%s)", [endpoint_hash(given[1]["endpoint"])])
        return add(*words)

    monkeypatch.setattr(merging_store, "add", erased_meanwhile)
    done, (refusal,) = bring(runtime, given)
    assert (done.inserted, refusal.line, refusal.found.reason) == (2, 2, "erased")
    assert len(everything(pg)["push_subscription"]) == 2


def test_who_is_erased_while_rows_wait_is_counted_and_the_others_are_stored(runtime: Runtime, pg: Pg) -> None:
    given = [subscribe(user=f"u{n}") for n in range(3)]

    def told(what: str, _done: int, _of: int | None) -> None:
        if what == service.READING:
            pg.execute("DELETE FROM import_staging WHERE user_id = 'u1'")

    done, _ = bring(runtime, given, told=told)
    assert (done.inserted, done.refused, dict(done.reasons)) == (2, 1, {"erased": 1})


def test_who_registers_while_a_page_is_stored_keeps_one_row(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [subscribe(user=f"u{n}") for n in range(3)]
    add = merging_store.add

    def registered_meanwhile(*words: Any) -> Any:
        subscriptions.save_subscription(runtime, given[1], user_id="u1")
        return add(*words)

    monkeypatch.setattr(merging_store, "add", registered_meanwhile)
    done, _ = bring(runtime, given)
    assert (done.inserted, done.updated + done.unchanged) == (2, 1)
    assert len(owners(pg, given[1]["endpoint"])) == 1


# Staging


def test_staging_holds_no_auth_that_anybody_could_read(runtime: Runtime, pg: Pg) -> None:
    given = [subscribe(user="somebody") for _ in range(3)]
    looked: list[str] = []

    def told(what: str, _done: int, _of: int | None) -> None:
        if what == service.READING:
            looked.extend(text for (text,) in pg.execute("SELECT s::text FROM import_staging AS s"))

    bring(runtime, given, told=told)
    assert len(looked) == 3 + 1, "the rows, and the one that stands for all"
    for each in given:
        raw = base64url.decode(each["keys"]["auth"])
        assert not any(each["keys"]["auth"] in text or raw.hex() in text for text in looked)


def test_staging_is_gone_after_an_import_and_after_one_that_failed(runtime: Runtime, pg: Pg) -> None:
    def rows() -> Iterator[Numbered]:
        yield 1, json.dumps(subscribe()).encode()
        raise OSError("the disk went away")

    bring(runtime, [subscribe()])
    with pytest.raises(OSError, match="went away"):
        import_subscriptions(runtime, Source(Lines(), rows()), actor="t", refuse=lambda _: None, processes=1)
    assert staged(pg) == 0


def test_what_a_dead_import_left_is_removed_by_the_next_and_what_a_living_one_has_is_not(
    runtime: Runtime, pg: Pg
) -> None:
    with runtime.db.transaction() as tx:
        dead, alive = (staging_store.begin(tx, "t", timedelta(minutes=minutes)) for minutes in (-1, 5))
        for each in (dead, alive):
            staging_store.create(tx, each)
    bring(runtime, [subscribe()])
    assert pg.execute("SELECT import_id FROM subscription_import").fetchall() == [(alive,)]
    assert staged(pg) == 3


def test_an_import_that_was_taken_for_dead_says_so_and_stores_no_more(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "RENEWED", 0)

    def told(what: str, _done: int, _of: int | None) -> None:
        if what == service.READING:
            pg.execute("UPDATE subscription_import SET alive_until = now() - interval '1 second'")
            staging.tidy(runtime)

    with pytest.raises(RefusedError, match="stood still too long"):
        bring(runtime, [subscribe() for _ in range(4)], told=told)
    assert everything(pg)["push_subscription"] == []


def test_staging_that_a_crash_emptied_is_noticed(runtime: Runtime, pg: Pg) -> None:
    """An UNLOGGED table is empty after one, and the import would end as if its file had been."""

    def told(what: str, _done: int, _of: int | None) -> None:
        if what == service.READING:
            pg.execute("TRUNCATE import_staging")

    with pytest.raises(StagingLostError, match="PostgreSQL crashed"):
        bring(runtime, [subscribe() for _ in range(4)], told=told)
    assert staged(pg) == 0


def test_an_import_that_stops_half_way_is_completed_by_the_next(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PAGE", 5)
    monkeypatch.setattr(merging, "LANES", 1)
    given = [subscribe(user=f"u{n}", created_at=NEW) for n in range(60)]

    def told(what: str, done: int, _of: int | None) -> None:
        if what == service.STORING and done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(runtime, given, told=told)
    half = len(everything(pg)["push_subscription"])
    assert 20 < half < 60
    done, _ = bring(runtime, given)
    assert (done.inserted, done.unchanged) == (60 - half, half)
    found = everything(pg)
    assert {row["registration_no"] for row in found["push_subscription"]} == {1}
    assert len(found["subscription_period"]) == 60


def test_pages_take_every_row_once_however_many_there_are(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PAGE", 3)
    given = [subscribe() for _ in range(50)]
    done, _ = bring(runtime, [*given, *given[:7]])
    assert (done.inserted, done.duplicates) == (50, 7)


def test_no_statement_of_a_page_reads_a_table_of_ours_whole(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans of thousands of rows for each of hundreds of pages are what an import dies of."""
    pg.execute(
        """INSERT INTO push_subscription (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version,
                  user_id) SELECT sha256(n::text::bytea), 'e' || n, 'fcm', repeat('p', 87), 'x', 1, 'u' || n / 3
             FROM generate_series(1, 20000) AS n"""
    )
    pg.execute(
        """INSERT INTO subscription_period (endpoint_hash, user_id, push_service, began_at)
           SELECT endpoint_hash, user_id, push_service, created_at FROM push_subscription"""
    )
    pg.execute("VACUUM ANALYZE push_subscription, subscription_period")
    counted = """SELECT relname, seq_scan FROM pg_stat_user_tables
                  WHERE relname IN ('push_subscription', 'subscription_period')"""
    monkeypatch.setattr(merging, "PAGE", 50)
    pg.execute("SELECT pg_stat_force_next_flush()")
    before = dict(pg.execute(counted).fetchall())
    given = [subscribe(user=f"u{n}") for n in range(400)]
    bring(runtime, given)
    bring(runtime, [each | {"user": "v"} for each in given])
    runtime.db.close()
    pg.execute("SELECT pg_stat_force_next_flush()")
    assert dict(pg.execute(counted).fetchall()) == before


def test_while_the_stop_file_stands_nothing_is_stored_and_the_import_says_why(
    settings: Settings, pg: Pg, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    stopped = settings.model_copy(update={"stop_file": stop, "sweep_max_lag_give_up": timedelta(0)})
    given = [subscribe()]
    with runtime_of(stopped) as rt:
        with pytest.raises(RefusedError, match="held by stop_file"):
            bring(rt, given)
        assert (everything(pg)["push_subscription"], staged(pg)) == ([], 0)
        stop.unlink()
        done, _ = bring(rt, given)
    assert done.inserted == 1


def test_an_import_goes_on_once_replicas_have_caught_up(
    runtime: Runtime, recorded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [valves.hold("lag", "a replica is 1 bytes behind, 0 allowed"), valves.opened("lag")]
    monkeypatch.setattr(gauge, "read_lag", lambda _rt: readings.pop(0) if len(readings) > 1 else readings[0])
    monkeypatch.setattr(brake, "EVERY", 0.01)
    done, _ = bring(runtime, [subscribe()])
    assert done.inserted == 1
    assert [fields["valve"] for _, name, fields in recorded if name == "import.held"] == ["lag"]
