"""``pushops partition``: what an operator sees, is told, and may drop."""

import json

import pytest

from pushops.errors import SettingsError
from pushops.retention.partitions import service
from pushops.runtime import Runtime
from pushops.settings import Settings, load_settings
from pushops.sweeps import service as sweeps
from tests.commands import Called, call
from tests.cutting import SECTION, Pg, attached, make_table


def partition(settings: Settings, *arguments: str, **changes: str) -> Called:
    configured = json.dumps({"clicks": {**SECTION, **changes}})
    return call("partition", *arguments, settings=settings, PUSHOPS_PARTITIONS=configured)


def test_an_operator_sees_plans_creates_and_retires(settings: Settings, pg: Pg) -> None:
    make_table(pg, 30, 3)
    listed = partition(settings, "list", "clicks")
    assert (listed.code, "clicks_old_30" in listed.out, "no partition for" in listed.out) == (0, True, True)
    planned = partition(settings, "plan", "--json")
    assert [fate["did"] for fate in planned.json] == ["would make"] * 3 + ["would drop"]
    assert partition(settings, "create", "clicks", "--dry-run").out.count("would make") == 3
    assert len(attached(pg)) == 2
    assert partition(settings, "create", "clicks").code == 0
    shown = partition(settings, "retire", "clicks")
    assert (shown.code, "--yes does it" in shown.out, len(attached(pg))) == (0, True, 5)
    done = partition(settings, "retire", "--yes", "--json")
    assert [(fate["partition"], fate["did"]) for fate in done.json] == [("clicks_old_30", "dropped")]
    assert partition(settings, "plan").out.strip() == "nothing to do"


def test_codes_tell_what_failed_from_what_is_held(settings: Settings, runtime: Runtime, pg: Pg) -> None:
    assert partition(settings, "create", "clicks").code == 1  # no such table
    make_table(pg, 30, 3)
    sweeps.pause_named(runtime, service.NAME, actor="me", why="auditors")
    held = partition(settings, "retire", "clicks", "--yes")
    assert (held.code, "auditors" in held.out, len(attached(pg))) == (3, True, 2)
    named = partition(settings, "list", "klicks")
    assert (named.code, "did you mean clicks?" in named.err) == (1, True)


def test_a_shortened_retention_is_acknowledged_by_name(settings: Settings, pg: Pg) -> None:
    make_table(pg, 30, 3, 2)
    assert partition(settings, "retire", "clicks", "--yes", retention="60d").code == 0
    assert partition(settings, "retire", "clicks", "--yes").code == 3
    assert "over after 7d" in partition(settings, "acknowledge", "clicks").out
    assert partition(settings, "retire", "clicks", "--yes").code == 0
    assert len(attached(pg)) == 2


def test_the_doctor_tells_what_is_missing_and_what_cannot_be_kept(settings: Settings, pg: Pg) -> None:
    def findings() -> list[str]:
        configured = json.dumps({"clicks": SECTION})
        found = call("check", "--json", settings=settings, PUSHOPS_PARTITIONS=configured).json
        return [each["found"] for each in found["findings"] if each["name"] == "partitions"]

    assert any("got none" in found for found in findings())
    make_table(pg, 3)
    assert any("no partition for" in found for found in findings())
    partition(settings, "create")
    assert findings() == ["so it is", "so it is"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"interval": "fortnight"},
            "expected interval of [partitions.clicks] to be day, week or month, got 'fortnight'",
        ),
        ({"retension": "7d"}, "unknown setting retension in [partitions.clicks], did you mean retention?"),
        ({"retention": "0d"}, "expected retention of [partitions.clicks] to be a duration between 1d and 3650d"),
        ({"unfinished": ""}, "expected unfinished of [partitions.clicks] to be a condition on rows"),
        ({"table": "clicks"}, "expected table of [partitions.clicks] to be a table with its schema"),
    ],
)
def test_a_wrong_section_says_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("PUSHOPS_PARTITIONS", json.dumps({"clicks": {**SECTION, **changes}}))
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert said in str(refused.value)


def test_a_section_without_its_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    section = {name: value for name, value in SECTION.items() if name != "unfinished"}
    monkeypatch.setenv("PUSHOPS_PARTITIONS", json.dumps({"clicks": section}))
    with pytest.raises(SettingsError, match=r"expected unfinished of .* to be a condition on rows .* got none"):
        load_settings()
