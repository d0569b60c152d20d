"""A finding: what was looked at, what was expected, what was found, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but will surprise somebody
    PROBLEM = "problem"  # does not work, or not safely


@dataclass(frozen=True)
class Finding:
    """``advice`` is empty where nothing is to be done."""

    name: str
    level: Level
    expected: str
    found: str
    advice: str = ""


def fine(name: str, expected: str, found: str) -> Finding:
    return Finding(name, Level.OK, expected, found)


def warning(name: str, expected: str, found: str, advice: str) -> Finding:
    return Finding(name, Level.WARNING, expected, found, advice)


def problem(name: str, expected: str, found: str, advice: str) -> Finding:
    return Finding(name, Level.PROBLEM, expected, found, advice)
