"""Calling the command line, in this process or as one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from pushops.cli.main import app
from pushops.settings import Settings
from tests.sweeping import ROOT, as_environment


@dataclass(frozen=True)
class Called:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out + self.err


def call(*arguments: str, settings: Settings | None = None, stdin: str | bytes = "", **environment: str) -> Called:
    """The command in this process, under the environment of these settings."""
    env = {} if settings is None else as_environment(settings)
    done = CliRunner().invoke(app, list(arguments), input=stdin, env={**env, **environment, "COLUMNS": "80"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Called(done.exit_code, done.stdout, done.stderr)


def spawn(*arguments: str, settings: Settings | None = None, **environment: str) -> "subprocess.Popen[str]":
    """The command as a process, through the console script's own entry."""
    env = {} if settings is None else as_environment(settings)
    return subprocess.Popen(
        [sys.executable, "-c", "from pushops.cli.main import run; run()", *arguments],
        env={**os.environ, **env, **environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_python(code: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Called:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(environment or {}), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Called(done.returncode, done.stdout, done.stderr)
