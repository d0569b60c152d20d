"""When dead letters wake somebody, when they only warn, and that each is told once."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest

from pushops.deadletters import alarms
from pushops.deadletters.alarms import Alarm, Facts, Signal, judge
from pushops.deadletters.store import alarms as store
from pushops.deadletters.store.alarms import Numbers, Part
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_PAGES
from tests.conftest import Recorded
from tests.db.test_every_statement import numbered
from tests.ledger import message
from tests.letters import CLAIMED, CLOSED, park_letter, park_letters

Pg = psycopg.Connection[Any]
CALM: Final = {
    "inflow": 0,
    "sends": 100_000,
    "inflow_hour": 0,
    "sends_hour": 400_000,
    "oldest": None,
    "median_ttl": None,
    "fresh": 0,
    "stale": 0,
    "leases_over": 0,
    "leases_lost": 0,
    "long_unhealthy": [],
}
NOTHING: Final[dict[str, str | None]] = dict.fromkeys(
    ["error_class", "error_code", "push_service", "endpoint_host", "campaign_id"]
)


def facts(*mix: Part, recipients: dict[str, int] | None = None, known: tuple[str, ...] = ("x", "y"), **n: Any) -> Facts:
    return Facts(Numbers(**CALM | n), mix, recipients, frozenset(known))


def part(letters: int, unanswered: int = 0, **names: str) -> Part:
    return Part(**NOTHING | names, letters=letters, unanswered=unanswered)


def levels(found: list[Alarm]) -> dict[str, str]:
    return {str(one.signal): str(one.level) for one in found}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"inflow": 19, "sends": 100}, {}),
        ({"inflow": 500, "sends": 100_000}, {}),
        ({"inflow": 501, "sends": 100_000}, {"inflow": "warning"}),
        ({"inflow": 99, "sends": 1_000}, {"inflow": "warning"}),
        ({"inflow": 2_001, "sends": 100_000}, {"inflow": "page"}),
        ({"inflow": 100, "sends": 0}, {"inflow": "page"}),
        ({"oldest": timedelta(minutes=30), "median_ttl": 3600.0}, {}),
        ({"oldest": timedelta(minutes=31), "median_ttl": 3600.0}, {"oldest_parked": "warning"}),
        ({"oldest": timedelta(minutes=49), "median_ttl": 3600.0}, {"oldest_parked": "page"}),
        ({"fresh": 1, "stale": 18}, {}),
        ({"fresh": 25, "stale": 75}, {}),
        ({"fresh": 24, "stale": 76}, {"replayable_share": "warning"}),
        ({"fresh": 0, "stale": 100}, {"replayable_share": "warning"}),
        ({"fresh": 4, "stale": 97}, {"replayable_share": "page"}),
        ({"leases_over": 49}, {}),
        ({"leases_over": 1, "leases_lost": 1}, {"leases_over": "warning"}),
        ({"leases_over": 50}, {"leases_over": "page"}),
    ],
)
def test_rate_age_and_leases_have_their_thresholds(numbers: dict[str, Any], expected: dict[str, str]) -> None:
    assert levels(judge(facts(**numbers))) == expected


@pytest.mark.parametrize(
    ("poison", "one_code", "total", "expected"),
    [
        (19, 19, 19, {}),
        (20, 16, 39, {"poison_of_one_code": "warning"}),
        (20, 15, 39, {}),
        (20, 20, 40, {}),
        (500, 400, 900, {"poison_of_one_code": "page"}),
    ],
)
def test_poison_of_one_code_is_a_payload_or_a_request_that_is_built_wrongly(
    poison: int, one_code: int, total: int, expected: dict[str, str]
) -> None:
    found = judge(
        facts(
            part(total),
            part(poison, error_class="poison"),
            part(one_code, error_class="poison", error_code="x"),
            part(poison - one_code, error_class="poison", error_code="y"),
        )
    )
    assert levels(found) == expected
    assert all(one.subject == "x" for one in found)


@pytest.mark.parametrize(
    ("letters", "recipients", "elsewhere", "sends", "expected"),
    [
        (900, 1_000, 0, 400_000, {"campaign_cluster": "warning"}),
        (899, 1_000, 0, 400_000, {}),
        (900, 1_000, 5_000, 400_000, {}),
        (900, 1_000, 0, 9_000, {"campaign_cluster": "page"}),
        (19, 19, 0, 400_000, {}),
        (900, None, 0, 400_000, {}),
    ],
)
def test_a_campaign_that_nobody_takes_stands_out(
    letters: int, recipients: int | None, elsewhere: int, sends: int, expected: dict[str, str]
) -> None:
    found = judge(
        facts(
            part(letters + elsewhere),
            part(letters + elsewhere, error_code="x"),
            part(letters, error_code="x", campaign_id="spring"),
            recipients={"spring": recipients} if recipients else None,
            sends_hour=sends,
        )
    )
    assert levels(found) == expected
    assert all(one.subject == "spring" for one in found)


def test_a_campaign_of_more_letters_than_are_looked_at_is_seen() -> None:
    mix = (
        part(100_000),
        part(100_000, error_code="x"),
        part(100_000, error_code="x", campaign_id="spring"),
    )
    found = facts(*mix, recipients={"spring": 2_000_000}, sends_hour=2_500_000, inflow_hour=2_000_000)
    assert levels(judge(found)) == {"campaign_cluster": "page"}


@pytest.mark.parametrize(
    ("of_host", "exhausted", "unhealthy", "expected"),
    [
        (80, 100, [], {"provider_cluster": "warning"}),
        (79, 100, [], {}),
        (80, 100, ["fcm"], {"provider_cluster": "page"}),
        (80, 100, ["apple"], {"provider_cluster": "warning"}),
        (19, 19, ["fcm"], {}),
    ],
)
def test_one_host_with_most_of_what_was_tried_often_is_an_incident_there(
    of_host: int, exhausted: int, unhealthy: list[str], expected: dict[str, str]
) -> None:
    host = {"error_class": "retry_exhausted", "push_service": "fcm", "endpoint_host": "fcm.googleapis.com"}
    mix = (part(exhausted), part(exhausted, error_class="retry_exhausted"), part(of_host, **host))
    assert levels(judge(facts(*mix, long_unhealthy=unhealthy))) == expected


@pytest.mark.parametrize(
    ("unanswered", "expected"), [(20, {}), (21, {"no_answers": "warning"}), (51, {"no_answers": "page"})]
)
def test_letters_without_an_answer_are_about_our_own_way_out(unanswered: int, expected: dict[str, str]) -> None:
    assert levels(judge(facts(part(100, unanswered)))) == expected


def test_a_code_that_was_never_parked_before_is_told_of() -> None:
    found = judge(facts(part(1), part(1, error_code="never"), known=("x",)))
    assert [(one.signal, one.level, one.subject) for one in found] == [(Signal.NEW_CODE, Level.WARNING, "never")]


def test_the_grave_comes_first() -> None:
    found = judge(facts(part(1), part(1, error_code="never"), leases_over=50))
    assert [one.level for one in found] == [Level.PAGE, Level.WARNING]


def told(recorded: list[Recorded], name: str = "dlq.alarm") -> list[tuple[str, str, str]]:
    return [(str(level), str(f["signal"]), f["subject"]) for level, event, f in recorded if event == name]


def test_an_empty_table_alarms_nobody(runtime: Runtime, recorded: list[Recorded]) -> None:
    assert alarms.current(runtime) == []
    assert alarms.tell(runtime) == []
    assert recorded == []


def test_the_facts_are_those_of_the_table(runtime: Runtime, pg: Pg) -> None:
    park_letters(pg, 3, original_ttl="1000 * n")
    park_letter(pg, parked_at="now() - interval '30 minutes'", expires_at="now()", terminal_status="NULL::integer")
    park_letter(pg, parked_at="now() - interval '2 hours'", **CLOSED)
    park_letter(pg, **CLAIMED | {"claimed_until": "now() - interval '1 minute'"})
    park_letter(pg, **CLAIMED | {"claimed_until": "now() - interval '6 minutes'"})
    park_letter(pg, **CLAIMED)
    pg.execute("INSERT INTO push_answer (push_service, minute, attempts) VALUES ('fcm', now() - interval '20 min', 7)")
    pg.execute("INSERT INTO push_answer (push_service, minute, attempts) VALUES ('fcm', now() - interval '5 min', 5)")
    pg.execute("INSERT INTO push_provider (push_service, unhealthy_at) VALUES ('fcm', now() - interval '31 minutes')")
    pg.execute("INSERT INTO push_provider (push_service, unhealthy_at) VALUES ('apple', now())")
    with runtime.db.transaction(planner=PLAN_PAGES) as tx:
        found, mix = store.numbers(tx), store.mix(tx)
    assert (found.inflow, found.inflow_hour, found.sends, found.sends_hour) == (6, 7, 5, 12)
    assert (found.fresh, found.stale, found.leases_over, found.leases_lost) == (3, 1, 2, 1)
    assert found.oldest == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=5))
    assert found.median_ttl == 2500
    assert found.long_unhealthy == ["fcm"]
    assert [(one.letters, one.unanswered) for one in mix if one.error_code is one.error_class is None] == [(7, 1)]


def test_an_alarm_is_told_once_for_each_episode(runtime: Runtime, pg: Pg, recorded: list[Recorded]) -> None:
    park_letter(pg, **CLAIMED | {"claimed_until": "now() - interval '6 minutes'"})
    for _ in range(3):
        alarms.tell(runtime)
    assert told(recorded) == [("warning", "leases_over", ""), ("warning", "new_code", "unavailable")]


def test_an_alarm_that_becomes_grave_is_told_again(runtime: Runtime, pg: Pg, recorded: list[Recorded]) -> None:
    late = CLAIMED | {"claimed_until": "now() - interval '6 minutes'"}
    park_letter(pg, **late)
    alarms.tell(runtime)
    park_letters(pg, 50, **late)
    for _ in range(2):
        alarms.tell(runtime)
    assert [level for level, signal, _ in told(recorded) if signal == "leases_over"] == ["warning", "page"]


def test_what_is_over_is_said_after_a_while_and_told_anew_when_it_comes_back(
    runtime: Runtime, pg: Pg, recorded: list[Recorded]
) -> None:
    dlq_id = park_letter(pg, **CLAIMED | {"claimed_until": "now() - interval '6 minutes'"})
    alarms.tell(runtime)
    pg.execute("UPDATE push_dlq SET claimed_until = now() WHERE dlq_id = %s", [dlq_id])
    alarms.tell(runtime)
    assert told(recorded, "dlq.calm") == []
    pg.execute("UPDATE push_dlq_alarm SET seen_at = seen_at - interval '16 minutes'")
    alarms.tell(runtime)
    assert told(recorded, "dlq.calm") == [("info", "leases_over", "")]
    pg.execute("UPDATE push_dlq SET claimed_until = now() - interval '6 minutes' WHERE dlq_id = %s", [dlq_id])
    alarms.tell(runtime)
    assert [signal for _, signal, _ in told(recorded)].count("leases_over") == 2


def test_a_code_is_new_once_for_ever_and_for_an_hour_to_who_looks(
    runtime: Runtime, pg: Pg, recorded: list[Recorded]
) -> None:
    park_letter(pg)
    alarms.tell(runtime)
    assert [one.subject for one in alarms.current(runtime)] == ["unavailable"]
    pg.execute("UPDATE push_dlq_alarm SET since = since - interval '61 minutes', seen_at = now() - interval '2 days'")
    assert alarms.current(runtime) == []
    pg.execute("DELETE FROM push_dlq")
    alarms.tell(runtime)
    park_letter(pg)
    alarms.tell(runtime)
    assert told(recorded) == [("warning", "new_code", "unavailable")]


def test_a_campaign_that_fails_whole_is_told_with_its_numbers(runtime: Runtime, pg: Pg) -> None:
    message(pg, campaign_id="'spring'", recipients="30")
    message(pg, campaign_id="'autumn'", recipients="3000")
    park_letters(pg, 30, error_class="'poison'", error_code="'payload_too_large'", terminal_status="413")
    pg.execute("INSERT INTO push_answer (push_service, minute, attempts) VALUES ('fcm', now(), 5000)")
    found = {str(one.signal): one for one in alarms.current(runtime)}
    assert found["campaign_cluster"].subject == "spring"
    assert found["campaign_cluster"].reading == "payload_too_large: 30 letters of 30 recipients"


@pytest.fixture(scope="module")
def filled(postgres_server: Any, template: str, admin: psycopg.Connection[Any]) -> Iterator[Pg]:
    admin.execute(f"CREATE DATABASE alarm_plans TEMPLATE {template}")
    with psycopg.connect(postgres_server.url("alarm_plans"), autocommit=True) as conn:
        park_letters(conn, 20_000, parked_at="now() - n * interval '1 minute'")
        conn.execute("VACUUM ANALYZE pushops.push_dlq")
        yield conn
    admin.execute("DROP DATABASE alarm_plans WITH (FORCE)")


@pytest.mark.parametrize("query", [store.FACTS, store.MIX])
def test_a_look_reads_no_table_of_letters_and_sorts_none(filled: Pg, query: str) -> None:
    text = numbered(query.replace("{schema}", "pushops"))
    with filled.transaction():
        for option, value in PLAN_PAGES.items():
            filled.execute(f"SET LOCAL {option} = {value}".encode())
        lines = filled.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode()).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert "Seq Scan on push_dlq " not in plan, plan
    assert "Seq Scan on push_answer" not in plan, plan
    assert "Bitmap" not in plan, plan
    if query is store.FACTS:
        assert plan.count("Index Only Scan using push_dlq_inflow") == 2, plan
        assert len([line for line in plan.splitlines() if "push_dlq_close" in line and "Index Only" in line]) == 2, plan
