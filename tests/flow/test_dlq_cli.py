"""``pushops dlq``: what is shown, exported, discarded and sent again, and what is never printed."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest

from pushops.cli import dlq_output
from pushops.cli.exits import Exit
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.commands import Called, call
from tests.letters import CLAIMED, CLOSED, letter, park_letter, park_letters
from tests.outgoing import Outgoing, Pg, outgoing
from tests.replaying import attempts, change, park, parked, states

STORED: Final = "payloads/9f2c"
# Everything that a verb may be asked for, in both forms where it has two.
LOOKING: Final = [
    ["triage"],
    ["triage", "--json"],
    ["list"],
    ["list", "--json"],
    ["export"],
    ["export", "--format", "csv"],
    ["alarms"],
    ["alarms", "--json"],
    ["replay", "--dry-run"],
    ["replay", "--dry-run", "--json"],
    ["discard", "--since", "1d", "--reason", "x"],
]


def dlq(settings: Settings, *arguments: object, stdin: str = "") -> Called:
    return call("dlq", *map(str, arguments), settings=settings, stdin=stdin)


def lines(done: Called) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def test_triage_says_which_letters_wait_and_how_many_can_still_go(settings: Settings, pg: Pg) -> None:
    park_letters(pg, 3, expires_at="now() + n * interval '40 seconds'")
    done = dlq(settings, "triage")
    assert done.code == 0
    assert "retry_exhausted unavailable at fcm.googleapis.com, campaign spring" in " ".join(done.out.split())
    assert "67%" in done.out
    assert "3 letters in 1 groups" in done.out
    (group,) = dlq(settings, "triage", "--json").json["groups"]
    assert (group["letters"], group["replayable"], group["campaign_share"], group["new"]) == (3, 2, None, True)


def test_an_empty_table_is_nothing_to_do(settings: Settings) -> None:
    assert "no letter waits" in dlq(settings, "triage").out
    assert dlq(settings, "list").code == dlq(settings, "alarms").code == 0
    assert dlq(settings, "export").out == ""


def test_pages_of_a_list_are_asked_for_by_the_last_id(settings: Settings, pg: Pg) -> None:
    ids = park_letters(pg, 5)
    first = dlq(settings, "list", "--limit", 2, "--json").json
    assert [row["dlq_id"] for row in first["rows"]] == [str(one) for one in ids[:2]]
    rest = dlq(settings, "list", "--after", first["next"], "--json").json
    assert [row["dlq_id"] for row in rest["rows"]] == [str(one) for one in ids[2:]]
    assert rest["next"] is None
    assert "more: --after" in dlq(settings, "list", "--limit", 2).err


def test_a_letter_is_shown_by_the_beginning_of_its_id_with_its_attempts(settings: Settings, pg: Pg) -> None:
    dlq_id = park_letter(pg, dlq_id="'abcd0000-0000-7000-8000-000000000001'::uuid")
    park_letter(pg, dlq_id="'abce0000-0000-7000-8000-000000000001'::uuid")
    pg.execute(
        "INSERT INTO push_dlq_attempt (replay_key, attempt, kind, status, code, snippet)"
        " SELECT replay_key, 10, 'live', 503, 'unavailable', 'come back later' FROM push_dlq WHERE dlq_id = %s",
        [dlq_id],
    )
    done = dlq(settings, "show", "abcd")
    assert done.code == 0
    assert "come back later" in " ".join(done.out.split())
    assert "nobody knows" in done.out
    found = dlq(settings, "show", "abcd", "--json").json
    assert (found["letter"]["dlq_id"], found["attempts"][0]["attempt"]) == (str(dlq_id), 10)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "abc0"], 1, "there is none"),
        (["show", "abc"], 1, "at least four digits"),
        (["show", "0"], 1, "expected the id of a dead letter"),
        (["list", "--class", "venom"], 2, "poison"),
        (["list", "--since", "yesterday"], 2, "24h"),
        (["list", "--state", "lost"], 1, "expected a state of parked"),
        (["list", "--text", "https://fcm.googleapis.com/x"], 1, "without an address"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["discard", "--reason", "x"], 1, "expected a condition"),
        (["discard", "--since", "1h"], 2, "--reason"),
        (["discard", "--since", "1h", "--reason", " "], 1, "expected a reason"),
        (["replay", "--inline"], 1, "expected a condition"),
        (["replay", "--since", "1h"], 1, "--inline"),
        (["replay", "--since", "1h", "--rate", "0", "--inline"], 1, "expected a rate above 0"),
        (["resend", "abc0", "--reason", "x"], 1, "there is none"),
    ],
)
def test_what_is_refused_says_what_was_expected(
    settings: Settings, pg: Pg, arguments: list[str], code: int, said: str
) -> None:
    park_letter(pg)
    done = dlq(settings, *arguments)
    assert done.code == code
    assert said in " ".join(done.err.replace("│", " ").split())
    assert "fcm.googleapis.com/x" not in done.text
    assert states(pg) == {("parked", None): 1}


def test_times_may_be_so_long_ago(settings: Settings, pg: Pg) -> None:
    park_letters(pg, 4, parked_at="now() - n * interval '1 day' + interval '1 hour'")
    assert len(dlq(settings, "list", "--since", "2d", "--json").json["rows"]) == 2
    assert len(dlq(settings, "list", "--until", "48h", "--json").json["rows"]) == 2
    assert len(dlq(settings, "list", "--since", "2026-01-01T00:00Z", "--json").json["rows"]) == 4


def test_an_export_has_every_letter_a_line(settings: Settings, pg: Pg) -> None:
    ids = park_letters(pg, 1_200)
    park_letter(pg, **CLOSED)
    done = dlq(settings, "export")
    assert [line["dlq_id"] for line in lines(done)] == [str(one) for one in ids]
    assert "export: 1,200/1,200 letters" in done.err
    assert len(lines(dlq(settings, "export", "--state", "all"))) == 1_201


def test_a_spreadsheet_runs_nothing_that_a_push_service_wrote(settings: Settings, pg: Pg) -> None:
    park_letter(pg, error_snippet="'=cmd|'' /C calc''!A0, \"x\"' || chr(10) || 'y' || chr(27)", owner="'-1+2'")
    done = dlq(settings, "export", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert row["error_snippet"] == "'=cmd|' /C calc'!A0, \"x\"\ny\\u001b"
    assert row["owner"] == "'-1+2"
    assert (row["terminal_status"], row["in_doubt"], row["close_reason"]) == ("503", "false", "")


def test_an_export_keeps_a_page_of_letters_in_memory_and_no_more(
    settings: Settings, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is told before the next page is read."""
    from pushops.deadletters import looking

    monkeypatch.setattr(looking, "MOST", 100)
    monkeypatch.setattr(dlq_output, "EVERY", 100)
    park_letters(pg, 350)
    read: list[int] = []
    page = looking._page

    def counted(*arguments: Any) -> Any:
        found = page(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(looking, "_page", counted)
    assert len(lines(dlq(settings, "export"))) == 350
    assert read == [101, 101, 101, 50]


def test_a_discard_counts_first_and_changes_nothing(settings: Settings, pg: Pg) -> None:
    park_letters(pg, 2)
    done = dlq(settings, "discard", "--campaign", "spring", "--reason", "stale codes")
    assert done.code == 0
    assert "2 parked letters are meant" in done.out
    assert "nothing was changed" in done.out
    assert states(pg) == {("parked", None): 2}


@pytest.mark.parametrize("said", [["--yes"], ["--count", "2"]])
def test_a_discard_is_done_by_yes_or_by_their_number(settings: Settings, pg: Pg, said: list[str]) -> None:
    ids = park_letters(pg, 2)
    claimed = park_letter(pg, **CLAIMED)
    done = dlq(settings, "discard", "--campaign", "spring", "--reason", "stale codes", *said)
    assert done.code == 0
    assert "2 discarded; 1 more are in a replay's hands and left alone" in done.out
    row = letter(pg, ids[0])
    assert (row["replay_state"], row["close_note"]) == ("discarded", "stale codes")
    assert row["closed_by"].startswith("cli:")
    assert letter(pg, claimed)["replay_state"] == "claimed"


def test_another_number_than_theirs_discards_nothing(settings: Settings, pg: Pg) -> None:
    park_letters(pg, 2)
    done = dlq(settings, "discard", "--campaign", "spring", "--reason", "x", "--count", 3, "--json")
    assert (done.code, done.json["matched"], done.json["discarded"]) == (0, 2, 0)
    assert states(pg) == {("parked", None): 2}


def test_alarms_end_with_one_where_somebody_should_be_woken(settings: Settings, pg: Pg) -> None:
    late = CLAIMED | {"claimed_until": "now() - interval '6 minutes'"}
    park_letter(pg, **late)
    done = dlq(settings, "alarms")
    assert done.code == 0
    assert "leases_over" in done.out
    park_letters(pg, 50, **late)
    grave = dlq(settings, "alarms", "--json")
    assert (grave.code, grave.json["ok"]) == (1, False)
    assert grave.json["alarms"][0]["signal"] == "leases_over"


def test_a_dry_run_counts_every_gate_and_changes_nothing(out: Outgoing, pg: Pg) -> None:
    parked(out, pg, 3)
    change(pg, parked(out, pg, 2), expires_at="now()")
    change(pg, parked(out, pg, 1), in_doubt="true")
    change(pg, parked(out, pg, 4), error_class="'poison'")
    before = pg.execute("SELECT * FROM push_dlq ORDER BY dlq_id").fetchall()
    found = dlq(out.rt.settings, "replay", "--dry-run", "--json").json
    counts = {name: found[name] for name in ("total", "would_send", "stale", "gone", "in_doubt", "poison_left_out")}
    assert counts == {"total": 10, "would_send": 3, "stale": 2, "gone": 0, "in_doubt": 1, "poison_left_out": 4}
    done = dlq(out.rt.settings, "replay", "--dry-run", "--limit", 2)
    assert "left out: --class poison" in done.out
    assert "2 ttl expired" in done.out
    assert "--limit ends the run after 2 letters" in done.err
    assert pg.execute("SELECT * FROM push_dlq ORDER BY dlq_id").fetchall() == before


def test_a_replay_in_this_process_sends_what_is_meant(out: Outgoing, pg: Pg) -> None:
    ours = parked(out, pg, 3, campaign="spring")
    parked(out, pg, 2, campaign="autumn")
    done = dlq(out.rt.settings, "replay", "--campaign", "spring", "--inline", "--json")
    assert (done.code, done.json["state"], done.json["outcomes"]) == (0, "done", {"replayed": 3})
    assert states(pg) == {("replayed", "replayed"): 3, ("parked", None): 2}
    assert sorted(out.service.accepted(out.endpoints)) == [0, 0, 1, 1, 1]
    assert letter(pg, ours[0])["closed_by"] == f"run:{done.json['run_id']}"


def test_a_letter_is_sent_once_more_by_its_id(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    change(pg, [one], in_doubt="true")
    done = dlq(out.rt.settings, "resend", str(one), "--reason", "she asked", "--json")
    assert (done.code, done.json["outcome"]) == (0, "replayed")
    assert attempts(pg, one)[-1]["forced"] == "she asked"
    assert out.service.accepted(out.endpoints) == [1]


def test_what_is_not_taken_once_more_ends_with_another_code(out: Outgoing, pg: Pg) -> None:
    (one,) = parked(out, pg)
    out.service.script("no", host="fcm.googleapis.com", answers=[{"status": 503}])
    assert dlq(out.rt.settings, "resend", str(one), "--reason", "she asked").code == Exit.FAILED
    assert letter(pg, one)["replay_state"] == "parked"


def test_no_endpoint_key_or_payload_is_ever_printed(out: Outgoing, pg: Pg) -> None:
    (endpoint,) = out.subscribe()
    (one,) = park(pg, out.send(b"the secret words"), payload_ref=f"'{STORED}'")
    row = letter(pg, one)
    keys = pg.execute("SELECT p256dh FROM push_subscription WHERE id = %s", [row["subscription_id"]]).fetchone()
    assert keys is not None
    secrets = [endpoint, endpoint.rpartition("/")[2], STORED, "the secret words", keys[0], row["endpoint_hash"].hex()]
    shown = [["show", str(one)], ["show", str(one), "--json"]]
    for arguments in [*LOOKING, *shown]:
        done = dlq(out.rt.settings, *arguments)
        assert done.code in (0, 1), done.text
        assert [secret for secret in secrets if secret in done.text] == []


def test_commands_say_what_their_exit_codes_mean() -> None:
    for verb in ("replay", "resend", "discard", "export", "alarms"):
        assert "3 held by a valve" in " ".join(call("dlq", verb, "--help").out.split())


def test_json_is_all_that_stands_on_standard_output(settings: Settings, pg: Pg) -> None:
    dlq_id: UUID = park_letter(pg)
    for arguments in (
        ["triage"],
        ["list"],
        ["show", dlq_id],
        ["alarms"],
        ["replay", "--dry-run"],
        ["discard", "--since", "1d", "--reason", "x"],
        ["discard", "--since", "1d", "--reason", "x", "--yes"],
    ):
        assert isinstance(dlq(settings, *arguments, "--json").json, dict)
