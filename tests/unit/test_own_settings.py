"""Sections of tables of one's own: what is refused while reading them, and names that nobody else has."""

from pathlib import Path
from typing import Any

import pytest

from pushops.errors import SettingsError
from pushops.retention.own import predicates
from pushops.settings import load_settings

SECTION = '[sweeps.links]\ntable = "public.link"\n'


def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> str:
    (tmp_path / "pushops.toml").write_text(text)
    monkeypatch.setenv("PUSHOPS_CONFIG", str(tmp_path / "pushops.toml"))
    with pytest.raises(SettingsError) as refused:
        load_settings()
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SECTION, 'expected either expires = "COLUMN" or age = "COLUMN" with a retention, in [sweeps.links]'),
        (SECTION + 'expires = "a"\nage = "b"', 'expected either expires = "COLUMN" or age'),
        (SECTION + 'age = "a"\npredicate = "b"', "expected a retention with age"),
        (SECTION + 'age = "a"\nretention = "90d"', "expected a predicate with age"),
        (SECTION + 'expire = "a"', "unknown setting expire in [sweeps.links], did you mean expires?"),
        (
            SECTION + 'expires = "A b"',
            "expected expires of [sweeps.links] to be the column that says when a row is over",
        ),
        (SECTION + 'expires = "a"\nretention = "90"', "expected retention of [sweeps.links] to be a duration between"),
        (SECTION + 'expires = "a"\nschedule = "24:00"', "expected schedule of [sweeps.links] to be a time of the day"),
        (SECTION + 'expires = "a"\narchive = "../x"', "expected archive of [sweeps.links] to be"),
        (SECTION + 'expires = "a"\nmax_share = 2', "expected max_share of [sweeps.links] to be a share"),
        (SECTION + 'expires = "a"\nzone = "x\' OR true"', "expected zone of [sweeps.links] to be a time zone"),
        (
            '[sweeps.links]\ntable = "link"\nexpires = "a"',
            "expected table of [sweeps.links] to be a table with its schema",
        ),
        ('[sweeps.purge-audit]\ntable = "public.link"\nexpires = "a"', "of no sweep that there is"),
        ('[sweeps.Links]\ntable = "public.link"\nexpires = "a"', "NAME of lower-case letters"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    assert words in said(monkeypatch, tmp_path, text)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("((state)::text = 'done'::text)", [("state", "done", False)]),
        ("(state = ANY ('{done,failed}'::text[]))", [("state", "{done,failed}", False)]),
        (
            "((state <> ALL ('{a,b}'::text[])) AND (kind <> 'it''s'::text))",
            [("state", "{a,b}", True), ("kind", "it's", True)],
        ),
        ("(lower(state) = 'done'::text)", []),
        ("(n > 3)", []),
    ],
)
def test_constants_are_found_in_a_condition_as_postgresql_writes_it(condition: str, found: list[Any]) -> None:
    seen = predicates.compared(condition, {"state", "kind", "n"})
    assert [(one.column, one.value, one.negative) for one in seen] == found
