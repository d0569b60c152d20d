"""Scratch revisions, and migrations in processes of their own that a test can watch and kill."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pushops.db.migrate import VERSIONS
from pushops.sandbox.processes import wait_until

PROGRAM: Final = """
import datetime, pathlib, sys
from pushops.db import lease
from pushops.db.migrate import migrate
from pushops.settings import load_settings
lease.LEASE = datetime.timedelta(seconds=float(sys.argv[2]))
done = migrate(load_settings(), lambda line: print(line, flush=True), versions=pathlib.Path(sys.argv[1]))
print("applied", *done, flush=True)
"""
MODULE: Final = """
from pushops.db.migrate import run_sibling_sql
revision = "{number:04}"
down_revision = {before!r}
def upgrade():
    run_sibling_sql(__file__)
"""
SHIPPED: Final = sorted(path.name[:4] for path in VERSIONS.glob("*.sql"))  # what a new database is given
SECONDS: Final = 30


def write_revisions(folder: Path, *texts: str) -> Path:
    """Write 0001_step.sql and so on, with their modules."""
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts, 1):
        before = f"{number - 1:04}" if number > 1 else None
        (folder / f"{number:04}_step.py").write_text(MODULE.format(number=number, before=before))
        (folder / f"{number:04}_step.sql").write_text(text)
    return folder


class Migration:
    """A running migration: what it has said so far, and its end."""

    def __init__(self, url: str, versions: Path, lease_seconds: float, **settings: str) -> None:
        environment = os.environ | {"PUSHOPS_DATABASE_URL": url}
        environment |= {f"PUSHOPS_{name.upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-W", "error", "-c", PROGRAM, str(versions), str(lease_seconds)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def says(self, text: str) -> None:
        """Wait for a line with ``text``."""
        wait_until(lambda: any(text in line for line in self.lines), SECONDS, f"a line with {text!r}")

    def ends(self) -> list[str]:
        """Wait for its end and return the revisions that it applied."""
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.returncode == 0, self.lines
        return self.lines[-1].split()[1:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip())


@contextmanager
def migration(url: str, versions: Path, lease_seconds: float = 30, **settings: str) -> Iterator[Migration]:
    """Start a migration; it is killed at the end of the block if it still runs."""
    started = Migration(url, versions, lease_seconds, **settings)
    try:
        yield started
    finally:
        started.kill()
