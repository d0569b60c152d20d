"""The values of a row of TOML, one kind at a time; what is wrong is noted, and reading goes on."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

Word = TypeVar("Word", bound=StrEnum)


@dataclass
class Reader:
    """A row's values one by one; what is wrong is noted and reading goes on."""

    raw: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)

    def fault(self, key: str, expected: str) -> None:
        self.faults.append(f"row {self.raw.get('id', '?')!s:.40}: expected {key} to be {expected}")

    def words(self, key: str) -> list[Any]:
        value = self.raw.get(key, [])
        return value if isinstance(value, list) else [value]

    def text(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.raw.get(key)
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        self.fault(key, expected)
        return ""

    def texts(self, key: str) -> tuple[str, ...]:
        """In the form in which bodies are compared: lower case, white space as one blank."""
        found = self.words(key)
        if all(isinstance(each, str) and each.strip() for each in found):
            return tuple(" ".join(each.casefold().split()) for each in found)
        self.fault(key, "a text or a list of texts")
        return ()

    def word(self, key: str, words: type[Word], default: Word | None = None) -> Word:
        value = self.raw.get(key, default)
        if isinstance(value, str) and value in set(words):
            return words(value)
        self.fault(key, f"one of {', '.join(words)}")
        return next(iter(words))

    def errnos(self, key: str) -> frozenset[int | None]:
        found = [None if each == "null" else each for each in self.words(key)]
        if all(each is None or is_integer(each) for each in found):
            return frozenset(found)
        self.fault(key, 'a number, "null" or a list of them')
        return frozenset()


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Value = TypeVar("Value")


def optional(reader: Reader, key: str, parse: Callable[[object], Value], expected: str) -> Value | None:
    if key not in reader.raw:
        return None
    try:
        return parse(reader.raw[key])
    except ValueError:
        reader.fault(key, expected)
        return None
