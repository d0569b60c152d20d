"""Registering: one upsert whatever was there, an answer for the client, a refusal that names its field."""

import base64
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import pushops
from pushops.db.transaction import render
from pushops.errors import RefusedError
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.keychain import AUTH, keychain
from pushops.subscriptions.keys import load_vapid_key
from pushops.subscriptions.registering import Candidate, Saved
from pushops.subscriptions.rejection import Advice, Rejected
from pushops.subscriptions.store.registration import UPSERT
from tests import rows
from tests.browser import encode, new_endpoint, new_point, subscribe
from tests.rows import Pg

Change = Callable[[dict[str, Any]], object]


def vapid_public(rt: Runtime, key_id: str = "test") -> bytes:
    return load_vapid_key(rt.settings.vapid_keys[key_id].get_secret_value()).public


def opened_auth(rt: Runtime, row: dict[str, Any]) -> bytes:
    return keychain(rt.settings).ring.open(AUTH, row["endpoint_hash"], row["auth_key_version"], row["auth_sealed"])


def test_a_new_endpoint_becomes_a_pending_row(runtime: Runtime, pg: Pg) -> None:
    subscription = subscribe()
    saved = service.save_subscription(
        runtime, subscription, user_id="u1", origin="https://a.example", tags=["b", "a"], user_agent="UA", locale="de"
    )
    row = rows.row(pg, subscription["endpoint"])
    assert (saved.state, saved.inserted, saved.advice, saved.reconnection) == ("pending", True, Advice.KEEP, False)
    assert saved.id == row["id"]
    assert row["endpoint"] == subscription["endpoint"]
    assert row["endpoint_hash"] == endpoint_hash(subscription["endpoint"])
    assert (row["user_id"], row["origin"], row["tags"]) == ("u1", "https://a.example", ["a", "b"])
    assert (row["user_agent"], row["locale"], row["push_service"]) == ("UA", "de", "fcm")
    assert encode(opened_auth(runtime, row)) == subscription["keys"]["auth"]


def test_an_endpoint_is_stored_byte_for_byte(runtime: Runtime, pg: Pg) -> None:
    """A29."""
    endpoint = "https://wns2-bl2p.notify.windows.com/w//?token=BQYAAAC%2fcpad%2b4MZ%3d&X=A."
    service.save_subscription(runtime, subscribe(endpoint))
    assert rows.row(pg, endpoint)["endpoint"] == endpoint


def test_both_keys_are_replaced_together(runtime: Runtime, pg: Pg) -> None:
    """A27: the same endpoint with new keys."""
    first, endpoint = subscribe(), new_endpoint()
    service.save_subscription(runtime, first | {"endpoint": endpoint})
    second = subscribe(endpoint)
    saved = service.save_subscription(runtime, second)
    row = rows.row(pg, endpoint)
    assert (row["p256dh"], encode(opened_auth(runtime, row))) == (second["keys"]["p256dh"], second["keys"]["auth"])
    assert (saved.inserted, row["registration_no"]) == (False, 2)


@pytest.mark.parametrize("state", ["expired", "revoked"])
def test_a_tombstone_comes_back_whole(state: str, runtime: Runtime, pg: Pg) -> None:
    """C03: same id, first date, fresh keys, no end, no votes; also after the credentials were scrubbed."""
    endpoint = new_endpoint()
    first = service.save_subscription(runtime, subscribe(endpoint), user_id="u1")
    rows.age(pg, endpoint, timedelta(days=40), "created_at", "registered_at", "last_seen_at")
    rows.put_in_state(pg, endpoint, state)
    pg.execute(
        "UPDATE push_subscription SET endpoint = NULL, p256dh = NULL, auth_sealed = NULL, auth_key_version = NULL,"
        " scrubbed_at = now(), votes = 3, first_vote_at = now(), last_vote_at = now(), user_agent = NULL,"
        " end_run_id = gen_random_uuid()"
    )
    before = rows.row(pg, endpoint)

    again = subscribe(endpoint)
    saved = service.save_subscription(runtime, again, user_id="u1", user_agent="new")

    after = rows.row(pg, endpoint)
    assert (saved.id, saved.inserted, saved.state, saved.reconnection) == (first.id, False, "pending", True)
    gone = ("deleted_at", "revoked_at", "scrubbed_at", "end_reason", "end_run_id", "first_vote_at", "last_vote_at")
    assert [after[name] for name in gone] == [None] * len(gone)
    assert (after["votes"], after["user_agent"], after["endpoint"]) == (0, "new", endpoint)
    assert (after["p256dh"], after["created_at"]) == (again["keys"]["p256dh"], before["created_at"])
    assert after["registered_at"] > before["registered_at"] + timedelta(days=39)
    assert after["registration_no"] == before["registration_no"] + 1
    assert after["state_since"] > before["state_since"]


def test_posting_an_active_row_again_changes_neither_state_nor_its_time(runtime: Runtime, pg: Pg) -> None:
    """A23 of the features: seen is not success."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    rows.put_in_state(pg, endpoint, "active")
    rows.age(pg, endpoint, timedelta(days=3), "last_seen_at", "registered_at")
    before = rows.row(pg, endpoint)
    assert service.save_subscription(runtime, subscribe(endpoint)).state == "active"
    after = rows.row(pg, endpoint)
    assert (after["state_since"], after["last_success_at"]) == (before["state_since"], before["last_success_at"])
    assert after["last_seen_at"] > before["last_seen_at"]


def test_the_upsert_needs_the_full_unique_constraint(database_url: str) -> None:
    """C04: over live rows only, ON CONFLICT (endpoint_hash) finds no constraint; with ours the statement plans."""
    query = "EXPLAIN (GENERIC_PLAN) " + _numbered(render(UPSERT, "pushops").decode())
    with psycopg.connect(database_url) as conn:
        conn.execute(query.encode())
        conn.execute("ALTER TABLE pushops.push_subscription DROP CONSTRAINT push_subscription_endpoint_hash_key")
        conn.execute("CREATE UNIQUE INDEX ON pushops.push_subscription (endpoint_hash) WHERE deleted_at IS NULL")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            conn.execute(query.encode())


def _numbered(query: str) -> str:
    from tests.db.test_every_statement import numbered

    return numbered(query)


def test_an_endpoint_too_long_for_any_index_is_stored(runtime: Runtime, pg: Pg) -> None:
    """A20, A21: only the digest is indexed."""
    wide = Runtime(runtime.settings.model_copy(update={"endpoint_max": 8192}), runtime.db, None, runtime.events)
    endpoint = new_endpoint() + "".join(encode(new_point()) for _ in range(80))
    assert service.save_subscription(wide, subscribe(endpoint)).inserted
    assert len(rows.row(pg, endpoint)["endpoint"]) > 6000


# What the client is told


def test_past_its_expiration_the_client_is_told_to_subscribe_again(runtime: Runtime, pg: Pg) -> None:
    """A22 of the features: advice, never an end."""
    past = subscribe(expirationTime=(rows.now(pg) - timedelta(minutes=1)).timestamp() * 1000)
    future = subscribe(expirationTime=(rows.now(pg) + timedelta(days=1)).timestamp() * 1000)
    found = [service.save_subscription(runtime, each) for each in (past, future)]
    assert [(saved.advice, saved.state) for saved in found] == [
        (Advice.RESUBSCRIBE, "pending"),
        (Advice.KEEP, "pending"),
    ]
    assert rows.row(pg, past["endpoint"])["expiration_time"] < rows.now(pg)


def test_an_implausible_expiration_is_ignored_and_counted(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    """A13."""
    subscription = subscribe(expirationTime=1767225600)
    assert service.save_subscription(runtime, subscription).advice is Advice.KEEP
    assert rows.row(pg, subscription["endpoint"])["expiration_time"] is None
    assert [fields["expiration_ignored"] for _, name, fields in recorded if name == "subscription.saved"] == [True]


def test_a_key_mismatch_stays_for_the_same_key_and_goes_with_another(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    pg.execute("UPDATE push_subscription SET send_block = 'key_mismatch'")
    assert service.save_subscription(runtime, subscribe(endpoint)).advice is Advice.RESUBSCRIBE
    assert rows.row(pg, endpoint)["send_block"] == "key_mismatch"

    pg.execute("UPDATE push_subscription SET vapid_key_id = 'older'")
    mended = service.save_subscription(runtime, subscribe(endpoint), application_server_key=vapid_public(runtime))
    assert (mended.advice, rows.row(pg, endpoint)["send_block"]) == (Advice.KEEP, None)


@pytest.mark.parametrize("block", ["bad_keys", "dead_service"])
def test_any_other_block_ends_with_a_new_registration(block: str, runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    pg.execute("UPDATE push_subscription SET send_block = %s", [block])
    assert service.save_subscription(runtime, subscribe(endpoint)).advice is Advice.KEEP
    assert rows.row(pg, endpoint)["send_block"] is None


def test_the_vapid_key_is_the_one_that_the_client_named(runtime: Runtime, pg: Pg) -> None:
    """A33 of the features."""
    endpoint = new_endpoint()
    assumed = service.save_subscription(runtime, subscribe(endpoint))
    assert (assumed.vapid_key_id, assumed.key_assumed) == ("test", True)
    named = service.save_subscription(
        runtime, subscribe(endpoint), application_server_key=encode(vapid_public(runtime))
    )
    assert (named.vapid_key_id, named.key_assumed) == ("test", False)
    silent = service.save_subscription(runtime, subscribe(endpoint))
    assert (silent.vapid_key_id, silent.key_assumed) == ("test", False)

    pg.execute("UPDATE push_subscription SET vapid_key_id = 'older'")
    assert service.save_subscription(runtime, subscribe(endpoint)).vapid_key_id == "older"


def test_a_row_whose_vapid_key_is_gone_is_told_to_subscribe_again(runtime: Runtime, pg: Pg) -> None:
    """B18: at its next contact, whichever it is."""
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    pg.execute("UPDATE push_subscription SET vapid_key_id = 'gone'")
    assert service.save_subscription(runtime, subscribe(endpoint)).advice is Advice.RESUBSCRIBE
    assert service.touch(runtime, endpoint).advice is Advice.RESUBSCRIBE
    assert rows.row(pg, endpoint)["state"] == "pending"
    named = service.save_subscription(runtime, subscribe(endpoint), application_server_key=vapid_public(runtime))
    assert named.advice is Advice.KEEP
    assert service.touch(runtime, endpoint).advice is Advice.KEEP


def test_who_holds_no_vapid_key_sends_nobody_away(settings: Settings, pg: Pg) -> None:
    endpoint = new_endpoint()
    with pushops.open(settings) as ops:
        ops.save_subscription(subscribe(endpoint))
    with pushops.open(settings.model_copy(update={"vapid_keys": {}, "vapid_key_id": None})) as ops:
        assert ops.touch(endpoint).advice is Advice.KEEP
    assert rows.row(pg, endpoint)["vapid_key_id"] == "test"


def test_a_vapid_key_that_is_not_held_is_refused(runtime: Runtime, pg: Pg) -> None:
    with pytest.raises(SubscriptionRefused) as caught:
        service.save_subscription(runtime, subscribe(), application_server_key=new_point())
    assert (caught.value.reason, caught.value.advice) == ("unknown_vapid_key", Advice.RESUBSCRIBE)
    assert pg.execute("SELECT count(*) FROM push_subscription").fetchone() == (0,)


# Refusals


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        pytest.param(lambda s: s.pop("keys"), "keys", "missing_keys", id="A10"),
        pytest.param(lambda s: s.update(endpoint="http://10.0.0.5:8443/"), "endpoint", "not_https", id="A15"),
        pytest.param(lambda s: s.update(endpoint="https://169.254.169.254/"), "endpoint", "ip_literal", id="A15-ip"),
        pytest.param(
            lambda s: s.update(endpoint="https://permanently-removed.invalid/x"), "endpoint", "dead_host", id="A14"
        ),
        pytest.param(lambda s: s["keys"].update(auth="AUTH"), "keys.auth", "bad_auth_length", id="A09"),
        pytest.param(
            lambda s: s["keys"].update(p256dh=encode(b"\x04" + b"\x01" * 64)),
            "keys.p256dh",
            "bad_p256dh_point",
            id="A07",
        ),
        pytest.param(lambda s: s.update(contentEncoding="aesgcm"), "contentEncoding", "aesgcm_encoding", id="aesgcm"),
    ],
)
def test_what_could_not_be_sent_to_is_refused_before_anything_is_written(
    change: Change, field: str, reason: str, runtime: Runtime, pg: Pg, recorded: list[Any]
) -> None:
    subscription = subscribe()
    secret = subscription["keys"]["auth"]
    change(subscription)
    with pytest.raises(SubscriptionRefused) as caught:
        service.save_subscription(runtime, subscription)
    assert (caught.value.field, caught.value.reason) == (field, reason)
    assert secret not in f"{caught.value} {caught.value!r}"
    assert pg.execute("SELECT count(*) FROM push_subscription").fetchone() == (0,)
    assert [(name, fields["reason"]) for _, name, fields in recorded] == [("subscription.refused", reason)]


def test_a_refusal_survives_pickling() -> None:
    refusal = SubscriptionRefused("keys.auth", "bad_auth_length", "16 bytes", "15 bytes", "resubscribe")
    again = pickle.loads(pickle.dumps(refusal))  # noqa: S301  (our own)
    assert (str(again), vars(again)) == (str(refusal), vars(refusal))
    assert isinstance(again, RefusedError)


@pytest.mark.parametrize(
    "given",
    [{"user_id": "a\0b"}, {"user_id": ""}, {"user_id": 42}, {"user_id": "\ud800"}, {"user_id": "x" * 513},
     {"origin": "\0"}, {"tags": "abc"}, {"tags": ["a\0"]}, {"tags": [None]}, {"tags": tuple(map(str, range(101)))},
     {"user_agent": b"UA"}, {"locale": 7}],
    ids=repr,
)  # fmt: skip
def test_what_the_application_chose_and_cannot_be_stored_is_refused(given: dict[str, Any], runtime: Runtime) -> None:
    with pytest.raises(SubscriptionRefused) as caught:
        service.save_subscription(runtime, subscribe(), **given)
    assert caught.value.field == next(iter(given))


@pytest.mark.parametrize(
    ("given", "stored"),
    [("a\0b", "ab"), ("\ud83d\ud800x", "x"), ("x" * 500, "x" * 400), ("é" * 500, "é" * 400), ("\0", None)],
)
def test_a_user_agent_is_cleaned_and_cut_and_never_fails(
    given: str, stored: str | None, runtime: Runtime, pg: Pg
) -> None:
    subscription = subscribe()
    service.save_subscription(runtime, subscription, user_agent=given, locale=given)
    assert rows.row(pg, subscription["endpoint"])["user_agent"] == stored


# Many, and by the public door


def test_an_import_says_for_each_row_what_became_of_it(runtime: Runtime, pg: Pg) -> None:
    known = subscribe()
    service.save_subscription(runtime, known)
    twice = subscribe()
    found = list(
        service.save_many(
            runtime,
            [
                Candidate(subscribe(), user_id="u1", tags=["x"]),
                Candidate({"endpoint": None}),
                Candidate(known, user_id="u2"),
                Candidate(twice, user_id="u3"),
                Candidate(twice, user_id="u4"),
                Candidate(subscribe(), user_id="\0"),
                Candidate(subscribe(), created_at=rows.now(pg) - timedelta(days=900)),
            ],
        )
    )
    assert [type(each) for each in found] == [Saved, Rejected, Saved, Saved, Saved, Rejected, Saved]
    assert [each.inserted for each in found if isinstance(each, Saved)] == [True, False, True, True, True]
    assert rows.owners(pg, known["endpoint"]) == [(None, "owner_changed"), ("u2", None)]
    assert rows.owners(pg, twice["endpoint"]) == [("u4", None)]
    assert pg.execute("SELECT min(created_at) < now() - interval '899 d' FROM push_subscription").fetchone() == (True,)


def test_an_import_leaves_what_its_line_does_not_say(runtime: Runtime, pg: Pg) -> None:
    """One chunk holds lines with tags and lines without: each row goes by its own line."""
    silent, told = subscribe(), subscribe()
    for each in (silent, told):
        service.save_subscription(runtime, each, user_id="u1", tags=["news"])
    list(service.save_many(runtime, [Candidate(silent), Candidate(told, user_id="u1", tags=[])]))
    found = [rows.row(pg, each["endpoint"]) for each in (silent, told)]
    assert [(row["user_id"], row["tags"]) for row in found] == [("u1", ["news"]), ("u1", [])]
    assert rows.owners(pg, silent["endpoint"]) == [("u1", None)]
    list(service.save_many(runtime, [Candidate(silent, user_id="u2")]))
    assert rows.row(pg, silent["endpoint"])["tags"] == [], "another's tags are not theirs"


def test_an_import_brings_back_what_evidence_ended_and_not_what_a_person_did(runtime: Runtime, pg: Pg) -> None:
    left, gone = subscribe(), subscribe()
    for each in (left, gone):
        service.save_subscription(runtime, each, user_id="u1")
    service.unsubscribe(runtime, endpoint=left["endpoint"])
    rows.put_in_state(pg, gone["endpoint"], "revoked", "gone")
    before = rows.row(pg, left["endpoint"])
    found = list(service.save_many(runtime, [Candidate(left, user_id="u1"), Candidate(gone)]))
    assert isinstance(found[0], Rejected)
    assert (found[0].reason, found[0].advice) == ("unsubscribed", Advice.UNSUBSCRIBE)
    assert rows.row(pg, left["endpoint"]) == before
    assert rows.owners(pg, left["endpoint"]) == [("u1", "unsubscribed")]
    assert rows.row(pg, gone["endpoint"])["state"] == "pending"
    (revived,) = service.save_many(runtime, [Candidate(left, user_id="u1")], revive=True)
    assert isinstance(revived, Saved)
    assert rows.row(pg, left["endpoint"])["state"] == "pending"


def test_an_import_of_several_chunks_is_complete(runtime: Runtime, pg: Pg) -> None:
    found = list(service.save_many(runtime, (Candidate(subscribe()) for _ in range(1201))))
    assert len({saved.id for saved in found if isinstance(saved, Saved)}) == 1201
    count = "SELECT (SELECT count(*) FROM push_subscription), (SELECT count(*) FROM subscription_period)"
    assert pg.execute(count).fetchone() == (1201, 1201)


def test_a_verb_joins_the_transaction_of_its_caller(runtime: Runtime, database_url: str, pg: Pg) -> None:
    subscription = subscribe()
    with psycopg.connect(database_url) as conn:
        service.save_subscription(runtime, subscription, conn=conn)
        conn.rollback()
        assert pg.execute("SELECT count(*) FROM push_subscription").fetchone() == (0,)
        service.save_subscription(runtime, subscription, conn=conn)
    assert rows.row(pg, subscription["endpoint"])["state"] == "pending"


def test_the_public_verbs_work_on_an_opened_runtime(runtime: Runtime) -> None:
    subscription = subscribe()
    with pushops.open(runtime.settings) as ops:
        saved = ops.save_subscription(subscription, user_id="u1")
        assert ops.show(endpoint=subscription["endpoint"]).id == saved.id
        assert ops.touch(subscription["endpoint"]).advice is Advice.KEEP
        assert [row.id for row in ops.list_subscriptions(user="u1").rows] == [saved.id]
        assert ops.unsubscribe(user="u1") == 1
        assert ops.save_subscription(subscription).reconnection


def test_a_standard_base64_key_is_stored_in_the_one_form(runtime: Runtime, pg: Pg) -> None:
    """A02."""
    point, auth, endpoint = new_point(), b"\xfb\xff" * 8, new_endpoint()
    keys = {"p256dh": base64.b64encode(point).decode(), "auth": base64.b64encode(auth).decode()}
    service.save_subscription(runtime, {"endpoint": endpoint, "keys": keys})
    row = rows.row(pg, endpoint)
    assert (row["p256dh"], opened_auth(runtime, row)) == (encode(point), auth)


# The limit per user


def test_over_the_limit_the_least_recently_seen_retires(runtime: Runtime, pg: Pg, recorded: list[Any]) -> None:
    """A25."""
    limited = Runtime(runtime.settings.model_copy(update={"max_live_per_user": 2}), runtime.db, None, runtime.events)
    endpoints = [new_endpoint() for _ in range(3)]
    other = new_endpoint()
    service.save_subscription(limited, subscribe(other), user_id="somebody else")
    for days, endpoint in zip((5, 9, 0), endpoints, strict=True):
        service.save_subscription(limited, subscribe(endpoint), user_id="u1")
        rows.age(pg, endpoint, timedelta(days=days), "last_seen_at")
    found = [rows.row(pg, endpoint) for endpoint in (*endpoints, other)]
    assert [row["state"] for row in found] == ["pending", "revoked", "pending", "pending"]
    assert found[1]["end_reason"] == "user_limit"
    assert rows.owners(pg, endpoints[1]) == [("u1", "user_limit")]
    ended = [fields for _, name, fields in recorded if name == "subscription.ended"]
    assert [(fields["verb"], fields["reason"]) for fields in ended] == [("retire", "user_limit")]
    audit = pg.execute("SELECT user_id, detail FROM audit WHERE verb = 'retire'").fetchall()
    assert audit == [("u1", {"reason": "user_limit", "was": "pending"})]
