"""Running a benchmark as its target does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]


def run_bench(folder: Path, module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The last line of a benchmark's output; it must have left nothing in ``folder``."""
    command = [sys.executable, "-m", module, *arguments]
    told = os.environ | {"TMPDIR": str(folder)} | environment
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
