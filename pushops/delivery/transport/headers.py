"""Header lines of an answer, as they came, to what is kept of them."""

from collections.abc import Iterable
from typing import Final

VALUE_MAX: Final = 512  # characters of one header; what is longer tells nothing and is left out
COUNT_MAX: Final = 64


def parse_headers(lines: Iterable[bytes]) -> dict[str, str]:
    """Small headers by lower-case name, repeats joined with ", ". Total: a line without a colon is left out."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon and len(value) <= VALUE_MAX and len(found) < COUNT_MAX:
            _add(found, name.strip().lower().decode("latin-1"), value.strip().decode("latin-1"))
    return found


def _add(found: dict[str, str], name: str, value: str) -> None:
    joined = f"{found[name]}, {value}" if name in found else value
    if len(joined) <= VALUE_MAX:
        found[name] = joined
