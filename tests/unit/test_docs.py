"""What the documentation lists is what the code has."""

from pathlib import Path

import pytest

from pushops.events.catalog import as_markdown
from pushops.settings import Settings
from pushops.settings.load import env_name

DOCS = Path(__file__).parents[2] / "docs"


def test_the_events_page_is_what_the_catalog_prints() -> None:
    found = (DOCS / "events.md").read_text(encoding="utf-8")
    assert found == as_markdown(), "say: make docs"


@pytest.mark.parametrize("field", sorted(Settings.model_fields))
def test_every_setting_stands_on_the_settings_page(field: str) -> None:
    assert f"`{env_name(field)}`" in (DOCS / "settings.md").read_text(encoding="utf-8")
