"""``pushops explain``: the row that matched, why it won, and every effect."""

from pathlib import Path

import pytest

from pushops.delivery.classify import load_table
from tests.commands import call


def test_the_row_its_meaning_and_every_effect_are_said() -> None:
    done = call("explain", "--service", "apple", "--status", "403", "--body", '{"reason":"BadJwtToken"}')
    assert done.code == 0
    lines = dict(line.split("  ", 1) for line in done.out.splitlines() if not line.startswith(" "))
    assert lines["row"].strip() == "41"
    assert lines["code"].strip() == "vapid_jwt"
    for name in ("meaning", "scope", "lifecycle", "retry", "dead letter", "hold", "known", "passed over"):
        assert lines[name].strip()


def test_json_is_json_and_nothing_else() -> None:
    told = call("explain", "--service", "fcm", "--status", "404", "--body", "<html>", "--json").json
    assert (told["row"], told["outcome"], told["lifecycle"].split(":")[0]) == ("7", "not_found", "vote")
    assert told["retry"] == "backoff: with growing waits, 2 times at most"
    assert told["passed_over"] == [
        "row 6: wants one of its texts in the body",
        "row 68b: row 7 names the service",
        "row 68: row 7 names the service",
    ]


def test_headers_are_repeatable_and_their_case_does_not_matter() -> None:
    words = ("explain", "--service", "wns", "--status", "200", "--header", "X-WNS-Status: dropped", "--json")
    assert call(*words).json["code"] == "wns_dropped"
    twice = ("explain", "--service", "fcm", "--status", "503", "--header", "Retry-After: 60")
    assert call(*twice, "--header", "retry-after: 120", "--json").json["retry_after"] == "120 s, before limits"
    garbage = call("explain", "--status", "503", "--header", "Retry-After: soon", "--json").json
    assert garbage["retry_after"] == "'soon' is no time: as without"


def test_a_host_tells_the_service() -> None:
    done = call("explain", "--host", "par02p.notify.windows.com", "--status", "406", "--json")
    assert (done.json["service"], done.json["code"]) == ("wns", "wns_throttled")
    assert call("explain", "--host", "removed.invalid", "--fault", "dns", "--json").json["outcome"] == "gone"


def test_a_reason_that_no_row_knows_is_said_to_be_counted() -> None:
    told = call("explain", "--service", "fcm", "--status", "410", "--body", "no such luck", "--json").json
    assert told["known"].startswith("no: ")


def test_an_operators_row_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "answers.toml"
    file.write_text(
        '[[row]]\nid = "us"\nservice = "fcm"\nstatus = 418\noutcome = "refused"\ncode = "teapot"\ndead = "poison"\n'
        'meaning = "Short and stout."\n'
    )
    words = ("explain", "--service", "fcm", "--status", "418", "--json")
    told = call(*words, PUSHOPS_CLASSIFICATION=str(file)).json
    assert (told["row"], told["code"]) == ("us", "teapot")
    assert told["table"].endswith("this row from PUSHOPS_CLASSIFICATION")
    other = tmp_path / "other.toml"
    other.write_text("[[row]]\n")
    broken = call(*words, PUSHOPS_CLASSIFICATION=str(other))
    assert (broken.code, broken.out) == (1, "")
    assert "expected id to be there" in broken.err


def test_the_whole_table_can_be_printed() -> None:
    told = call("explain", "--table", "--json").json
    assert [row["id"] for row in told["rows"]] == [row.id for row in load_table().rows]
    printed = call("explain", "--table").out
    assert "payload_device_limit" in printed
    assert "wns_cache_policy" in printed


def test_a_secret_in_a_body_is_not_repeated() -> None:
    token = "APA91bH1Zj0kNa9wLgA3bXcQ" * 2
    done = call("explain", "--service", "fcm", "--status", "404", "--body", f"no {token}")
    assert token not in done.text


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--service", "fcm"),
        ("--status", "200", "--fault", "dns"),
        ("--fault", "flood"),
        ("--status", "200", "--header", "no colon"),
        ("--status", "many"),
    ],
)
def test_what_is_not_an_answer_is_a_usage_error(words: tuple[str, ...]) -> None:
    done = call("explain", *words)
    assert (done.code, done.out) == (2, "")
