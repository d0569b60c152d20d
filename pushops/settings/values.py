"""The kinds of value that a setting may have; each says in words what it expects."""

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function, no_info_plain_validator_function

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h|d|w)")


@dataclass(frozen=True)
class Expected:
    """What a setting accepts, in words; errors and ``pushops config`` print it."""

    words: str


def parse_duration(value: object) -> timedelta:
    """``90d``, ``72h``, ``1.5s``, ``100ms``: a number and a unit, since a bare number has meant too many things."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a duration")
    try:
        return timedelta(seconds=float(match["number"]) * _UNITS[match["unit"]])
    except OverflowError:
        raise ValueError("not a duration, too long") from None


def format_duration(value: timedelta) -> str:
    """The largest unit that divides the value: the form that ``parse_duration`` reads back."""
    milliseconds = value // timedelta(milliseconds=1)
    for unit, size in reversed(_UNITS.items()):
        step = round(size * 1000)
        if milliseconds and milliseconds % step == 0 and unit != "w":
            return f"{milliseconds // step}{unit}"
    return f"{milliseconds}ms"


@dataclass(frozen=True)
class Duration(Expected):
    """Both ends included; zero and negative values never mean "for ever" or "everything"."""

    def __init__(self, floor: str, ceiling: str) -> None:
        super().__init__(f"a duration between {floor} and {ceiling}, such as 90d, 12h, 30s or 100ms")
        object.__setattr__(self, "_ends", (parse_duration(floor), parse_duration(ceiling)))

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def _check(self, value: object) -> timedelta:
        low, high = self._ends  # type: ignore[attr-defined]  # set above: the dataclass is frozen
        found = parse_duration(value)
        if not low <= found <= high:
            raise ValueError("out of range")
        return found


@dataclass(frozen=True)
class Between(Expected):
    """An integer or a share with both ends included; a boolean is no number."""

    low: float = 0
    high: float = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        inner = handler(source)
        return no_info_after_validator_function(self._check, inner)

    def _check(self, value: float) -> float:
        if not self.low <= value <= self.high:
            raise ValueError("out of range")
        return value


def integer(low: int, high: int) -> Between:
    words = "a positive integer" if low == 1 else "an integer"
    return Between(f"{words} between {low} and {high}", low, high)


def share(low: float, high: float) -> Between:
    return Between(f"a share between {low} and {high}", low, high)


def json_object(value: object) -> object:
    """The environment has JSON text, the file a table; a bad text is an error of this setting like any other."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except RecursionError as error:
        raise ValueError("not a JSON object") from error


def is_version(key_id: str) -> bool:
    """Whether a seal key may be called so; no key of 32 bytes looks like it."""
    return re.fullmatch(r"[0-9]{1,9}", key_id) is not None


def looks_like_key(key_id: str) -> bool:
    """Whether this is 32 bytes in base64url: a key where its id belongs."""
    return re.fullmatch(r"[A-Za-z0-9_-]{43}=?", key_id) is not None


def _check_identifier(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", value):
        raise ValueError("not an identifier")
    return value


def _check_file(value: object) -> Path | None:
    return None if value is None or value == "" else Path(str(value))


Identifier = Annotated[
    str, BeforeValidator(_check_identifier), Expected("a lower-case SQL identifier of at most 63 characters")
]
OptionalFile = Annotated[Path | None, BeforeValidator(_check_file), Expected("a path")]
PayloadUrl = Annotated[
    str | None,
    Field(pattern=r"^(?:(?:s3a?|gs|az|adl|azure|abfss?)://[\w.-][^@?#\s]*|file:///[^@?#\s]*|memory:///?)$"),
    Expected("a URL such as s3://bucket/path, gs://, az:// or file:///path, without credentials"),
]
