"""Reading rows from TOML: every fault of a row is named, none is passed over."""

import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Final

from pushops.delivery.answer import Fault
from pushops.delivery.classify.cells import Reader, optional
from pushops.delivery.classify.row import ANY, HIGHEST, OTHER, HeaderPattern, Known, Row
from pushops.delivery.classify.verdict import Dead, Lifecycle, Outcome, Retry, Scope, Verdict
from pushops.settings import parse_duration

SERVICES: Final = frozenset({"fcm", "mozilla", "apple", "wns"})
MATCHING: Final = ("id", "service", "status", "fault", "host", "errno", "reason", "text", "header", "known")
SAYING: Final = ("outcome", "code", "scope", "lifecycle", "retry", "wait", "most", "dead", "meaning")
KEYS: Final = frozenset({*MATCHING, *SAYING})
REQUIRED: Final = ("id", "service", "outcome", "code", "meaning")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_CODE: Final = re.compile(r"(?:[a-z0-9_]|\{errno\}|\{status\}){1,40}", re.ASCII)
_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)*", re.ASCII)
_HEADER: Final = re.compile(r"([a-z0-9-]+)(?:\s*([:=])\s*(\S.*))?", re.ASCII)
_STATUS: Final = re.compile(r"([0-9])xx|(>=|<)([0-9]{1,3})", re.ASCII)


def parse_row(raw: object, labels: Collection[str], *, ours: bool) -> tuple[Row | None, list[str]]:
    """The row, or every fault in it. ``labels``: services beside our own that a row may name."""
    if not isinstance(raw, dict):
        return None, ["expected every row to be a table: [[row]]"]
    reader = Reader(raw)
    for key in sorted(set(raw) - KEYS):
        reader.faults.append(f"row {raw.get('id', '?')!s:.40}: unknown key {key!s:.40}")
    for key in REQUIRED:
        if key not in raw:
            reader.fault(key, "there")
    row = None if reader.faults else _row(reader, labels, ours=ours)
    return (None, reader.faults) if reader.faults else (row, [])


def _row(reader: Reader, labels: Collection[str], *, ours: bool) -> Row:
    subjects, exact = _subjects(reader)
    row = Row(
        id=reader.text("id", _ID, "letters, digits, _, . and -, at most 32"),
        services=_services(reader, labels),
        subjects=subjects,
        exact=exact,
        host=reader.text("host", _HOST, "a host or *.suffix in lower case") if "host" in reader.raw else None,
        errno=reader.errnos("errno"),
        reason=frozenset(reader.texts("reason")),
        reason_names=tuple(map(str, reader.words("reason"))),
        text=reader.texts("text"),
        header=tuple(_headers(reader)),
        known=_known(reader),
        verdict=_verdict(reader),
        ours=ours,
    )
    reader.faults += _template_faults(row)
    return row


def _services(reader: Reader, labels: Collection[str]) -> frozenset[str]:
    names = {ANY, OTHER, *SERVICES, *labels}
    found = reader.words("service")
    if not found or not all(isinstance(each, str) and each in names for each in found):
        reader.fault("service", f"of {', '.join(sorted(names))}")
    elif len(found) > 1 and ANY in found:
        reader.fault("service", "either any or names")
    return frozenset(str(each) for each in found)


def _subjects(reader: Reader) -> tuple[frozenset[int | Fault], bool]:
    """Statuses and faults, and whether each is named itself."""
    found: set[int | Fault] = set()
    exact = True
    for spec in reader.words("status"):
        statuses = _statuses(spec)
        exact &= isinstance(spec, int)
        found |= statuses
        if not statuses:
            reader.fault("status", f'a number up to {HIGHEST}, "4xx", ">=600", "<200", or a list of them')
    for spec in reader.words("fault"):
        if isinstance(spec, str) and spec in set(Fault):
            found.add(Fault(spec))
        else:
            reader.fault("fault", f"of {', '.join(Fault)}")
    if not (found or reader.faults):
        reader.fault("status or fault", "there")
    return frozenset(found), exact


def _statuses(spec: object) -> set[int]:
    if isinstance(spec, int) and not isinstance(spec, bool):
        return {spec} & set(range(HIGHEST + 1))
    match = _STATUS.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        return set()
    if match[1]:
        return set(range(int(match[1]) * 100, int(match[1]) * 100 + 100))
    edge = int(match[3])
    return set(range(edge)) if match[2] == "<" else set(range(edge, HIGHEST + 1))


def _headers(reader: Reader) -> Iterator[HeaderPattern]:
    for spec in reader.texts("header"):
        match = _HEADER.fullmatch(spec)
        if match is None:
            reader.fault("header", 'a "name", "name: contains" or "name = whole value"')
            return
        yield HeaderPattern(match[1], match[3], whole=match[2] == "=")


def _known(reader: Reader) -> Known:
    found = reader.words("known")
    numbers = [each for each in found if each == "null" or not isinstance(each, str)]
    part = Reader({"id": reader.raw["id"], "known": [each for each in found if each not in numbers]})
    errnos = Reader({"id": reader.raw["id"], "known": numbers})
    known = Known(errnos.errnos("known"), part.texts("known"))
    reader.faults += part.faults + errnos.faults
    return known


def _verdict(reader: Reader) -> Verdict:
    return Verdict(
        row=str(reader.raw["id"]),
        known=True,
        outcome=reader.word("outcome", Outcome),
        code=reader.text("code", _CODE, "lower-case letters, digits and _, {errno} or {status}, at most 40"),
        scope=reader.word("scope", Scope, Scope.NONE),
        lifecycle=reader.word("lifecycle", Lifecycle, Lifecycle.NONE),
        retry=reader.word("retry", Retry, Retry.NO),
        wait=optional(reader, "wait", _wait, "a duration up to 1d, such as 900s"),
        most=optional(reader, "most", _most, "a positive integer up to 100"),
        dead=reader.word("dead", Dead, Dead.NO),
        meaning=reader.text("meaning", re.compile(r"\S[^\n]{0,199}"), "a line of at most 200 characters"),
    )


def _wait(value: object) -> timedelta:
    found = parse_duration(value)
    if found > timedelta(days=1):
        raise ValueError("too long")
    return found


def _most(value: object) -> int:
    if not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100):  # noqa: PLR2004  (no row allows more tries)
        raise ValueError("out of range")
    return value


def _template_faults(row: Row) -> Iterator[str]:
    """What {errno} and {status} stand for is there, and has few values: codes are labels of metrics."""
    if "{errno}" in row.verdict.code and (not row.errno or None in row.errno):
        yield f"row {row.id}: expected {{errno}} in code only where errno is given, as numbers"
    if "{status}" in row.verdict.code and any(isinstance(each, Fault) for each in row.subjects):
        yield f"row {row.id}: expected {{status}} in code only where no fault is given"
