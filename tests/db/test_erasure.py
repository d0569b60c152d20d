"""Being forgotten: nothing is sent from the commit on, nothing is left anywhere, and nothing comes back on its own."""

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from pushops.deadletters import spool, tending
from pushops.erasure import deadlines
from pushops.erasure import service as erasures
from pushops.erasure.applying import SPOOL, carry_on
from pushops.erasure.words import Progress
from pushops.importing.dumping import dump
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.errors import SubscriptionRefused
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.registering import Candidate, Saved
from pushops.subscriptions.rejection import Advice
from pushops.subscriptions.store.reading import Filter
from tests.browser import new_endpoint, subscribe
from tests.erasing import ANN, BOB, Traces, a_letter, apply, everything, forms, has_object, leave_traces
from tests.sweepdb import scalar

Pg = psycopg.Connection[Any]
ACTOR = "test"
ATTEMPT = {"n": 1, "at": "2026-03-01T12:00:00+00:00", "status": 503, "code": "unavailable", "outcome": "retry"}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(
        update={"spool": tmp_path / "spool", "payload_store": f"file://{tmp_path}/objects", "sweep_pause_ms": 0}
    )


@pytest.fixture
def rt(settings: Settings, recorded: list[Any], valkey_url: str) -> Iterator[Runtime]:
    opened = open_runtime(settings, sinks=(lambda level, name, fields: recorded.append((level, name, dict(fields))),))
    client = redis.Redis.from_url(valkey_url)
    yield Runtime(opened.settings, opened.db, client, opened.events)
    client.close()
    opened.close()


@pytest.fixture
def ann(rt: Runtime, pg: Pg) -> Traces:
    return leave_traces(rt, pg)


def test_after_an_erasure_nothing_that_is_stored_names_the_user_or_their_endpoints(
    rt: Runtime, pg: Pg, ann: Traces
) -> None:
    """G7: a dump of the whole database, the object store, Redis and the spool."""
    before = everything(rt)
    assert ANN in before
    assert ann.live in before
    assert all(digest.hex() in before for digest in ann.hers), "the search must be able to find them"
    ref = scalar(pg, "SELECT payload_ref FROM push_message WHERE message_id = %(id)s", id=ann.to_ann)
    assert has_object(rt, ref)

    asked = erasures.erase(rt, user=ANN, actor=ACTOR)
    assert (asked.rows, asked.ended, asked.held) == (2, 2, False)
    assert apply(rt).state == "done"

    after = everything(rt)
    assert ANN not in after
    assert ann.live not in after
    assert ann.ended not in after
    for digest in ann.hers:
        assert after.count(digest.hex()) == 1, "the hash stands on the suppression list and nowhere else"
        assert not [form for form in forms(digest)[1:] if form in after]
    assert "nobody's" in after, "what is not theirs stays in the spool"
    assert not has_object(rt, ref)
    assert scalar(pg, "SELECT count(*) FROM suppression") == 2


@pytest.mark.usefixtures("ann")
def test_the_receipt_says_what_went_from_where_and_whose_it_was_by_a_keyed_hmac(rt: Runtime) -> None:
    asked = erasures.erase(rt, user=ANN, actor=ACTOR)
    apply(rt)
    receipt = erasures.show_request(rt, asked.request_id)
    assert receipt.state == "done"
    assert receipt.user_hmac is not None
    assert receipt.endpoints == 2
    assert set(receipt.receipt) >= {
        "subscriptions",
        "consent periods",
        "ledger",
        "owed letters",
        "dead letters",
        "evidence",
        "throttles",
        "audit",
        "import staging",
        "messages",
        "payloads",
        "recipient lists",
        "spool",
    }
    assert receipt.receipt["subscriptions"] == 2


@pytest.mark.usefixtures("ann")
def test_who_took_their_keys_in_a_dump_is_forgotten_with_them(rt: Runtime) -> None:
    dump(rt, io.StringIO(), which=Filter(ANN), with_credentials=True, actor=ACTOR)
    erasures.erase(rt, user=ANN, actor=ACTOR)
    assert apply(rt).state == "done"
    assert ANN not in everything(rt)


@pytest.mark.usefixtures("ann")
def test_a_spool_that_is_not_ours_to_blank_is_waited_for_and_sets_no_request_apart(rt: Runtime, pg: Pg) -> None:
    broken = spool.folder(rt.settings) / "1-0.broken"
    broken.chmod(0o644)
    request = erasures.erase(rt, user=ANN, actor=ACTOR).request_id
    assert carry_on(rt, request, monotonic() + 20) is Progress.WAITS
    assert erasures.show_request(rt, request).waits == SPOOL
    broken.chmod(0o600)
    assert apply(rt).state == "done"
    assert erasures.show_request(rt, request).state == "done"
    assert scalar(pg, "SELECT count(*) FROM sweep_quarantine WHERE sweep = 'apply-erasures'") == 0


@pytest.mark.usefixtures("ann")
def test_a_user_who_is_called_as_a_push_service_is_takes_nobody_else_s_broken_line(rt: Runtime) -> None:
    service.save_subscription(rt, subscribe(new_endpoint()), user_id="fcm")
    torn = spool.line(a_letter(b"x" * 32, uuid4(), owner=BOB))[:-9]
    assert b'"fcm"' in torn
    broken = spool.folder(rt.settings) / "2-0.broken"
    broken.write_bytes(torn + b"\n")
    broken.chmod(0o600)
    erasures.erase(rt, user="fcm", actor=ACTOR)
    assert apply(rt).state == "done"
    assert broken.read_bytes() == torn + b"\n"


def test_a_letter_that_lay_in_a_spool_all_the_while_is_dropped_when_it_comes_in(
    rt: Runtime, pg: Pg, ann: Traces
) -> None:
    """Another host's: by its endpoint, or by its owner where the endpoint is another's by now."""
    erasures.erase(rt, user=ANN, actor=ACTOR)
    apply(rt)
    theirs = [a_letter(endpoint_hash(ann.live), ann.to_all), a_letter(endpoint_hash(ann.former), ann.to_ann)]
    bobs = a_letter(endpoint_hash(ann.former), ann.to_all, owner=BOB)
    spool.append(rt.settings, [replace(each, history=[ATTEMPT]) for each in (*theirs, bobs)])
    tending.tend(rt)
    assert pg.execute("SELECT owner FROM push_dlq").fetchall() == [(BOB,)]
    assert ANN not in everything(rt)
    assert scalar(pg, "SELECT count(DISTINCT replay_key) FROM push_dlq_attempt") == 1


def test_a_letter_of_a_sender_that_had_claimed_before_the_request_is_dropped_whenever_it_comes_in(
    rt: Runtime, pg: Pg, ann: Traces
) -> None:
    """Its last attempt is later than the request, and by its endpoint it is not known: the client has confirmed."""
    erasures.erase(rt, user=ANN, actor=ACTOR)
    late = a_letter(endpoint_hash(ann.live), ann.to_all, last_attempt_at=datetime.now(UTC))
    apply(rt)
    service.confirm_unsubscribed(rt, ann.live)
    spool.append(rt.settings, [late])
    tending.tend(rt)
    assert scalar(pg, "SELECT count(*) FROM push_dlq") == 0
    assert ANN not in everything(rt)


def test_who_has_the_endpoint_now_keeps_it_and_what_is_theirs(rt: Runtime, pg: Pg, ann: Traces) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    apply(rt)
    former = endpoint_hash(ann.former)
    row = pg.execute("SELECT user_id, state FROM push_subscription WHERE endpoint_hash = %s", [former]).fetchone()
    assert row == (BOB, "pending")
    trail = pg.execute("SELECT user_id, ended_at FROM subscription_period WHERE endpoint_hash = %s", [former])
    assert trail.fetchall() == [(BOB, None)]
    assert service.touch(rt, ann.former).advice is Advice.KEEP


@pytest.mark.usefixtures("ann")
def test_messages_and_days_count_as_before(rt: Runtime, pg: Pg) -> None:
    counts = """SELECT message_id, count(*) FROM push_dispatch GROUP BY 1 ORDER BY 1"""
    started = """SELECT began_at::date, count(*) FROM subscription_period GROUP BY 1"""
    before, days = pg.execute(counts).fetchall(), pg.execute(started).fetchall()
    erasures.erase(rt, user=ANN, actor=ACTOR)
    apply(rt)
    assert pg.execute(counts).fetchall() == before
    assert pg.execute(started).fetchall() == days
    ended = pg.execute("SELECT end_reason, sum(ended)::int FROM subscription_ended_daily GROUP BY 1").fetchall()
    assert ended == [("erased", 2)]


def test_the_next_heartbeat_registration_and_rotation_are_told_to_unsubscribe_and_store_nothing(
    rt: Runtime, pg: Pg, ann: Traces
) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    for _ in range(2):  # at once, and when all is gone
        assert service.touch(rt, ann.live).advice is Advice.UNSUBSCRIBE
        for call in (
            lambda: service.save_subscription(rt, subscribe(ann.live), user_id="new"),
            lambda: service.rotate(rt, ann.live, subscribe(new_endpoint())),
        ):
            with pytest.raises(SubscriptionRefused) as refused:
                call()
            assert (refused.value.advice, refused.value.reason) == (Advice.UNSUBSCRIBE, "erased")
        apply(rt)
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE user_id = 'new'") == 0
    assert not scalar(
        pg, "SELECT count(*) FROM push_subscription WHERE endpoint_hash = %(h)s", h=endpoint_hash(ann.live)
    )


def test_a_rotated_endpoint_of_the_erased_is_suppressed_as_well(rt: Runtime, ann: Traces) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    heir = new_endpoint()
    with pytest.raises(SubscriptionRefused):
        service.rotate(rt, ann.live, subscribe(heir))
    with pytest.raises(SubscriptionRefused):
        service.save_subscription(rt, subscribe(heir))


def test_a_confirmation_or_a_new_opt_in_lifts_it(rt: Runtime, pg: Pg, ann: Traces) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    apply(rt)
    assert service.confirm_unsubscribed(rt, ann.ended)
    assert not service.confirm_unsubscribed(rt, ann.ended)
    service.save_subscription(rt, subscribe(ann.ended))
    service.save_subscription(rt, subscribe(ann.live), opt_in=True)
    assert scalar(pg, "SELECT count(*) FROM suppression") == 0


def test_while_a_request_is_open_nothing_comes_back_and_a_confirmation_counts_at_its_end(
    rt: Runtime, ann: Traces
) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    with pytest.raises(SubscriptionRefused):
        service.save_subscription(rt, subscribe(ann.live), opt_in=True)
    assert service.confirm_unsubscribed(rt, ann.live)
    with pytest.raises(SubscriptionRefused):
        service.save_subscription(rt, subscribe(ann.live))
    apply(rt)
    service.save_subscription(rt, subscribe(ann.live))


def test_an_import_refuses_what_was_erased_and_stores_the_rest(rt: Runtime, ann: Traces) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    found = list(service.save_many(rt, [Candidate(subscribe(ann.live)), Candidate(subscribe(new_endpoint()))]))
    assert getattr(found[0], "reason", None) == "erased"
    assert isinstance(found[1], Saved)


def test_an_endpoint_alone_can_be_erased_and_its_user_keeps_the_others(rt: Runtime, ann: Traces) -> None:
    asked = erasures.erase(rt, endpoint=ann.live, actor=ACTOR)
    assert asked.rows == 1
    apply(rt)
    after = everything(rt)
    assert after.count(endpoint_hash(ann.live).hex()) == 1
    assert endpoint_hash(ann.ended).hex() in after
    assert erasures.show_request(rt, asked.request_id).of == "endpoint"


def test_an_endpoint_that_nobody_knows_is_suppressed_all_the_same(rt: Runtime, pg: Pg) -> None:
    stranger = new_endpoint()
    assert erasures.erase(rt, endpoint=stranger, actor=ACTOR).rows == 0
    apply(rt)
    assert service.touch(rt, stranger).advice is Advice.UNSUBSCRIBE
    assert scalar(pg, "SELECT count(*) FROM push_subscription") == 0


@pytest.mark.usefixtures("ann")
def test_asking_twice_is_one_request_and_asking_again_later_another(rt: Runtime) -> None:
    first = erasures.erase(rt, user=ANN, actor=ACTOR)
    again = erasures.erase(rt, user=ANN, actor=ACTOR)
    assert (again.request_id, again.joined) == (first.request_id, True)
    apply(rt)
    later = erasures.erase(rt, user=ANN, actor=ACTOR)
    assert later.request_id != first.request_id
    assert apply(rt).state == "done"


def test_a_legal_hold_wins_and_the_erasure_goes_on_at_its_release(rt: Runtime, pg: Pg, ann: Traces) -> None:
    """F36."""
    assert erasures.hold(rt, user=ANN, reason="case 12", actor=ACTOR).rows == 2
    asked = erasures.erase(rt, user=ANN, actor=ACTOR)
    assert asked.held
    assert erasures.show_request(rt, asked.request_id).state == "held"
    assert erasures.go_on(rt, None) is None
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE user_id = %(u)s", u=ANN) == 2
    assert service.touch(rt, ann.live).advice is Advice.UNSUBSCRIBE, "it is kept, not sent to"
    assert erasures.release(rt, user=ANN, reason="closed", actor=ACTOR).requests == 1
    apply(rt)
    assert erasures.show_request(rt, asked.request_id).state == "done"
    assert ANN not in everything(rt)


def test_a_hold_that_comes_after_the_request_stops_it(rt: Runtime, pg: Pg, ann: Traces) -> None:
    asked = erasures.erase(rt, user=ANN, actor=ACTOR)
    assert erasures.hold(rt, endpoint=ann.live, reason="case 12", actor=ACTOR).requests == 1
    assert erasures.show_request(rt, asked.request_id).state == "held"
    assert scalar(pg, "SELECT count(*) FROM push_subscription WHERE user_id = %(u)s", u=ANN) == 2


def test_a_caller_that_rolls_back_has_erased_nothing(rt: Runtime, pg: Pg, database_url: str, ann: Traces) -> None:
    with psycopg.connect(database_url) as conn:
        erasures.erase(rt, user=ANN, actor=ACTOR, conn=conn)
        conn.rollback()
    assert service.touch(rt, ann.live).advice is Advice.KEEP
    assert scalar(pg, "SELECT count(*) FROM erasure_request") == 0


@pytest.mark.usefixtures("ann")
def test_what_is_late_is_a_ticket_once_and_a_page_once(rt: Runtime, pg: Pg, recorded: list[Any]) -> None:
    erasures.erase(rt, user=ANN, actor=ACTOR)
    told = []
    for hours in (23, 25, 25, 73, 73):
        pg.execute("UPDATE erasure_request SET asked_at = now() - make_interval(hours => %s)", [hours])
        told.append([each.told for each in deadlines.tell(rt)])
    assert told == [[], ["ticket"], [], ["page"], []]
    levels = [str(level) for level, name, _ in recorded if name == "erasure.late"]
    assert levels == ["warning", "page"]
    assert erasures.standing(rt).very_late == 1
