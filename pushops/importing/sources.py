"""Where rows come from: JSON lines or CSV, read as they are needed and numbered from 1, and nothing held in memory."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeAlias, cast

from pushops.errors import RefusedError
from pushops.importing.names import FIELDS, field_of
from pushops.subscriptions.rejection import describe, rejection

LONGEST: Final = 64 * 1024  # bytes of a line; a subscription has under five thousand
_SNIFFED: Final = 16 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_decode: Final = json.JSONDecoder().decode
_SHAPES: Final = 100  # sets of names; a store has a handful, a stranger's file as many as it has lines
_DELIMITERS: Final = (",", ";", "\t", "|")
_NAME: Final = re.compile(r"[\w .-]{1,64}")  # no URL, and shorter than a key
_LOCATED: Final = ("endpoint", "subscription")  # one of them must be there

Names: TypeAlias = Mapping[str, str]  # a member's or a column's name to ours, beyond what is known
Raw: TypeAlias = bytes | Sequence[Any] | None  # None: longer than anything that is meant
Numbered: TypeAlias = tuple[int, Raw]


@dataclass(frozen=True)
class Lines:
    """How a raw row becomes one under our names: an object a line. ``known`` remembers the last names of members."""

    names: Names = field(default_factory=dict)
    known: dict[tuple[str, ...], tuple[str | None, ...]] = field(default_factory=dict)

    def row(self, raw: Raw) -> Mapping[str, Any]:
        """Raises RejectionError."""
        if raw is None:
            raise rejection("line", "line_too_long", f"at most {LONGEST} bytes", "more")
        found = _json(bytes(raw))
        if not isinstance(found, dict):
            raise rejection("line", "not_an_object", "a JSON object", describe(found))
        given = tuple(found)
        ours = self.known.get(given) or self._learn(given)
        pairs = zip(ours, found.values(), strict=True)
        return {name: value for name, value in pairs if name is not None and value is not None}

    def _learn(self, given: tuple[str, ...]) -> tuple[str | None, ...]:
        """A member that was mapped is what it was mapped to, whatever else would be known as that."""
        if len(self.known) >= _SHAPES:
            self.known.clear()
        mapped = {self.names[name] for name in given if name in self.names}
        by_name = {name: field_of(name) or name for name in given}
        ours = (self.names.get(name) or (None if by_name[name] in mapped else by_name[name]) for name in given)
        return self.known.setdefault(given, tuple(ours))


@dataclass(frozen=True)
class Columns:
    """The same of values in columns, by their places; ``width`` is how many there must be."""

    places: Mapping[str, int]
    width: int

    def row(self, raw: Raw) -> Mapping[str, Any]:
        if raw is None or len(raw) != self.width:
            raise rejection("line", "bad_row", f"{self.width} columns", f"{len(raw or ())}")
        return {name: raw[place] for name, place in self.places.items() if raw[place] not in ("", None)}


Form: TypeAlias = Lines | Columns


@dataclass(frozen=True)
class Source:
    """``total`` is how many rows there are, where that is known."""

    form: Form
    rows: Iterator[Numbered]
    total: int | None = None


def read_file(file: IO[bytes], how: str, names: Names, total: int | None = None) -> Source:
    """``how`` is jsonl, csv or auto, which looks at the first character. Raises RefusedError where it cannot be."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    start = buffered.peek(_SNIFFED)[:_SNIFFED]
    if how == "jsonl" or (how == "auto" and _first(start) in (b"{", b"[", b"")):
        if _first(start) == b"[":
            raise RefusedError("expected one JSON object a line, got an array; jq -c '.[]' FILE prints its lines")
        return Source(Lines(names), _lines(buffered), total)
    return _read_csv(buffered, start, names, total)


def columns_of(header: Sequence[str], names: Names, what: str) -> Columns:
    """Which column is what; raises RefusedError where none holds the endpoint, or a named one is not there once."""
    missing = [column for column in names if column not in header]
    if missing:
        raise RefusedError(f"expected {what} to have a column {missing[0]!r}, got {_named(header)}")
    twice = [name for name, times in Counter(header).items() if times > 1 and (name in names or field_of(name))]
    if twice:
        raise RefusedError(f"expected {what} to have one column {twice[0]!r}, got more: which one is meant?")
    named = {our: header.index(column) for column, our in names.items()}
    found = {our: place for place, column in enumerate(header) if (our := field_of(column)) is not None}
    places = {**found, **named}
    if not any(name in places for name in _LOCATED):
        raise RefusedError(f"expected {what} to have a column for the endpoint, got {_named(header)}: see --map")
    return Columns(places, len(header))


def _named(header: Sequence[str]) -> str:
    """The columns' names. A first line that is none of names may be somebody's endpoint and keys: it is not shown."""
    if all(map(_NAME.fullmatch, header)):
        return ", ".join(header)
    return f"{len(header)} that are no names (is the first line a row?)"


def parse_names(pairs: Sequence[str]) -> dict[str, str]:
    """``endpoint=push_url`` as {"push_url": "endpoint"}; raises RefusedError."""
    found = {}
    for pair in pairs:
        our, equals, theirs = pair.partition("=")
        if our not in FIELDS or not equals or not theirs:
            raise RefusedError(f"expected FIELD=COLUMN with a FIELD of {', '.join(FIELDS)}, got {pair!r}")
        found[theirs] = our
    return found


def _first(start: bytes) -> bytes:
    return start.removeprefix(_BOM).lstrip()[:1]


def _lines(file: IO[bytes]) -> Iterator[Numbered]:
    """Blank lines are passed over, over-long ones are not held in memory."""
    number = 0
    while raw := file.readline(LONGEST):
        number += 1
        whole = raw.endswith(b"\n") or len(raw) < LONGEST
        long = not whole
        while not whole:
            whole = (rest := file.readline(LONGEST)).endswith(b"\n") or not rest
        if long:
            yield number, None
        elif not raw.isspace():
            yield number, raw


def _json(raw: bytes) -> object:
    try:
        return _decode(raw.removeprefix(_BOM).decode())
    except (ValueError, RecursionError):
        raise rejection("line", "not_json", "a JSON object", f"{len(raw)} bytes that are none") from None


def _read_csv(file: IO[bytes], start: bytes, names: Names, total: int | None) -> Source:
    """Broken UTF-8 stays visible as lone surrogates, which the door refuses row by row."""
    pieces = iter(lambda: file.readline(LONGEST), b"")  # what has no end is no row, and is not held in memory
    text = (piece.decode(errors="surrogateescape").removeprefix("\ufeff") for piece in pieces)
    head = start.decode("utf-8-sig", "replace").lstrip().partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    csv.field_size_limit(LONGEST)
    reader = csv.reader(text, delimiter=delimiter)
    header = next(_csv_rows(reader), (0, None))[1]
    if not header:
        raise RefusedError("expected CSV with a line of column names, got nothing")
    columns = columns_of([str(name).strip() for name in header], names, "the file")
    return Source(columns, _csv_rows(reader), total - 1 if total else total)


def _csv_rows(reader: Any) -> Iterator[Numbered]:  # noqa: ANN401  (the csv module names no type for it)
    """Numbered by the line on which they end, as editors count."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a field beyond the limit: mostly a quote that nobody closed
            yield reader.line_num, None
            continue
        if row:
            yield reader.line_num, row
