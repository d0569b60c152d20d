"""Which recipients leave a dead letter when they end, and what it says from then on."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from pushops.deadletters import spool, tending, writer
from pushops.deadletters.letter import RESOLVED, Letter
from pushops.delivery import pump, settling
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import load_table, table_of
from pushops.delivery.preparing import Outgoing
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests import ledger as made
from tests.answers import CASES, text
from tests.ledger import Conn
from tests.letters import CLAIMED, CLOSED
from tests.parking import Row, answer, attempts_of, due, letter_of, letters, outcome, recipient, unparked

LAST: Final = {"attempts": "9", "first_attempt_at": "now() - interval '2 hours'"}  # the next attempt is the tenth
REPEATED: Final = {"attempts": "4", "repeats": "2", "first_attempt_at": "now() - interval '2 hours'"}


@pytest.fixture
def settings(settings: Settings, tmp_path: Any) -> Settings:
    return settings.model_copy(update={"spool": tmp_path / "spool"})


def said(recorded: Any, name: str) -> list[dict[str, Any]]:
    return [dict(fields) for _, each, fields in recorded if each == name]


def where(case: str) -> tuple[str, str]:
    """The push service of a case, and a host that no other has."""
    one = CASES[case]
    return one.service, f"{one.service}.example" if one.host == "push.example.net" else one.host


def test_what_a_push_service_will_never_take_is_a_letter_that_says_all_of_it(
    runtime: Runtime, pg: Conn, recorded: Any
) -> None:
    message = {"campaign_id": "'spring'", "payload_ref": "'x'", "ttl": "3600", "on_in_doubt": "'resend'"}
    one = recipient(pg, message=message, expires_at="now() + interval '1 hour'")
    answer(runtime, [one], [text(400, "no such thing")])
    (row,) = made.rows_of(pg, one.message_id)
    (letter,) = letters(pg)
    assert row["outcome"] == "poison"
    for name in ("message_id", "subscription_id", "endpoint_hash", "owner_no", "expires_at", "first_attempt_at"):
        assert letter[name] == row[name], name
    expected = {
        "endpoint_host": made.HOST,
        "push_service": "fcm",
        "owner": row["user_id"],
        "campaign_id": "spring",
        "payload_ref": "x",
        "attempt_count": 1,
        "last_attempt_at": row["last_attempt_at"],
        "terminal_status": 400,
        "error_class": "poison",
        "error_code": "http_400",
        "error_snippet": "no such thing",
        "original_ttl": 3600,
        "replayable": True,
        "on_in_doubt": "resend",
        "in_doubt": False,
        "replay_state": "parked",
        "replay_count": 0,
    }
    assert {name: letter[name] for name in expected} == expected
    assert unparked(pg) == 0
    assert said(recorded, "dlq.parked") == [{"rows": 1, "codes": {"poison/http_400": 1}}]


@pytest.mark.parametrize(
    ("case", "columns", "outcome_", "error_class"),
    [
        ("16", LAST, "exhausted", "retry_exhausted"),
        ("17", LAST, "exhausted", "retry_exhausted"),
        ("74", LAST, "exhausted", "retry_exhausted"),
        ("75", LAST, "exhausted", "retry_exhausted"),
        ("39", LAST, "exhausted", "retry_exhausted"),  # denied, and no hold: nobody else is
        ("78", {}, "poison", "poison"),  # the renderer raised
        ("83", {}, "poison", "poison"),  # no payload
        ("14", {}, "poison", "poison"),
        ("5", {}, "poison", "poison"),
    ],
)
def test_an_end_that_resolves_nothing_leaves_a_letter(
    runtime: Runtime, pg: Conn, case: str, columns: dict[str, str], outcome_: str, error_class: str
) -> None:
    one = recipient(pg, *where(case), **columns)
    answer(runtime, [one], [CASES[case].answer])
    letter = letter_of(pg, one)
    assert letter is not None
    assert (outcome(pg, one), letter["error_class"], letter["error_code"]) == (outcome_, error_class, CASES[case].code)
    assert letter["terminal_status"] == CASES[case].answer.status


@pytest.mark.parametrize(
    ("case", "columns", "message", "outcome_"),
    [
        ("1", {}, {}, "accepted"),
        ("51", {}, {}, "dropped"),
        ("8", {}, {}, "gone"),
        ("6", {}, {}, "not_found"),
        ("10", {}, {}, "not_found"),
        ("7", LAST, {}, "not_found"),
        ("15", LAST | {"expires_at": "now() + interval '1 minute'"}, {}, "throttled"),
        ("59", LAST | {"expires_at": "now() + interval '5 seconds'"}, {}, "throttled"),
        ("77", {}, {}, "bad_keys"),
        ("64", {}, {}, "gone"),
        ("75", LAST, {"on_ambiguous": "'drop'"}, "ambiguous"),
        ("9", LAST, {}, "exhausted"),  # another key's: its subscription is at fault, not the message
        ("16", {"attempts": "2"}, {}, None),
    ],
)
def test_an_end_that_says_enough_leaves_none(
    runtime: Runtime, pg: Conn, case: str, columns: dict[str, str], message: dict[str, str], outcome_: str | None
) -> None:
    one = recipient(pg, *where(case), message=message, **columns)
    answer(runtime, [one], [CASES[case].answer])
    assert outcome(pg, one) == outcome_
    assert (letters(pg), unparked(pg)) == ([], 0)


@pytest.mark.parametrize("status", sorted(RESOLVED))
def test_not_even_an_operators_table_makes_a_letter_of_what_is_resolved(
    runtime: Runtime, pg: Conn, tmp_path: Any, status: int
) -> None:
    rows = tmp_path / "answers.toml"
    rows.write_text(
        f'[[row]]\nid = "mine"\nservice = "fcm"\nstatus = {status}\nhost = "fcm.example"\noutcome = "refused"\n'
        f'code = "mine"\ndead = "poison"\nmeaning = "Never."\n'
    )
    table = table_of(runtime.settings.model_copy(update={"classification": rows}))
    one = recipient(pg, "fcm", "fcm.example")
    answer(runtime, [one], [text(status)], table)
    assert (outcome(pg, one), letters(pg), unparked(pg)) == ("poison", [], 0)


def test_who_lost_the_row_meanwhile_parks_nothing(runtime: Runtime, pg: Conn) -> None:
    """Its lease ran out, and another sender has it: what came back late is that one's to say."""
    one = recipient(pg)
    token = uuid4()
    (claimed,) = made.claim(runtime, [one.lane], token=token)
    lose_lease(pg)
    pump.reap(runtime)
    late = settling.judge(load_table(), Outgoing(claimed, b"", claimed.first_attempt_at, 0.0), text(400))
    settled = settling.settle(runtime, "fcm", token, [late])
    assert (settled.lost, settled.letters) == (1, ())
    assert (outcome(pg, one), letters(pg), unparked(pg)) == (None, [], 0)


def test_what_expired_or_was_cancelled_before_its_attempt_leaves_no_letter(runtime: Runtime, pg: Conn) -> None:
    late = recipient(pg, expires_at="now()")
    held = recipient(pg, expires_at="now()", wait="'held'")
    cancelled = recipient(pg)
    pg.execute("UPDATE pushops.push_message SET cancelled_at = now() WHERE message_id = %s", [cancelled.message_id])
    assert made.claim(runtime, [late.lane]) == []
    assert [outcome(pg, each) for each in (late, held, cancelled)] == ["expired", "held", "cancelled"]
    assert (letters(pg), unparked(pg)) == ([], 0)


def test_an_outage_leaves_no_letters(runtime: Runtime, pg: Conn) -> None:
    """Everybody's trouble: the rows wait, and what they had spent is given back."""
    rows = [recipient(pg, **LAST) for _ in range(40)]
    due(pg)
    pg.execute("UPDATE pushops.push_dispatch SET attempts = 8")
    for _ in range(3):
        answer(runtime, rows, [text(503)] * 40)
        due(pg)
    assert {outcome(pg, row) for row in rows} == {None}
    assert (letters(pg), unparked(pg)) == ([], 0)


@how(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CASES)),
            st.sampled_from([{}, LAST, REPEATED, LAST | {"expires_at": "now() + interval '20 seconds'"}]),
            st.sampled_from(["'retry'", "'drop'"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_mixed_only_the_unresolved_are_letters(
    runtime: Runtime, pg: Conn, mix: list[tuple[str, dict[str, str], str]]
) -> None:
    """Guards, holds and outages come and go meanwhile, as the answers have it."""
    pg.execute("DELETE FROM pushops.push_dispatch")
    found: dict[str, list[tuple[Row, str]]] = {}
    for case, columns, on_ambiguous in mix:
        row = recipient(pg, *where(case), message={"on_ambiguous": on_ambiguous}, **columns)
        found.setdefault(row.service, []).append((row, case))
    for rows in found.values():
        answer(runtime, [row for row, _ in rows], [CASES[case].answer for _, case in rows])
    for row, case in [pair for rows in found.values() for pair in rows]:
        letter, end = letter_of(pg, row), outcome(pg, row)
        expected = end in ("poison", "exhausted") and CASES[case].verdict[3] != "no"
        assert (letter is not None) == expected, (case, end)
        assert letter is None or letter["error_class"] == {"poison": "poison"}.get(str(end), "retry_exhausted")
    assert not {letter["terminal_status"] for letter in letters(pg)} & RESOLVED
    assert unparked(pg) == 0


# What it says ----------------------------------------------------------------------------------------------------


def test_a_letter_has_the_live_attempts_that_failed(runtime: Runtime, pg: Conn) -> None:
    """A snippet stands where it is another than the one before; a lease that ran out is an attempt as well."""
    one = recipient(pg)
    for said_ in ("busy", "busy"):
        answer(runtime, [one], [text(503, said_)])
        due(pg)
    made.claim(runtime, [one.lane])
    lose_lease(pg)
    pump.reap(runtime)
    due(pg)
    answer(runtime, [one], [text(400, "never")])
    found = [tuple(a[name] for name in ("attempt", "kind", "status", "code", "outcome")) for a in attempts_of(pg, one)]
    assert found == [
        (1, "live", 503, "http_503", "unavailable"),
        (2, "live", 503, "http_503", "unavailable"),
        (3, "live", None, "lease_expired", "ambiguous"),
        (4, "live", 400, "http_400", "refused"),
    ]
    assert [a["snippet"] for a in attempts_of(pg, one)] == ["busy", None, None, "never"]
    assert all(a["settled_at"] for a in attempts_of(pg, one))
    letter = letter_of(pg, one)
    assert letter is not None
    assert (letter["attempt_count"], letter["last_attempt_at"]) == (4, attempts_of(pg, one)[-1]["at"])
    assert letter["first_attempt_at"] == attempts_of(pg, one)[0]["at"]


def test_of_many_attempts_the_last_twenty_are_kept_by_their_numbers(runtime: Runtime, pg: Conn) -> None:
    """Throttled ones cost no attempt, and are numbered like the others: a replay goes on after the last."""
    one = recipient(pg)
    for _ in range(23):
        answer(runtime, [one], [text(429)])
        pg.execute("DELETE FROM pushops.push_throttle")
        due(pg)
    answer(runtime, [one], [text(400)])
    assert [attempt["attempt"] for attempt in attempts_of(pg, one)] == list(range(5, 25))
    letter = letter_of(pg, one)
    assert letter is not None
    assert letter["attempt_count"] == 24


@pytest.mark.parametrize(
    ("last", "in_doubt"), [(Answer(None, Fault.AMBIGUOUS), True), (Answer(None, Fault.CONNECT), False)]
)
def test_a_letter_whose_last_attempt_may_have_been_taken_is_in_doubt(
    runtime: Runtime, pg: Conn, last: Answer, *, in_doubt: bool
) -> None:
    one = recipient(pg, attempts="8")
    answer(runtime, [one], [Answer(None, Fault.AMBIGUOUS)])
    due(pg)
    answer(runtime, [one], [last])
    letter = letter_of(pg, one)
    assert letter is not None
    assert (letter["in_doubt"], letter["attempt_count"]) == (in_doubt, 10)


def lose_lease(pg: Conn) -> None:
    pg.execute("UPDATE pushops.push_dispatch SET claimed_until = now() - interval '1 second' WHERE state = 'claimed'")


@pytest.mark.parametrize(("rendered", "in_doubt"), [("true", False), ("false", True)])
def test_what_took_three_workers_with_it_is_poison_without_a_status(
    runtime: Runtime, pg: Conn, rendered: str, *, in_doubt: bool
) -> None:
    """Whatever was answered before: its snippet is not what killed them (E14)."""
    one = recipient(pg, message={"rendered": rendered})
    answer(runtime, [one], [text(503, "busy")])
    for _ in range(3):
        assert letters(pg) == []
        due(pg)
        made.claim(runtime, [one.lane])
        lose_lease(pg)
        pump.reap(runtime)
    letter = letter_of(pg, one)
    assert letter is not None
    expected = ("poison", None, "", 4, in_doubt)
    names = ("error_class", "terminal_status", "error_snippet", "attempt_count", "in_doubt")
    assert tuple(letter[name] for name in names) == expected
    assert len(attempts_of(pg, one)) == 4
    assert unparked(pg) == 0


def test_the_same_answer_three_times_at_real_intervals_is_poison(runtime: Runtime, pg: Conn) -> None:
    """Once others at this host are served: 500 is then this message's own (E16: it is not tried for a week)."""
    one = recipient(pg)
    served = [recipient(pg) for _ in range(30)]
    answer(runtime, [one, *served], [text(500, "bug")] + [text(201)] * 30)
    for tries in (2, 3):
        assert letters(pg) == []
        due(pg)
        pg.execute("UPDATE pushops.push_dispatch SET first_attempt_at = first_attempt_at - interval '1 hour'")
        answer(runtime, [one], [text(500, "bug")])
        assert made.rows_of(pg, one.message_id)[0]["attempts"] == tries
    letter = letter_of(pg, one)
    assert letter is not None
    assert (letter["error_class"], letter["terminal_status"], letter["attempt_count"]) == ("poison", 500, 3)


@pytest.mark.parametrize("case", ["at once", "another snippet", "nobody served", "503"])
def test_the_same_answer_three_times_is_no_poison_where_it_may_pass(runtime: Runtime, pg: Conn, case: str) -> None:
    one = recipient(pg)
    served = [recipient(pg) for _ in range(1 if case == "nobody served" else 30)]
    status = 503 if case == "503" else 500
    bodies = ["a", "b", "c"] if case == "another snippet" else ["a"] * 3
    answer(runtime, [one, *served], [text(status, bodies[0])] + [text(201)] * len(served))
    for body in bodies[1:]:
        due(pg)
        if case != "at once":
            pg.execute("UPDATE pushops.push_dispatch SET first_attempt_at = first_attempt_at - interval '1 hour'")
        answer(runtime, [one], [text(status, body)])
    assert (outcome(pg, one), letters(pg)) == (None, [])


@pytest.mark.parametrize(
    "body", [b"oops\x00\xff\xd0", b"a" * 511 + "\u00fc".encode() * 50, "\U0001f600".encode() * 200, b"\x00" * 600]
)
def test_whatever_a_push_service_answers_is_stored(runtime: Runtime, pg: Conn, body: bytes, recorded: Any) -> None:
    """NUL, broken UTF-8, and a character that 512 bytes end in the middle of (E17)."""
    one = recipient(pg)
    answer(runtime, [one], [text(400, body)])
    letter = letter_of(pg, one)
    assert letter is not None
    assert len(letter["error_snippet"].encode()) <= 512
    assert "\ufffd" not in letter["error_snippet"][-1:] or body.endswith(b"\xd0")
    assert said(recorded, "dlq.spooled") == []


# Writing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders die between the settling and the parking."""
    monkeypatch.setattr(settling, "park", lambda *_: None)


def some_letter(rt: Runtime, pg: Conn, one: Row | None = None) -> tuple[Row, Letter]:
    """A letter that is in the table, and as it was handed over."""
    one = one or recipient(pg, **LAST)
    (letter,) = answer(rt, [one], [text(502, "down")]).letters
    return one, letter


def test_parking_again_changes_what_may_change_and_nothing_else(runtime: Runtime, pg: Conn) -> None:
    one, letter = some_letter(runtime, pg)
    before = letter_of(pg, one)
    assert before is not None
    assert letter.last_attempt_at is not None
    later = replace(
        letter,
        attempt_count=12,
        last_attempt_at=letter.last_attempt_at + timedelta(hours=1),
        first_attempt_at=letter.last_attempt_at,
        terminal_status=400,
        error_code="other",
        error_snippet="never",
        original_ttl=1,
        expires_at=letter.expires_at + timedelta(days=1),
        owner="somebody else",
        campaign_id="another",
    )
    writer.write(runtime, [later])
    after = letter_of(pg, one)
    assert after is not None
    changed = {name: after[name] for name in after if after[name] != before[name]}
    assert changed == {
        "attempt_count": 12,
        "last_attempt_at": later.last_attempt_at,
        "terminal_status": 400,
        "error_code": "other",
        "error_snippet": "never",
    }


def test_a_letter_that_comes_late_says_nothing_new(runtime: Runtime, pg: Conn) -> None:
    """It was replayed once meanwhile, and failed: the spool's copy must not make that attempt's number free again."""
    one, letter = some_letter(runtime, pg)
    pg.execute(
        "UPDATE pushops.push_dlq SET attempt_count = attempt_count + 1, replay_count = 1, last_attempt_at = now(),"
        " error_code = 'newer'"
    )
    before = letter_of(pg, one)
    writer.write(runtime, [letter])
    assert letter_of(pg, one) == before


@pytest.mark.parametrize("state", [CLOSED, CLAIMED])
def test_a_letter_that_is_closed_or_claimed_is_not_touched(runtime: Runtime, pg: Conn, state: dict[str, str]) -> None:
    one, letter = some_letter(runtime, pg)
    columns = ", ".join(f"{name} = {value}" for name, value in state.items())
    pg.execute(f"UPDATE pushops.push_dlq SET {columns}".encode())
    before = letter_of(pg, one)
    assert letter.last_attempt_at is not None
    later = replace(letter, attempt_count=20, last_attempt_at=letter.last_attempt_at + timedelta(hours=1))
    writer.write(runtime, [later])
    assert letter_of(pg, one) == before


def test_a_letter_twice_in_one_go_is_written_once(runtime: Runtime, pg: Conn) -> None:
    one, letter = some_letter(runtime, pg)
    pg.execute("DELETE FROM pushops.push_dlq")
    writer.write(runtime, [letter, letter])
    assert letter_of(pg, one) is not None


def test_a_letter_of_any_content_is_parked(runtime: Runtime, pg: Conn, recorded: Any) -> None:
    """The writer cannot fail on what is in it (E17)."""
    _, letter = some_letter(runtime, pg)
    strange = "\x00 \ud800 \udfff \\u0000 \U0001f600" + "ü" * 600
    odd = replace(
        letter,
        message_id=uuid4(),
        owner=strange,
        campaign_id=strange,
        error_code=strange,
        error_snippet=strange,
        history=[{"n": 1, "at": "2026-03-01T12:00:00Z", "outcome": strange, "code": strange, "snippet": strange}],
    )
    writer.park(runtime, [odd])
    assert len(letters(pg)) == 2
    assert said(recorded, "dlq.spooled") == []


@pytest.mark.usefixtures("unwritten")
def test_an_end_whose_sender_died_before_the_parking_is_parked_by_the_tending(
    runtime: Runtime, pg: Conn, recorded: Any
) -> None:
    rows = [recipient(pg, **LAST) for _ in range(3)]
    killer = recipient(pg, message={"rendered": "true"})
    expected = answer(runtime, rows, [text(502), text(502), text(400, "no")]).letters
    assert (letters(pg), unparked(pg), len(expected)) == ([], 3, 3)
    assert tending.tend(runtime) == 0, "who ended them is about to write them"
    pg.execute("UPDATE pushops.push_unparked SET ended_at = ended_at - interval '10 seconds'")
    assert tending.tend(runtime) == 3
    assert tending.tend(runtime) == 0
    assert unparked(pg) == 0
    assert {letter["message_id"] for letter in letters(pg)} == {row.message_id for row in rows}
    assert {letter["error_code"] for letter in letters(pg)} == {"http_502", "http_400"}
    assert [len(attempts_of(pg, row)) for row in rows] == [1, 1, 1]
    assert said(recorded, "dlq.ingested") == [{"rows": 3, "source": "owed"}]
    assert letter_of(pg, killer) is None


@pytest.mark.usefixtures("unwritten")
def test_one_that_the_table_does_not_take_is_not_in_the_way_of_others(
    runtime: Runtime, pg: Conn, recorded: Any
) -> None:
    rows = [recipient(pg) for _ in range(5)]
    answer(runtime, rows, [text(400)] * 5)
    pg.execute("UPDATE pushops.push_dispatch SET status = 410 WHERE message_id = %s", [rows[2].message_id])
    pg.execute("UPDATE pushops.push_unparked SET ended_at = ended_at - interval '10 seconds'")
    assert tending.tend(runtime) == 4
    assert unparked(pg) == 1
    assert [event["rows"] for event in said(recorded, "dlq.spool_failed")] == [1]


@pytest.mark.usefixtures("unwritten")
def test_a_letter_of_a_ledger_row_that_is_gone_is_owed_no_more(runtime: Runtime, pg: Conn, recorded: Any) -> None:
    rows = [recipient(pg) for _ in range(2)]
    answer(runtime, rows, [text(400)] * 2)
    pg.execute("DELETE FROM pushops.push_dispatch WHERE message_id = %s", [rows[0].message_id])
    pg.execute("UPDATE pushops.push_unparked SET ended_at = ended_at - interval '10 seconds'")
    assert tending.tend(runtime) == 1
    assert (len(letters(pg)), unparked(pg)) == (1, 0)
    assert [event["rows"] for event in said(recorded, "dlq.spool_failed")] == [1]


@pytest.mark.usefixtures("unwritten")
def test_what_is_owed_and_gone_from_everywhere_else_can_be_read_from_the_spool(
    runtime: Runtime, pg: Conn, recorded: Any
) -> None:
    one = recipient(pg, message={"campaign_id": "'spring'", "ttl": "77", "replayable": "false"})
    spool.append(runtime.settings, answer(runtime, [one], [text(400)]).letters)
    for table in ("push_dispatch", "push_message", "push_subscription", "push_unparked"):
        pg.execute(f"DELETE FROM pushops.{table}".encode())
    assert tending.tend(runtime) == 1
    letter = letter_of(pg, one)
    assert letter is not None
    assert (letter["campaign_id"], letter["original_ttl"], letter["replayable"]) == ("spring", 77, False)
    assert said(recorded, "dlq.ingested") == [{"rows": 1, "source": "spool"}]
    assert tending.tend(runtime) == 0


def test_a_spooled_letter_that_the_table_does_not_take_is_kept_aside(runtime: Runtime, pg: Conn, recorded: Any) -> None:
    _, letter = some_letter(runtime, pg)
    others = [replace(letter, message_id=uuid4()) for _ in range(4)]
    bad = replace(letter, message_id=uuid4(), terminal_status=410)
    spool.append(runtime.settings, [*others[:2], bad, *others[2:]])
    assert tending.tend(runtime) == 4
    assert len(letters(pg)) == 5
    (aside,) = spool.folder(runtime.settings).iterdir()
    assert aside.read_bytes() == spool.line(bad) + b"\n"
    assert [event["rows"] for event in said(recorded, "dlq.spool_failed")] == [1]


@pytest.mark.usefixtures("unwritten")
def test_two_who_tend_at_once_write_each_letter_once(runtime: Runtime, pg: Conn) -> None:
    rows = [recipient(pg) for _ in range(20)]
    spool.append(runtime.settings, answer(runtime, rows, [text(400)] * 20).letters)
    pg.execute("UPDATE pushops.push_unparked SET ended_at = ended_at - interval '10 seconds'")
    assert tending.tend(runtime) == 40, "from the ledger and from the spool"
    assert len(letters(pg)) == 20
