"""Imports, looks and undoing from the command line; nothing that opens or names a device is ever printed."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import AUTH, keychain
from tests.browser import subscribe
from tests.commands import Called, call
from tests.rows import Pg, put_in_state, row
from tests.sweeping import count

FORBIDDEN_CHARACTERS = 12  # of a key or an endpoint's end; shorter pieces turn up by chance


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def given() -> list[dict[str, Any]]:
    return [subscribe(user=f"user-{n % 3}", tags=["news"], origin="https://shop.acme.io") for n in range(12)]


@pytest.fixture
def file(tmp_path: Path, given: list[dict[str, Any]]) -> Path:
    return write(tmp_path / "subs.jsonl", *given)


def secrets_of(settings: Settings, given: list[dict[str, Any]]) -> list[str]:
    """All that must not be seen: of each subscription, and of the settings."""
    found = [text for each in given for text in (each["endpoint"], *each["keys"].values())]
    keys = [settings.log_hmac_key, *settings.seal_keys.values(), *settings.vapid_keys.values()]
    return found + [key.get_secret_value() for key in keys if key is not None]


def assert_silent(called: Called, secrets: list[str]) -> None:
    tails = [secret[-FORBIDDEN_CHARACTERS:] for secret in secrets]
    raw = [base64url.decode(secret).hex() for secret in secrets if not secret.startswith("https")]
    assert not [piece for piece in [*tails, *raw] if piece in called.text]


def test_an_import_stores_every_line_with_its_owner_sealed(pg: Pg, runtime: Runtime, file: Path, given: Any) -> None:
    done = call("subscription", "import", str(file), "--json", settings=runtime.settings)
    assert (done.code, done.json["inserted"], done.json["refused"]) == (0, 12, 0)
    stored = row(pg, given[0]["endpoint"])
    assert (stored["user_id"], stored["tags"], stored["origin"]) == ("user-0", ["news"], "https://shop.acme.io")
    opened = keychain(runtime.settings).ring.open(AUTH, stored["endpoint_hash"], 1, stored["auth_sealed"])
    assert base64url.encode(opened) == given[0]["keys"]["auth"]


def test_importing_again_changes_no_row_count(pg: Pg, settings: Settings, file: Path) -> None:
    call("subscription", "import", str(file), settings=settings)
    again = call("subscription", "import", "-", "--json", settings=settings, stdin=file.read_bytes())
    assert (again.json["inserted"], again.json["updated"], again.json["unchanged"]) == (0, 0, 12)
    assert count(pg, "SELECT count(*) FROM push_subscription") == 12


def test_a_dry_run_stores_nothing_and_refuses_the_same(pg: Pg, settings: Settings, tmp_path: Path, given: Any) -> None:
    bad = subscribe(endpoint="http://fcm.googleapis.com/fcm/send/1")
    file = write(tmp_path / "mixed.jsonl", given[0], bad, "not json", given[1])
    dry = call("subscription", "import", str(file), "--dry-run", "--json", settings=settings)
    assert (dry.code, dry.json["inserted"], count(pg, "SELECT count(*) FROM push_subscription")) == (1, 2, 0)
    real = call("subscription", "import", str(file), "--json", settings=settings)
    assert real.json["reasons"] == dry.json["reasons"] == {"not_https": 1, "not_json": 1}
    assert count(pg, "SELECT count(*) FROM push_subscription") == 2


def test_refusals_are_reported_by_line_and_reason_without_the_values(
    settings: Settings, tmp_path: Path, given: list[dict[str, Any]]
) -> None:
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQ"  # noqa: S105  (it opens nothing)
    bad = {**given[1], "keys": {"p256dh": given[1]["keys"]["p256dh"], "auth": secret}}
    file, report = write(tmp_path / "subs.jsonl", given[0], bad), tmp_path / "report.jsonl"
    done = call("subscription", "import", str(file), "--report", str(report), settings=settings)
    (refusal,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert (done.code, refusal["line"], refusal["reason"]) == (1, 2, "bad_auth_length")
    everything = Called(0, done.text, report.read_text())
    assert_silent(everything, [secret, *secrets_of(settings, given)])


def test_an_import_does_not_bring_back_who_unsubscribed_unless_told(
    pg: Pg, settings: Settings, tmp_path: Path, file: Path, given: Any
) -> None:
    words, report = ("subscription", "import", str(file), "--json"), tmp_path / "report.jsonl"
    call(*words, settings=settings)
    put_in_state(pg, given[3]["endpoint"], "revoked", "unsubscribed")
    done = call(*words, "--report", str(report), settings=settings)
    assert (done.code, done.json["unchanged"], done.json["reasons"]) == (1, 11, {"unsubscribed": 1})
    (refusal,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert (refusal["line"], refusal["reason"]) == (4, "unsubscribed")
    assert row(pg, given[3]["endpoint"])["state"] == "revoked"
    assert call(*words, "--revive", settings=settings).code == 0
    assert row(pg, given[3]["endpoint"])["state"] == "pending"


def test_chunks_end_where_they_end(pg: Pg, settings: Settings, tmp_path: Path, given: list[dict[str, Any]]) -> None:
    """More than one transaction, a refusal at each edge, and the lines still belong to their outcomes."""
    lines: list[dict[str, Any] | str] = ["{broken", *[given[n % 12] for n in range(499)], "broken", given[0], "broken"]
    report = tmp_path / "report.jsonl"
    file = write(tmp_path / "many.jsonl", *lines)
    done = call("subscription", "import", str(file), "--report", str(report), "--json", settings=settings)
    assert [json.loads(line)["line"] for line in report.read_text().splitlines()] == [1, 501, 503]
    assert (done.json["lines"], done.json["inserted"], done.json["duplicates"]) == (503, 12, 488)
    assert count(pg, "SELECT count(*) FROM push_subscription") == 12


def test_no_command_prints_an_endpoint_or_a_key(pg: Pg, settings: Settings, file: Path, given: Any) -> None:
    secrets = secrets_of(settings, given)
    called = [call("subscription", "import", str(file), settings=settings)]
    subscription = str(row(pg, given[0]["endpoint"])["id"])
    for extra in ([], ["--json"]):
        called += [
            call("subscription", "list", *extra, settings=settings),
            call("subscription", "show", subscription, *extra, settings=settings),
            call("subscription", "show", "-", *extra, settings=settings, stdin=given[0]["endpoint"] + "\n"),
            call("config", *extra, settings=settings),
            call("check", *extra, settings=settings),
        ]
    for each in called:
        assert_silent(each, secrets)
    assert subscription in called[1].out, "it was the row that these commands printed"


def test_a_subscription_is_shown_by_id_and_by_endpoint(pg: Pg, settings: Settings, file: Path, given: Any) -> None:
    call("subscription", "import", str(file), settings=settings)
    found = call("subscription", "show", "-", "--json", settings=settings, stdin=given[4]["endpoint"]).json
    assert found == call("subscription", "show", found["id"], "--json", settings=settings).json
    assert found["id"] == str(row(pg, given[4]["endpoint"])["id"])
    assert call("subscription", "show", "-", settings=settings, stdin="https://other.acme.io/x").code == 1


def test_a_list_goes_on_where_the_last_page_ended(settings: Settings, file: Path) -> None:
    call("subscription", "import", str(file), settings=settings)
    first = call("subscription", "list", "--limit", "7", "--json", settings=settings).json
    rest = call("subscription", "list", "--after", first["next"], "--json", settings=settings).json
    assert (len(first["rows"]), len(rest["rows"]), rest["next"]) == (7, 5, None)
    mine = call("subscription", "list", "--user", "user-1", "--json", settings=settings).json["rows"]
    assert {each["user_id"] for each in mine} == {"user-1"}
    assert len(mine) == 4


def test_undoing_is_shown_first_and_done_only_when_told(pg: Pg, settings: Settings, file: Path, given: Any) -> None:
    call("subscription", "import", str(file), settings=settings)
    put_in_state(pg, given[0]["endpoint"], "revoked", "gone")
    put_in_state(pg, given[1]["endpoint"], "revoked", "unsubscribed")
    words = ("subscription", "undo", "--service", "fcm", "--json")
    dry = call(*words, settings=settings).json
    assert (dry["dry_run"], dry["rows"], sum(group["rows"] for group in dry["groups"])) == (True, 0, 1)
    assert row(pg, given[0]["endpoint"])["state"] == "revoked"
    assert call(*words, "--yes", settings=settings).json["rows"] == 1
    assert row(pg, given[0]["endpoint"])["state"] == "active"
    assert row(pg, given[1]["endpoint"])["state"] == "revoked", "what a person ended stays ended"


def test_undo_without_any_filter_is_refused(settings: Settings) -> None:
    done = call("subscription", "undo", "--yes", settings=settings)
    assert done.code == 1
    assert "expected at least one of" in done.err


def test_an_undo_window_that_is_over_brings_nothing_back(pg: Pg, settings: Settings, file: Path, given: Any) -> None:
    call("subscription", "import", str(file), settings=settings)
    put_in_state(pg, given[0]["endpoint"], "revoked", "gone")
    pg.execute("UPDATE push_subscription SET deleted_at = deleted_at - %s", [timedelta(days=4)])
    assert call("subscription", "undo", "--reason", "gone", "--json", settings=settings).json["groups"] == []


# Columns, tables, dumps


def test_columns_of_another_store_come_in_under_their_own_names(pg: Pg, settings: Settings, tmp_path: Path) -> None:
    given = [subscribe() for _ in range(3)]
    text = "push_url;p256dh;auth;member;joined\n" + "".join(
        f"{each['endpoint']};{each['keys']['p256dh']};{each['keys']['auth']};{n};2025-01-0{n + 1} 10:00:00\n"
        for n, each in enumerate(given)
    )
    file = write(tmp_path / "members.csv", text.removesuffix("\n"))
    names = ("--map", "endpoint=push_url", "--map", "user=member", "--map", "created_at=joined")
    refused = call("subscription", "import", str(file), *names, "--json", settings=settings)
    assert (refused.code, refused.json["reasons"]) == (1, {"bad_time": 3})
    done = call("subscription", "import", str(file), *names, "--utc", settings=settings)
    assert (done.code, "3 lines: 3 new" in done.out) == (0, True)
    assert row(pg, given[2]["endpoint"])["user_id"] == "2"


DEVICES: str = """
CREATE TABLE devices (id serial PRIMARY KEY, registration_id text, p256dh text, auth text, browser text,
                      user_id integer, active boolean, date_created timestamptz DEFAULT now() - interval '1 year')"""


def test_a_table_of_ones_own_comes_in_and_nothing_is_written_there(pg: Pg, settings: Settings, tmp_path: Path) -> None:
    given, report = [subscribe() for _ in range(4)], tmp_path / "report.jsonl"
    pg.execute(DEVICES.encode())
    for n, each in enumerate(given):
        keys = each["keys"]
        pg.execute(
            "INSERT INTO devices (id, registration_id, p256dh, auth, browser, user_id, active)"
            " VALUES (%s, %s, %s, %s, 'CHROME', 7, %s)",
            [n + 100, each["endpoint"], keys["p256dh"], keys["auth"] if n != 1 else "x", n != 2],
        )
    before = count(pg, "SELECT count(*) FROM devices")
    words = ("subscription", "import", "--from-table", "pushops.devices", "--report", str(report), "--json")
    done = call(*words, settings=settings)
    assert (done.code, done.json["inserted"]) == (1, 2)
    assert {line["line"]: line["reason"] for line in map(json.loads, report.read_text().splitlines())} == {
        101: "bad_base64",
        102: "inactive",
    }
    assert row(pg, given[0]["endpoint"])["user_id"] == "7"
    assert call(*words, settings=settings).json["unchanged"] == 2
    assert count(pg, "SELECT count(*) FROM devices") == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from-table", "nowhere"], "expected to read table nowhere, got UndefinedTable, SQLSTATE 42P01"),
        (["--from-table", "audit", "--from-url", "postgresql://u:secret@127.0.0.1:1/x"], "got OperationalError"),
        (["--from-table", "pushops.audit"], "expected table pushops.audit to have a column for the endpoint"),
        (["/nowhere.csv"], "expected to read /nowhere.csv, got No such file"),
        (["--from-table", "audit", "x.csv"], "one of them"),
        ([], "one of them"),
    ],
)
def test_what_cannot_be_read_is_said_without_the_way_to_it(settings: Settings, words: list[str], told: str) -> None:
    done = call("subscription", "import", *words, settings=settings)
    assert done.code != 0
    assert told in " ".join(done.text.replace("│", " ").split())
    assert "secret" not in done.text


def test_the_report_calls_an_endpoint_as_logs_do(settings: Settings, tmp_path: Path, given: Any) -> None:
    bad = {**given[1], "keys": {**given[1]["keys"], "auth": "AAAA"}}
    file, report = write(tmp_path / "subs.jsonl", bad), tmp_path / "report.jsonl"
    call("subscription", "import", str(file), "--report", str(report), settings=settings)
    assert json.loads(report.read_text())["endpoint"] == keychain(settings).tag(bad["endpoint"])


def test_a_dump_names_nothing_that_opens_and_takes_in_the_dead(
    pg: Pg, settings: Settings, tmp_path: Path, file: Path, given: Any
) -> None:
    call("subscription", "import", str(file), settings=settings)
    put_in_state(pg, given[0]["endpoint"], "revoked", "unsubscribed")
    for how in ("jsonl", "csv"):
        out = tmp_path / f"dump.{how}"
        done = call("subscription", "dump", "--format", how, "--out", str(out), settings=settings)
        assert (done.code, len(out.read_text().splitlines())) == (0, 12 + (how == "csv"))
        assert_silent(Called(0, out.read_text(), done.text), secrets_of(settings, given))
    mine = call("subscription", "dump", "--user", "user-1", "--out", "-", settings=settings)
    assert {json.loads(line)["user_id"] for line in mine.out.splitlines()} == {"user-1"}


@pytest.mark.parametrize("how", ["jsonl", "csv"])
def test_a_dump_with_credentials_is_asked_for_twice_noted_and_comes_in_again_unchanged(
    pg: Pg, settings: Settings, tmp_path: Path, file: Path, how: str
) -> None:
    call("subscription", "import", str(file), settings=settings)
    out = tmp_path / f"dump.{how}"
    out.touch(0o644)
    words = ("subscription", "dump", "--with-credentials", "--format", how, "--out", str(out))
    assert (call(*words, settings=settings).code, out.read_text()) == (1, "")
    assert call(*words, "--yes", "--json", settings=settings).json["rows"] == 12
    assert out.stat().st_mode & 0o777 == 0o600
    assert count(pg, "SELECT count(*) FROM audit WHERE verb = 'dump'") == 1
    again = call("subscription", "import", str(out), "--json", settings=settings)
    assert (again.code, again.json["unchanged"], again.json["updated"]) == (0, 12, 0)
    pg.execute("TRUNCATE push_subscription, subscription_period")
    anew = call("subscription", "import", str(out), "--json", settings=settings)
    assert (anew.code, anew.json["inserted"]) == (0, 12)
