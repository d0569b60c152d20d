"""What the documentation lists is what the code has."""

from datetime import timedelta
from pathlib import Path

import pytest

from pushops.events.catalog import as_markdown
from pushops.settings import Settings, parse_duration
from pushops.settings.load import env_name
from pushops.settings.model import CADENCED

DOCS = Path(__file__).parents[2] / "docs"


def test_the_events_page_is_what_the_catalog_prints() -> None:
    found = (DOCS / "events.md").read_text(encoding="utf-8")
    assert found == as_markdown(), "say: make docs"


# What a default of None or of nothing comes to, in the page's words.
WITHOUT = {"none", "the only one", "the broker's", "the system's"}


def defaults_on_the_page() -> dict[str, str]:
    """The default column of docs/settings.md by name, without its code marks."""
    lines = (DOCS / "settings.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip(" `*") for cell in line.split("|")] for line in lines if line.startswith("| `PUSHOPS_")]
    return {name: default for _, name, default, *_ in cells}


def reads_as(found: str, default: object) -> bool:
    """Durations by their length: the page says 72h where it speaks of a weekend, and 90d elsewhere."""
    if isinstance(default, timedelta):
        return parse_duration(found) == default
    return found == (str(default).lower() if isinstance(default, bool) else str(default))


@pytest.mark.parametrize("field", sorted(Settings.model_fields))
def test_the_settings_page_names_the_default_in_force(field: str) -> None:
    default, found = Settings.model_fields[field].default, defaults_on_the_page()[env_name(field)]
    assert found in WITHOUT if default in (None, {}, []) else reads_as(found, default)


def test_the_settings_page_marks_what_follows_the_cadence() -> None:
    marked = {line.split("`")[1] for line in (DOCS / "settings.md").read_text().splitlines() if "` * |" in line}
    assert marked == {env_name(name) for name in CADENCED}


@pytest.mark.parametrize("field", sorted(Settings.model_fields))
def test_every_setting_stands_on_the_settings_page(field: str) -> None:
    assert f"`{env_name(field)}`" in (DOCS / "settings.md").read_text(encoding="utf-8")
