"""The table: ours, with an operator's rows over it, checked as a whole."""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pushops.delivery.answer import Fault
from pushops.delivery.classify.checking import faults
from pushops.delivery.classify.parsing import parse_row
from pushops.delivery.classify.reading import REASON_HEADERS
from pushops.delivery.classify.row import ANY, OTHER, Row
from pushops.errors import SettingsError
from pushops.settings import Settings

Subject = int | Fault


@dataclass(frozen=True)
class Table:
    """Rows in the file's order. Which rows an answer can fit is worked out once for each service and subject."""

    version: str
    rows: tuple[Row, ...]
    _index: dict[tuple[str, Subject], tuple[Row, ...]] = field(default_factory=dict, repr=False, compare=False)
    _named: frozenset[str] = field(init=False, repr=False, compare=False)
    header_names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = frozenset(name for row in self.rows for name in row.services) - {ANY, OTHER}
        object.__setattr__(self, "_named", named)
        names = {pattern.name for row in self.rows for pattern in row.header}
        object.__setattr__(self, "header_names", frozenset({*names, *REASON_HEADERS}))

    def candidates(self, service: str, subject: Subject) -> tuple[Row, ...]:
        """The rows of this service and this status or fault, the most specific first."""
        key = (service if service in self._named else OTHER, subject)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = tuple(self._sorted(*key))
        return found

    def _sorted(self, service: str, subject: Subject) -> Iterable[Row]:
        fitting = [row for row in self.rows if subject in row.subjects and row.services & {service, ANY}]
        return sorted(fitting, key=lambda row: row.rank, reverse=True)


def table_of(settings: Settings) -> Table:
    """The table in force. Raises SettingsError naming every fault in the operator's file."""
    return load_table(settings.classification, frozenset(settings.extra_hosts.values()))


@lru_cache(maxsize=16)
def load_table(path: Path | None = None, labels: frozenset[str] = frozenset()) -> Table:
    """Ours, with the rows of the file at ``path`` over it. ``labels``: further services that its rows may name."""
    text = files("pushops.delivery.classify").joinpath("table.toml").read_text(encoding="utf-8")
    ours, found = _parse(tomllib.loads(text), labels, ours=True)
    if path is None:
        return _checked(ours.version, ours.rows, found)
    theirs, more = _parse(_read(path), labels, ours=False)
    version = f"{ours.version}+{theirs.version}"
    return _checked(version, _merged(ours.rows, theirs.rows), found + more)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"expected PUSHOPS_CLASSIFICATION to name a TOML file with rows: {error}") from error


def _parse(raw: dict[str, Any], labels: Collection[str], *, ours: bool) -> tuple[Table, list[str]]:
    found = [f"unknown key {key!s:.40}: expected version and [[row]]" for key in sorted(set(raw) - {"version", "row"})]
    version = raw.get("version", "local")
    if not isinstance(version, str):
        found.append("expected version to be a text")
    rows: list[Row] = []
    listed = raw.get("row", [])
    for each in listed if isinstance(listed, list) else [listed]:
        row, wrong = parse_row(each, labels, ours=ours)
        found += wrong
        if row is not None:
            rows.append(row)
    return Table(str(version), tuple(rows)), found


def _merged(ours: Iterable[Row], theirs: Iterable[Row]) -> tuple[Row, ...]:
    """Theirs in the place of ours with the same id, the others after; doubled ones stay, to be found."""
    theirs = list(theirs)
    replaced = {row.id: row for row in reversed(theirs)}
    first = [replaced.pop(row.id, row) for row in ours]
    taken = set(map(id, first))
    return (*first, *(row for row in theirs if id(row) not in taken))


def _checked(version: str, rows: tuple[Row, ...], found: list[str]) -> Table:
    """Faults inside rows hide those between rows: a row that could not be read would leave a gap."""
    wrong = found or faults(rows)
    if wrong:
        raise SettingsError("\n".join(f"expected the classification to hold together: {each}" for each in wrong))
    return Table(version, rows)
