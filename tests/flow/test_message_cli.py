"""``pushops message``: what is sent, shown, listed and cancelled, and what is never printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from pushops.delivery import payloads
from pushops.runtime import Runtime
from pushops.settings import Settings
from tests.commands import Called, call
from tests.outgoing import ends
from tests.sending import Pg, ledger, make_live, message, send_to, sent


def send(settings: Settings, *arguments: str, stdin: str | bytes = "") -> Called:
    return call("message", "send", *arguments, settings=settings, stdin=stdin)


def results(settings: Settings, message_id: Any, *arguments: str) -> Called:
    return call("message", "results", str(message_id), *arguments, settings=settings)


def body_of(rt: Runtime, pg: Pg, message_id: Any) -> bytes:
    row = message(pg, message_id)
    return payloads.fetch(rt, row["message_id"], row["payload_ref"], row["payload_key_version"])


def messages(pg: Pg) -> int:
    return len(pg.execute("SELECT FROM push_message").fetchall())


def test_a_payload_comes_from_an_option_a_file_or_stdin(runtime: Runtime, pg: Pg, tmp_path: Path) -> None:
    make_live(pg, 2, user="ann")
    path = tmp_path / "body"
    path.write_bytes(b"\x00\xff")
    for arguments, stdin, expected in (
        (["--payload", "h\u00e9"], b"", "h\u00e9".encode()),
        (["--payload-file", str(path)], b"", b"\x00\xff"),
        (["--payload-file", "-"], b"\xfe\n", b"\xfe\n"),
    ):
        done = send(runtime.settings, *arguments, "--user", "ann", "--json", stdin=stdin)
        assert (done.code, done.json["state"], done.json["created"]) == (0, "sending", True)
        assert body_of(runtime, pg, done.json["message_id"]) == expected
        assert len(ledger(pg, done.json["message_id"])) == 2


def test_a_stamped_payload_carries_the_id(runtime: Runtime, pg: Pg) -> None:
    done = send(runtime.settings, "--payload", '{"title":"x"}', "--stamp", "--everyone", "--ttl", "30m", "--json")
    found = json.loads(body_of(runtime, pg, done.json["message_id"]))
    assert found == {"title": "x", "pushops": {"id": done.json["message_id"]}}
    assert message(pg, done.json["message_id"])["ttl"] == 1800


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--everyone"], 2, "--payload"),
        (["--payload", "x", "--payload-file", "-", "--everyone"], 2, "one of the two"),
        (["--payload", "x"], 1, "no_audience"),
        (["--payload", "x" * 3994, "--ttl", "29d", "--everyone"], 1, "payload_too_large"),
        (["--payload", "x" * 3994, "--ttl", "29d", "--everyone"], 1, "bad_ttl"),
        (["--payload", "[1]", "--stamp", "--everyone"], 1, "JSON object"),
        (["--payload-file", "/no/such/file", "--everyone"], 1, "/no/such/file"),
    ],
)
def test_what_is_refused_says_why_and_writes_nothing(
    settings: Settings, pg: Pg, arguments: list[str], code: int, said: str
) -> None:
    done = send(settings, *arguments)
    assert done.code == code
    assert said in done.err
    assert messages(pg) == 0


def test_a_dry_run_counts_by_service_and_writes_nothing(settings: Settings, pg: Pg) -> None:
    make_live(pg, 5)
    done = send(settings, "--payload", "x" * 2800, "--everyone", "--dry-run")
    assert done.code == 0
    assert "5 would be sent 2,800 bytes" in done.out
    assert "payload_over_bridge" in done.err
    faulty = send(settings, "--payload", "x" * 4000, "--everyone", "--dry-run", "--json")
    assert (faulty.code, [each["reason"] for each in faulty.json["faults"]]) == (1, ["payload_too_large"])
    assert messages(pg) == 0


def test_a_message_is_shown_with_its_progress(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 3)
    message_id = sent(runtime, campaign="spring")
    done = call("message", "show", str(message_id)[:18], settings=runtime.settings)
    assert done.code == 0
    for word in ("spring", "sending", "everyone", "due"):
        assert word in done.out
    found = call("message", "show", str(message_id), "--json", settings=runtime.settings).json
    assert found["message"]["recipients"] == 3
    assert [(share["state"], share["rows"]) for share in found["shares"]] == [("due", 3)]


def test_messages_are_listed_by_campaign_and_state(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 1)
    first, other = send_to(runtime, campaign="spring").message_id, sent(runtime, campaign="autumn")
    listed = call("message", "list", "--json", settings=runtime.settings).json
    assert [row["message_id"] for row in listed] == [str(other), str(first)]
    one = call(
        "message", "list", "--campaign", "spring", "--state", "waiting", "--json", settings=runtime.settings
    ).json
    assert [row["message_id"] for row in one] == [str(first)]
    assert "autumn" in call("message", "list", settings=runtime.settings).out


def test_results_are_a_line_for_each_recipient_without_any_endpoint(runtime: Runtime, pg: Pg) -> None:
    ids = make_live(pg, 3)
    message_id = sent(runtime)
    pg.execute(
        "UPDATE push_dispatch SET state = 'ended', outcome = 'gone', ended_at = now() WHERE subscription_id = %s",
        [ids[0]],
    )
    done = results(runtime.settings, message_id)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert {row["subscription_id"] for row in rows} == {str(each) for each in ids}
    assert "https" not in done.out
    (gone,) = results(runtime.settings, message_id, "--outcome", "gone").out.splitlines()
    assert json.loads(gone)["subscription_id"] == str(ids[0])
    assert len(results(runtime.settings, message_id, "--limit", "2").out.splitlines()) == 2


def test_a_campaign_of_any_length_is_counted_whole_before_it_is_cancelled(runtime: Runtime, pg: Pg) -> None:
    pg.execute("INSERT INTO push_message (campaign_id, ttl) SELECT 'long', 60 FROM generate_series(1, 1001)")
    newest = "SELECT message_id FROM push_message ORDER BY message_id DESC LIMIT 1"
    pg.execute(f"UPDATE push_message SET state = 'closed' WHERE message_id = ({newest})")
    counted = call("message", "cancel", "--campaign", "long", "--json", settings=runtime.settings)
    assert counted.json == {"messages": 1000, "waiting": 0, "cancelled": None}


def test_cancelling_counts_first(runtime: Runtime, pg: Pg) -> None:
    make_live(pg, 4)
    message_id = sent(runtime, campaign="spring")
    only = call("message", "cancel", str(message_id), settings=runtime.settings)
    assert (only.code, "4 recipients of 1 open messages" in only.out) == (0, True)
    assert ends(pg, message_id) == {"due": 4}
    done = call("message", "cancel", "--campaign", "spring", "--yes", settings=runtime.settings)
    assert "1 messages cancelled, 4 recipients ended" in done.out
    assert ends(pg, message_id) == {"cancelled": 4}
    assert message(pg, message_id)["cancelled_by"].startswith("cli:")
    again = call("message", "cancel", str(message_id), "--yes", "--json", settings=runtime.settings)
    assert again.json == {"messages": 0, "waiting": 0, "cancelled": {"messages": [], "rows": 0}}


def test_the_same_key_is_sent_once(settings: Settings, pg: Pg) -> None:
    arguments = ["--payload", "x", "--everyone", "--idempotency-key", "k"]
    first, again = send(settings, *arguments), send(settings, *arguments)
    assert "was sent before" in again.out
    assert first.out.split()[1] == again.out.split()[1]
    other = send(settings, *arguments, "--urgency", "high")
    assert (other.code, "got another request" in other.err) == (1, True)
    assert messages(pg) == 1


@pytest.mark.parametrize("name", ["fan-out", "send-due", "purge-ledger"])
def test_what_sends_is_paused_and_resumed_by_name(runtime: Runtime, pg: Pg, name: str) -> None:
    assert call("sweep", "pause", name, "--why", "slow", settings=runtime.settings).code == 0
    held = pg.execute("SELECT paused_why FROM sweep_control WHERE sweep = %s", [name]).fetchone()
    assert held == ("slow",)
    assert "may run again" in call("sweep", "resume", name, settings=runtime.settings).out
    assert "was not paused" in call("sweep", "resume", name, settings=runtime.settings).out
