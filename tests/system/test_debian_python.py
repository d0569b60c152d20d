"""Debian 12's Python is 3.11.2: older than 3.11.3, from which on redis needs no async-timeout."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.made import make_settings
from tests.sweeping import ROOT, as_environment
from tests.system.conftest import ENVIRONMENT

PYTHON: Final = "/usr/bin/python3"
SOURCES: Final = ("pushops", "pyproject.toml", "README.md", "LICENSE")
KEPT: Final = ROOT / "build" / "debian-python"
INSTALL: Final = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
MIGRATE: Final = """
from pushops.db.migrate import migrate
from pushops.settings import load_settings
print(*migrate(load_settings()))"""
TASKS: Final = """
import pushops, pushops.tasks, redis.asyncio
print(pushops.__file__, *sorted(name for name in pushops.tasks.app.tasks if name.startswith("pushops.")))"""

pytestmark = pytest.mark.timeout(900)  # the first time everything is downloaded


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the lock's packages and ours, installed from a copy of the sources."""
    folder = tmp_path_factory.mktemp("debian")
    found = locked(folder)
    ours = ["--force-reinstall", "--no-deps", "--no-build-isolation", str(copy(folder / "source"))]
    run(found, folder, *INSTALL, *ours)
    return found


def locked(folder: Path) -> Path:
    """An environment with what the lock names; kept until the lock changes, since pip takes two minutes."""
    lock = ROOT / "requirements.lock"
    found, done = KEPT / "bin" / "python", KEPT / "lock.sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not done.exists() or done.read_text() != digest:
        run(Path(PYTHON), folder, "-m", "venv", "--clear", str(KEPT))
        run(found, folder, *INSTALL, "--require-hashes", "-r", str(lock))
        done.write_text(digest)
    return found


def copy(target: Path) -> Path:
    """The sources alone: a build leaves files beside them, and takes what an earlier one left."""
    target.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return target


def run(python: Path, folder: Path, *arguments: str, **environment: str) -> str:
    """What it printed. Pip reaches the index as the machine is set up to, so it has the machine's environment."""
    done = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=ENVIRONMENT | {"PUSHOPS_CONFIG": os.devnull} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_it_is_debians(python: Path, tmp_path: Path) -> None:
    said = run(python, tmp_path, "-c", "import sys; print(sys.base_prefix, *sys.version_info[:2])")
    assert said == "/usr 3 11"


def test_the_package_and_its_tasks_import(python: Path, tmp_path: Path) -> None:
    said = run(python, tmp_path, "-c", TASKS)
    assert said.startswith(str(python.parent.parent))
    assert "pushops.sweep_batches" in said


def test_the_packages_agree(python: Path, tmp_path: Path) -> None:
    assert run(python, tmp_path, "-m", "pip", "check") == "No broken requirements found."


def test_the_installed_package_brings_its_migrations(python: Path, tmp_path: Path, empty_database_url: str) -> None:
    settings = as_environment(make_settings(empty_database_url))
    assert run(python, tmp_path, "-c", MIGRATE, **settings).split()[0] == "0001"


def test_the_command_runs(python: Path, tmp_path: Path) -> None:
    assert "migrate" in run(python.with_name("pushops"), tmp_path, "--help")
