"""Keys as settings lines: printed once, on stdout only."""

from collections.abc import Mapping
from typing import Any

from pushops.cli.output import print_json, say


def print_lines(lines: Mapping[str, str], beside: Mapping[str, Any], *, json_: bool) -> None:
    """Lines for an environment file; as JSON with what stands ``beside`` them."""
    if json_:
        print_json({**lines, **beside})
        return
    for name, value in lines.items():
        say(f"{name}={_quoted(value)}")


def _quoted(value: str) -> str:
    """JSON in single quotes: a shell, an environment file and docker compose all read it the same."""
    return f"'{value}'" if '"' in value else value
