"""Letters in groups, in pages and discarded; and that none of it reads more than it has to."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from pushops.deadletters import discarding, looking
from pushops.deadletters.filters import Filter, parse
from pushops.deadletters.letter import ErrorClass
from pushops.deadletters.store import closing, reading
from pushops.deadletters.store import triage as store
from pushops.deadletters.triage import PLANNER, Triage, triage
from pushops.delivery.store import holds
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from tests.conftest import Recorded
from tests.ledger import lane, message, queue
from tests.letters import CLAIMED, CLOSED, letter, park_letter, park_letters
from tests.made import make_settings
from tests.sending import make_live

Pg = psycopg.Connection[Any]
POISON: Final = {"error_class": "'poison'", "error_code": "'payload_too_large'", "terminal_status": "413"}
EVERYTHING: Final = parse({"since": "2000-01-01"})


def keys(found: Triage) -> list[tuple[str, str, str, str | None, int]]:
    return [(g.error_class, g.error_code, g.endpoint_host, g.campaign_id, g.letters) for g in found.groups]


def discard(rt: Runtime, meant: Filter = EVERYTHING, **changes: Any) -> discarding.Discarded:
    return discarding.discard(rt, meant, **{"reason": "stale codes", "actor": "ann", "dry_run": False} | changes)


def test_letters_are_grouped_by_class_code_host_and_campaign(runtime: Runtime, pg: Pg) -> None:
    park_letters(pg, 3)
    park_letters(pg, 2, **POISON)
    park_letter(pg, endpoint_host="'web.push.apple.com'")
    park_letters(pg, 4, campaign_id="NULL")
    found = triage(runtime)
    assert keys(found) == [
        ("retry_exhausted", "unavailable", "fcm.googleapis.com", None, 4),
        ("retry_exhausted", "unavailable", "fcm.googleapis.com", "spring", 3),
        ("poison", "payload_too_large", "fcm.googleapis.com", "spring", 2),
        ("retry_exhausted", "unavailable", "web.push.apple.com", "spring", 1),
    ]
    assert (found.letters, found.all_groups) == (10, 4)


def test_what_is_closed_does_not_wait_and_what_is_claimed_does(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg, **CLOSED)
    assert triage(runtime).groups == ()
    park_letter(pg, **CLAIMED)
    assert triage(runtime).letters == 1


def test_groups_that_are_not_shown_are_counted(runtime: Runtime, pg: Pg) -> None:
    park_letters(pg, 5, campaign_id="'c' || n")
    found = triage(runtime, limit=2)
    assert (len(found.groups), found.all_groups, found.letters) == (2, 5, 5)


def test_a_group_says_its_share_of_all_that_its_campaign_was_sent_to(runtime: Runtime, pg: Pg) -> None:
    message(pg, campaign_id="'spring'", recipients="30")
    message(pg, campaign_id="'spring'", recipients="10")
    park_letters(pg, 4)
    park_letter(pg, campaign_id="'unheard-of'")
    assert [group.campaign_share for group in triage(runtime).groups] == [0.1, None]


def test_age_is_told_against_the_time_to_live(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg, parked_at="now() - interval '100 minutes'", original_ttl="12000")
    park_letter(pg, parked_at="now() - interval '50 minutes'", original_ttl="3000")
    (group,) = triage(runtime).groups
    assert group.oldest == pytest.approx(timedelta(minutes=100), abs=timedelta(seconds=5))
    assert group.ttl_used == pytest.approx(0.75, abs=0.01)


def test_replayable_is_what_may_be_sent_again_and_has_a_minute_left(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg, expires_at="now() + interval '70 seconds'")
    park_letter(pg, expires_at="now() + interval '50 seconds'")
    park_letter(pg, expires_at="now() - interval '1 hour'")
    park_letter(pg, replayable="false")
    (group,) = triage(runtime).groups
    assert (group.replayable, group.replayable_share) == (1, 0.25)


def test_what_began_since_a_date_is_new(runtime: Runtime, pg: Pg) -> None:
    park_letters(pg, 2, parked_at="now() - n * interval '2 days'", campaign_id="'old'")
    park_letter(pg, campaign_id="'young'")
    found = triage(runtime)
    assert {group.campaign_id: group.new for group in found.groups} == {"old": False, "young": True}
    long_ago = triage(runtime, new_since=found.at - timedelta(days=5))
    assert all(group.new for group in long_ago.groups)


def test_what_everybody_has_stands_beneath_the_letters(runtime: Runtime, pg: Pg) -> None:
    ours = lane(pg)
    queue(pg, message(pg), make_live(pg, 3), ours)
    with runtime.db.transaction() as tx:
        holds.open_hold(tx, ours, "vapid_refused", None, 5, timedelta(seconds=30))
    pg.execute(
        "INSERT INTO push_provider (push_service, unhealthy_at, unhealthy_why, unhealthy_code)"
        " VALUES ('mozilla', now(), 'faults', 'unavailable')"
    )
    pg.execute("INSERT INTO push_guard (push_service, window_from, why) VALUES ('apple', now(), 'share')")
    found = triage(runtime)
    assert found.groups == ()
    told = {(one.kind, one.push_service, one.why, one.waiting) for one in found.faults}
    assert told == {
        ("hold", "fcm", "vapid_refused", 3),
        ("unhealthy", "mozilla", "unavailable", 0),
        ("guard", "apple", "share", 0),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"class": "poison"}, 2),
        ({"code": "unavailable"}, 3),
        ({"host": "web.push.apple.com"}, 1),
        ({"campaign": "autumn"}, 1),
        ({"text": "TOO BIG"}, 2),
        ({"since": datetime.now(UTC) - timedelta(hours=1)}, 4),
        ({"until": datetime.now(UTC) - timedelta(hours=1)}, 1),
        ({"class": "poison", "campaign": "autumn"}, 0),
    ],
)
def test_one_language_names_the_same_letters_for_every_verb(
    runtime: Runtime, pg: Pg, words: dict[str, Any], expected: int
) -> None:
    park_letters(pg, 2, **POISON, error_snippet="'payload too big by 40 %'")
    park_letter(pg, endpoint_host="'web.push.apple.com'")
    park_letter(pg, campaign_id="'autumn'")
    park_letter(pg, parked_at="now() - interval '2 hours'")
    meant = parse(words)
    assert triage(runtime, meant).letters == expected
    assert len(looking.list_letters(runtime, meant).rows) == expected
    assert len(list(looking.all_letters(runtime, meant))) == expected
    assert discard(runtime, meant).discarded == expected


def test_pages_follow_each_other_and_leave_nothing_out(runtime: Runtime, pg: Pg) -> None:
    ids = park_letters(pg, 7)
    first = looking.list_letters(runtime, limit=3)
    second = looking.list_letters(runtime, after=first.next, limit=3)
    last = looking.list_letters(runtime, after=second.next, limit=3)
    assert [row.dlq_id for page in (first, second, last) for row in page.rows] == ids
    assert last.next is None
    assert [row.dlq_id for row in looking.all_letters(runtime)] == ids


def test_a_list_is_of_what_is_parked_unless_another_state_is_named(runtime: Runtime, pg: Pg) -> None:
    parked, claimed, closed = park_letter(pg), park_letter(pg, **CLAIMED), park_letter(pg, **CLOSED)
    for state, expected in (("parked", {parked}), ("claimed", {claimed}), ("discarded", {closed}), ("replayed", set())):
        assert {row.dlq_id for row in looking.list_letters(runtime, state=state).rows} == expected
    assert {row.dlq_id for row in looking.list_letters(runtime, state="all").rows} == {parked, claimed, closed}
    with pytest.raises(RefusedError, match="expected a state of parked"):
        looking.list_letters(runtime, state="lost")


def test_a_letter_is_shown_with_every_attempt_and_without_what_is_secret(runtime: Runtime, pg: Pg) -> None:
    dlq_id = park_letter(pg, **CLAIMED, payload_ref="'payloads/secret'")
    row = letter(pg, dlq_id)
    pg.execute(
        "INSERT INTO push_dlq_attempt (replay_key, attempt, kind, at, settled_at, outcome, status, code, snippet)"
        " VALUES (%(key)s, 1, 'live', now(), now(), 'unavailable', 503, 'unavailable', 'try later'),"
        " (%(key)s, 2, 'replay', now(), NULL, NULL, NULL, NULL, NULL)",
        {"key": row["replay_key"]},
    )
    found = looking.show_letter(runtime, dlq_id)
    assert [(one.attempt, one.kind, one.status, one.outcome) for one in found.attempts] == [
        (1, "live", 503, "unavailable"),
        (2, "replay", None, None),
    ]
    shown = repr(found)
    assert found.letter.has_payload
    for secret in ("payloads/secret", str(row["claim_token"]), row["endpoint_hash"].hex()):
        assert secret not in shown
    with pytest.raises(NotFoundError, match="expected the id of a dead letter"):
        looking.show_letter(runtime, UUID(int=1))


def test_letters_are_named_by_the_beginning_of_their_id(runtime: Runtime, pg: Pg) -> None:
    one = park_letter(pg, dlq_id="'aaaa0000-0000-7000-8000-000000000001'::uuid")
    park_letter(pg, dlq_id="'aaab0000-0000-7000-8000-000000000001'::uuid")
    assert looking.letters_like(runtime, "aaaa") == [one]
    assert len(looking.letters_like(runtime, "aaa")) == 2
    assert looking.letters_like(runtime, "bbbb") == []


def test_discarding_only_counts_unless_it_is_meant(runtime: Runtime, pg: Pg) -> None:
    dlq_id = park_letter(pg)
    found = discard(runtime, dry_run=True)
    assert (found.matched, found.discarded, found.dry_run) == (1, 0, True)
    assert letter(pg, dlq_id)["replay_state"] == "parked"
    assert pg.execute("SELECT count(*) FROM audit").fetchone() == (0,)


def test_discarding_keeps_who_and_why_and_leaves_the_rest_of_the_letter(
    runtime: Runtime, pg: Pg, recorded: list[Recorded]
) -> None:
    dlq_id = park_letter(pg)
    before = letter(pg, dlq_id)
    found = discard(runtime, parse({"campaign": "spring"}))
    row = letter(pg, dlq_id)
    closed = {"replay_state": "discarded", "close_reason": "discarded", "closed_by": "ann", "close_note": "stale codes"}
    assert {name: row[name] for name in closed} == closed
    assert {n: v for n, v in row.items() if n not in {*closed, "closed_at"}} == {
        n: v for n, v in before.items() if n not in {*closed, "closed_at"}
    }
    assert found.discarded == 1
    ((actor, detail),) = pg.execute("SELECT actor, detail FROM audit WHERE verb = 'dead_letters_discard'").fetchall()
    assert (actor, detail["filter"], detail["matched"], detail["why"]) == (
        "ann",
        {"campaign": "spring"},
        1,
        "stale codes",
    )
    assert [fields["rows"] for _, name, fields in recorded if name == "dlq.discarded"] == [1]


def test_what_a_replay_holds_and_what_is_closed_is_left_alone_and_said(runtime: Runtime, pg: Pg) -> None:
    claimed, closed = park_letter(pg, **CLAIMED), park_letter(pg, **CLOSED)
    park_letters(pg, 2)
    before = [letter(pg, claimed), letter(pg, closed)]
    found = discard(runtime)
    assert (found.matched, found.discarded, found.claimed, found.locked) == (2, 2, 1, 0)
    assert [letter(pg, claimed), letter(pg, closed)] == before


def test_what_somebody_has_locked_is_passed_over_and_said(runtime: Runtime, pg: Pg, database_url: str) -> None:
    ids = park_letters(pg, 3)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM pushops.push_dlq WHERE dlq_id = %s FOR UPDATE", [ids[1]])
        found = discard(runtime)
    assert (found.discarded, found.locked) == (2, 1)
    assert letter(pg, ids[1])["replay_state"] == "parked"


def test_pages_of_a_discard_go_on_until_nothing_is_left(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discarding, "PAGE", 2)
    park_letters(pg, 7)
    told: list[tuple[int, int]] = []
    assert discard(runtime, told=lambda done, of: told.append((done, of))).discarded == 7
    assert told[-1] == (7, 7)
    assert [done for done, _ in told[:4]] == [2, 4, 6, 7]


def test_what_is_parked_after_the_count_is_not_discarded(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg)
    late: list[UUID] = []

    def arrives(_done: int, _of: int) -> None:
        if not late:
            late.append(park_letter(pg))

    assert discard(runtime, told=arrives).discarded == 1
    assert letter(pg, late[0])["replay_state"] == "parked"


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\nb"])
def test_a_discard_without_a_reason_is_refused(runtime: Runtime, reason: str) -> None:
    with pytest.raises(RefusedError, match="expected a reason of 1 to 500"):
        discard(runtime, reason=reason)


def test_everything_is_not_discarded_by_saying_nothing(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg)
    with pytest.raises(RefusedError, match="expected a condition"):
        discard(runtime, Filter())


def test_the_filter_is_kept_in_the_audit_as_a_command_would_take_it(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg, **POISON)
    discard(runtime, Filter(error_class=ErrorClass.POISON))
    ((detail,),) = pg.execute("SELECT detail FROM audit").fetchall()
    assert json.loads(json.dumps(detail))["filter"] == {"error_class": "poison"}


# Plans, with statistics as a database that was analysed has them: custom ones, as the verbs ask for.
@pytest.fixture(scope="module")
def filled(postgres_server: Any, template: str, admin: psycopg.Connection[Any]) -> Iterator[Pg]:
    """Most of them parked, as after a bad night."""
    admin.execute(f"CREATE DATABASE letter_plans TEMPLATE {template}")
    with psycopg.connect(postgres_server.url("letter_plans"), autocommit=True) as conn:
        kinds = {"error_code": "'code' || n % 7", "campaign_id": "'c' || n % 50", "error_class": "'poison'"}
        park_letters(conn, 30_000, **kinds)
        park_letters(conn, 6_000, **kinds | CLOSED)
        conn.execute("VACUUM ANALYZE pushops.push_dlq")
        yield conn
    admin.execute("DROP DATABASE letter_plans WITH (FORCE)")


def plan_of(conn: Pg, query: str, params: dict[str, Any]) -> str:
    text = query.replace("{schema}", "pushops")
    with conn.transaction():
        for option, value in PLANNER.items():
            conn.execute(f"SET LOCAL {option} = {value}".encode())
        lines = conn.execute(f"EXPLAIN {text}".encode(), params, prepare=False).fetchall()
    return "\n".join(line for (line,) in lines)


NO_FILTER: Final = Filter().params()
GROUPING: Final = NO_FILTER | {"limit": 50, "now": 0.0, "fresh_at": datetime.now(UTC)}
PAGING: Final = NO_FILTER | {"after": UUID(int=5), "limit": 50}


@pytest.mark.parametrize(
    "words", [{}, {"code": "code3"}, {"campaign": "c7"}, {"class": "poison", "since": "2026-01-01"}]
)
def test_triage_reads_nothing_but_its_index(filled: Pg, words: dict[str, Any]) -> None:
    plan = plan_of(filled, store.GROUPS, GROUPING | parse(words).params())
    assert "Index Only Scan using push_dlq_triage" in plan, plan
    assert "Seq Scan" not in plan


@pytest.mark.parametrize(
    ("query", "params", "index"),
    [
        (reading.PARKED, PAGING, "push_dlq_parked"),
        (reading.PARKED, PAGING | parse({"campaign": "c7"}).params(), "push_dlq_campaign"),
        (reading.IN_STATE, PAGING | {"state": None}, "push_dlq_pkey"),
        (closing.DISCARD, PAGING | {"actor": "ann", "note": "why"}, "push_dlq_parked"),
        (reading.BY_ID, {"dlq_id": UUID(int=5)}, "push_dlq_pkey"),
        (reading.LIKE, {"lowest": UUID(int=5), "highest": UUID(int=6)}, "push_dlq_pkey"),
        (reading.ATTEMPTS, {"replay_key": UUID(int=5)}, "push_dlq_attempt_pkey"),
    ],
)
def test_pages_and_single_letters_are_found_by_an_index(
    filled: Pg, query: str, params: dict[str, Any], index: str
) -> None:
    plan = plan_of(filled, query, params)
    assert index in plan, plan
    assert not re.search(r"Seq Scan on push_dlq\b", plan), plan


def test_a_page_of_many_letters_reads_no_more_than_a_page(filled: Pg) -> None:
    text = reading.PARKED.replace("{schema}", "pushops")
    with filled.transaction():
        lines = filled.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".encode(), PAGING, prepare=False).fetchone()
    assert lines is not None
    scan = lines[0][0]["Plan"]["Plans"][0]
    assert (scan["Index Name"], scan["Actual Rows"]) == ("push_dlq_parked", 50)


def test_the_verbs_of_an_opened_runtime_speak_the_same_language(pg: Pg, database_url: str) -> None:
    from pushops.ops import open_ops

    park_letters(pg, 2)
    (dlq_id,) = park_letters(pg, 1, **POISON)
    with open_ops(make_settings(database_url)) as ops:
        assert ops.triage(error_class="poison").letters == 1
        assert [row.dlq_id for row in ops.list_dead_letters(error_class="poison").rows] == [dlq_id]
        assert ops.show_dead_letter(dlq_id).letter.error_code == "payload_too_large"
        assert ops.discard_dead_letters(error_class="poison", reason="too big", actor="ann").dry_run
        done = ops.discard_dead_letters(error_class="poison", reason="too big", actor="ann", dry_run=False)
        assert done.discarded == 1
        assert isinstance(ops.dead_letter_alarms(), list)
