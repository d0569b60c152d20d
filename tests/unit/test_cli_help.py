"""Help, versions and mistakes: at once, and without a database."""

import re

import pytest

from pushops.cli.exits import Exit
from pushops.cli.main import NOUNS
from tests.commands import call, run_python
from tests.sweeping import ROOT

# What a person waits for: half a second of imports that help does not need.
HEAVY = ("celery", "kombu", "psycopg", "pydantic", "sqlalchemy", "redis", "cryptography", "sentry_sdk")


def test_help_names_every_noun_and_the_exit_codes() -> None:
    done = call("--help")
    assert done.code == 0
    assert all(noun in done.out for noun in NOUNS)
    assert "3 held by a valve" in " ".join(done.out.split())


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_help_of_its_own(noun: str) -> None:
    done = call(noun, "--help")
    assert done.code == 0
    assert f"pushops {noun}" in done.out


@pytest.mark.parametrize("words", [("sweep", "run"), ("run", "watch"), ("subscription", "import"), ("migrate",)])
def test_commands_that_cron_calls_say_what_their_exit_codes_mean(words: tuple[str, ...]) -> None:
    assert "5 time budget spent" in " ".join(call(*words, "--help").out.split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom pushops.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run_python(code).out.rstrip().endswith("heavy: []")


def test_version_is_the_packages() -> None:
    assert call("--version").out.startswith("pushops 0.")


def test_a_misspelt_noun_is_suggested() -> None:
    done = call("sweeps", "list")
    assert done.code == 2
    assert "sweep" in done.err


def test_a_misspelt_sweep_is_suggested() -> None:
    done = call("sweep", "run", "purge-tombstonse", "--inline")
    assert done.code == 2
    said = " ".join(done.err.replace("│", " ").split())  # as wide as the terminal
    assert "did you mean purge-tombstones?" in said


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "run", "purge-tombstones", "--inline"),
        ("sweep", "run", "purge-tombstones"),
        ("sweep", "preview", "purge-tombstones"),
        ("run", "list"),
        ("migrate",),
        ("subscription", "list"),
    ],
)
def test_without_a_database_and_a_sandbox_nothing_starts(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "pushops: expected PUSHOPS_DATABASE_URL to be set, or a sandbox that is up (pushops sandbox up)\n"
    )


def test_a_broker_alone_is_no_reason_to_use_another_database() -> None:
    done = call("sweep", "run", "purge-tombstones", PUSHOPS_BROKER_URL="redis://127.0.0.1:1/0")
    assert done.code == 1
    assert "PUSHOPS_DATABASE_URL" in done.err


def test_the_documented_exit_codes_are_the_ones_there_are() -> None:
    documented = re.findall(r"^\| (\d) \|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert [int(code) for code in documented] == [int(code) for code in Exit]
