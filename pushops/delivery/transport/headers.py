"""Header lines of an answer, as they came, to what is kept of them."""

from collections.abc import Iterable
from typing import Final

VALUE_MAX: Final = 512  # characters of one header; what is longer tells nothing and is left out
COUNT_MAX: Final = 64


def parse_headers(lines: Iterable[bytes]) -> dict[str, str]:
    """Small headers by lower-case name, repeats joined with ", ". Total: a line without a colon is left out."""
    found: dict[str, str] = {}
    for line in b"".join(lines).decode("latin-1").split("\n"):  # once for all: this runs for every message
        name, colon, value = line.partition(":")
        if colon and len(value) <= VALUE_MAX and len(found) < COUNT_MAX:
            name, value = name.strip().lower(), value.strip()
            if name not in found:
                found[name] = value
            elif len(found[name]) + len(value) < VALUE_MAX:
                found[name] += f", {value}"
    return found
