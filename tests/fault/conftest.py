"""Settings of fault tests: a broker, small pages, and the shortest leases that the settings accept."""

from collections.abc import Iterator

import pytest

from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from tests.sweeping import quick


@pytest.fixture
def hurried(settings: Settings, valkey_url: str) -> Settings:
    return quick(settings, valkey_url)


@pytest.fixture
def engine(hurried: Settings) -> Iterator[Runtime]:
    """Make this process a dispatcher: what ``start`` and ``tend`` of tests.sweeping work with."""
    opened = open_runtime(hurried)
    yield opened
    opened.close()
