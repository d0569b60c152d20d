"""The table holds together, an operator's rows go over it, and the documentation shows it."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify import Dead, Lifecycle, Outcome, Retry, Scope, classify, load_table, table_of, wording
from pushops.delivery.classify.checking import ALLOWED
from pushops.delivery.classify.parsing import KEYS, parse_row
from pushops.errors import SettingsError
from pushops.settings import load_settings
from tests.answers import text

DOCS = Path(__file__).parents[2] / "docs"

GOOD = """
[[row]]
id = "ours-1"
service = "apple"
status = 403
reason = ["NewReason"]
outcome = "denied"
code = "new_reason"
retry = "hold"
dead = "hold_row"
meaning = "A reason that came after this release."
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "answers.toml"


def refused(file: Path, rows: str) -> list[str]:
    file.write_text(rows)
    with pytest.raises(SettingsError) as caught:
        load_table(file)
    return str(caught.value).splitlines()


def test_the_documentation_shows_the_table() -> None:
    assert (DOCS / "answers.md").read_text(encoding="utf-8") == wording.as_markdown(load_table()), "say: make docs"


def test_every_word_is_explained() -> None:
    assert (set(wording.SCOPE), set(wording.LIFECYCLE)) == (set(Scope), set(Lifecycle))
    assert (set(wording.RETRY), set(wording.DEAD), set(ALLOWED)) == (set(Retry), set(Dead), set(Outcome))


def test_an_operators_row_is_added_and_told_from_ours(file: Path) -> None:
    file.write_text('version = "us.3"\n' + GOOD)
    table = load_table(file)
    verdict = classify(text(403, '{"reason": "newREASON"}'), "apple", table)
    assert (verdict.row, verdict.code, table.version) == ("ours-1", "new_reason", f"{load_table().version}+us.3")
    assert len(table.rows) == len(load_table().rows) + 1
    assert [row.id for row in table.rows if not row.ours] == ["ours-1"]


def test_an_operators_row_takes_the_place_of_ours_with_its_id(file: Path) -> None:
    file.write_text(
        '[[row]]\nid = "57"\nservice = "wns"\nstatus = 404\noutcome = "gone"\ncode = "gone"\nlifecycle = "revoke"\n'
        'meaning = "We believe them."\n'
    )
    table = load_table(file)
    assert len(table.rows) == len(load_table().rows)
    assert classify(text(404), "wns", table).outcome is Outcome.GONE
    assert classify(text(404), "wns", load_table()).outcome is Outcome.NOT_FOUND


def test_the_setting_names_the_file_and_extra_hosts_the_services(file: Path) -> None:
    file.write_text(GOOD.replace("apple", "ntfy"))
    table = table_of(load_settings(classification=file, extra_hosts={"push.example.org": "ntfy"}))
    assert classify(text(403, '{"reason": "NewReason"}'), "ntfy", table).row == "ours-1"
    assert (classify(text(404), "ntfy", table).row, classify(text(404), "else", table).row) == ("68b", "65")
    with pytest.raises(SettingsError, match="row ours-1: expected service to be of"):
        table_of(load_settings(classification=file))


def test_all_faults_are_told_at_once(file: Path) -> None:
    found = refused(
        file,
        GOOD.replace('"hold"', '"later"').replace("status = 403", "status = 4030")
        + '[[row]]\nid = "x"\nservise = "fcm"\noutcome = "gone"\ncode = "Gone!"\nmeaning = "m"\n',
    )
    assert [line.removeprefix("expected the classification to hold together: ") for line in found] == [
        'row ours-1: expected status to be a number up to 999, "4xx", ">=600", "<200", or a list of them',
        "row ours-1: expected retry to be one of no, backoff, after, at_once, resign, hold, ambiguous",
        "row x: unknown key servise",
        "row x: expected service to be there",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('service = "apple"', 'service = "aple"', "expected service to be of any, apple, fcm"),
        ('service = "apple"', 'service = ["any", "fcm"]', "expected service to be either any or names"),
        ("status = 403", 'fault = "teapot"', "expected fault to be of dns, connect"),
        ("status = 403", "errno = [true]\nstatus = 403", "expected errno to be a number"),
        ("status = 403", 'status = 403\nheader = ["a b"]', "expected header to be"),
        ("status = 403", "status = 403\nwait = 900", "expected wait to be a duration"),
        ("status = 403", "status = 403\nmost = 0", "expected most to be a positive integer"),
        ("status = 403", 'status = 403\nhost = "HOST"', "expected host to be"),
        ("status = 403", "status = 403\ntext = [3]", "expected text to be"),
        ("status = 403", "status = 403\nknown = [3.5]", "expected known to be"),
        ("status = 403\n", "", "expected status or fault to be there"),
        ('code = "new_reason"', 'code = "errno_{errno}"', "expected {errno} in code only where errno is given"),
        ('code = "new_reason"', 'code = "{status}"\nfault = "dns"', "expected {status} in code only where no fault"),
        ('meaning = "A reason that came after this release."', 'meaning = ""', "expected meaning to be a line"),
        ('id = "ours-1"', 'id = ""', "expected id to be letters"),
        ("[[row]]", '[[row]]\n"" = 1', "unknown key"),
        ('outcome = "denied"', 'outcome = "throttled"', "expected dead of throttled to be no, got hold_row"),
        (
            'retry = "hold"',
            'retry = "hold"\nlifecycle = "revoke"',
            "expected lifecycle of denied to be none, got revoke",
        ),
        ('retry = "hold"', 'retry = "hold"\nmost = 3', "expected wait and most only with retry"),
    ],
)
def test_a_row_that_cannot_be_is_refused_by_name(file: Path, old: str, new: str, expected: str) -> None:
    assert any(expected in line for line in refused(file, GOOD.replace(old, new)))


@pytest.mark.parametrize("reason", ['"BadJwtToken"', '"NewReason", "badjwttoken"'])
def test_two_rows_that_the_same_answer_fits_alike_are_both_named(file: Path, reason: str) -> None:
    found = refused(file, GOOD.replace('"NewReason"', reason))
    (only,) = found
    assert "rows 41 and ours-1: expected one of them to be more specific, the same answer fits both" in only


def test_two_bare_rows_for_one_status_are_refused(file: Path) -> None:
    found = refused(file, GOOD.replace('reason = ["NewReason"]\n', "").replace("apple", "wns"))
    assert any("rows 56 and ours-1" in line for line in found)


def test_an_id_stands_once(file: Path) -> None:
    assert any("row ours-1: expected an id of its own" in line for line in refused(file, GOOD + GOOD))
    replaced = GOOD.replace("ours-1", "41")
    assert any("row 41: expected an id of its own" in line for line in refused(file, replaced + replaced))


def test_a_gap_is_refused(file: Path) -> None:
    row = '[[row]]\nid = "72"\nservice = "fcm"\nstatus = "5xx"\noutcome = "unavailable"\ncode = "x"\n'
    found = refused(file, row + 'retry = "backoff"\ndead = "exhausted"\nmeaning = "m"\n')
    assert "none takes 500, 501, 502, 503, 504 and 95 more" in found[0]
    row = row.replace('"72"', '"73"').replace('status = "5xx"', "status = 599")
    found = refused(file, row + 'retry = "backoff"\ndead = "exhausted"\nmeaning = "m"\n')
    assert found == [
        "expected the classification to hold together: expected a row of service any for every fault, none takes dns"
    ]


@pytest.mark.parametrize("content", ["not toml [", "row = 3", "version = 3", "rows = []", "[[row]]\nid = [1]"])
def test_a_file_that_is_no_table_is_refused(file: Path, content: str) -> None:
    assert refused(file, content)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected PUSHOPS_CLASSIFICATION to name a TOML file"):
        load_table(tmp_path / "none.toml")


def test_a_file_in_another_encoding_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="PUSHOPS_CLASSIFICATION"):
        load_table(file)


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["any", "4xx", "dns", "no"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
RAW = tomllib.loads(GOOD)["row"][0]


@given(change=st.dictionaries(st.sampled_from(sorted(KEYS)), VALUES, max_size=4))
def test_whatever_a_file_has_is_a_row_or_has_faults(change: dict[str, object]) -> None:
    row, faults = parse_row({**RAW, **change}, frozenset(), ours=False)
    assert (row is None) == bool(faults)


def test_every_bare_status_and_fault_has_one_winner_for_any_service() -> None:
    table = load_table()
    for subject in (*range(1000), *Fault):
        answer = Answer(None, subject) if isinstance(subject, Fault) else Answer(subject)
        assert classify(answer, "ntfy", table).row
