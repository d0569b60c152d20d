"""A place for a benchmark's run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder that the servers' user can enter, which pytest's own are not."""
    made = servers.new_folder("pushops-bench-test")
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)
