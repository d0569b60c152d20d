"""From an answer to the row that fits it best. Total: every answer has a verdict, and nothing raises."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pushops.delivery.answer import Answer, Fault
from pushops.delivery.classify.reading import ABSENT, EMPTY, REASON_HEADERS, Body, headers_of, read
from pushops.delivery.classify.row import HIGHEST, Row, why_more_specific
from pushops.delivery.classify.table import Subject, Table
from pushops.delivery.classify.verdict import Verdict

_ACCEPTED: Final = 200
_REDIRECTED: Final = 300
_BEYOND: Final = 600


@dataclass(frozen=True, slots=True)
class Lost:
    """A row that did not win, and why."""

    row: Row
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The row that won, what it says, and the others that take this service and status."""

    row: Row
    verdict: Verdict
    body: Body
    lost: tuple[Lost, ...]


def classify(answer: Answer, service: str, table: Table, *, host: str = "") -> Verdict:
    """What an answer means. ``service`` is the label of the rule that allowed ``host``; unknown ones are as any."""
    subject = _subject(answer)
    body = read(answer.body) if answer.body else EMPTY
    headers = headers_of(answer.headers, table.header_names) if answer.headers else {}
    row = _winner(table.candidates(service, subject), headers, host, body)
    return _verdict(row, subject, headers, body)


def explain(answer: Answer, service: str, table: Table, *, host: str = "") -> Explanation:
    """The same, with what the other rows lacked."""
    subject, body = _subject(answer), read(answer.body)
    headers = headers_of(answer.headers, table.header_names)
    candidates = table.candidates(service, subject)
    row = _winner(candidates, headers, host, body)
    lost = tuple(
        Lost(each, _missing(each, headers, host, body) or f"row {row.id} {why_more_specific(row, each)}")
        for each in candidates
        if each is not row
    )
    return Explanation(row, _verdict(row, subject, headers, body), body, lost)


def _subject(answer: Answer) -> Subject:
    """The status, or the fault. An answer whose end is in doubt has still been given; one with neither is in doubt."""
    status, fault = answer.status, answer.fault
    if fault is None or (fault is Fault.AMBIGUOUS and status is not None and _ACCEPTED <= status < _BEYOND):
        return Fault.AMBIGUOUS if status is None else min(max(status, 0), HIGHEST)
    return fault


def _winner(candidates: tuple[Row, ...], headers: Mapping[str, str], host: str, body: Body) -> Row:
    """The first that fits, or among the others of its rank the one whose text is longest."""
    best: Row | None = None
    weight = 0
    for row in candidates:
        if best is not None and row.rank != best.rank:
            break
        found = _fit(row, headers, host, body)
        if found > weight:
            best, weight = row, found
    if best is None:  # a table without a row for it does not load
        raise AssertionError("expected the table to cover every answer")
    return best


def _fit(row: Row, headers: Mapping[str, str], host: str, body: Body) -> int:
    """0 if the row does not fit, else more the longer its texts are that were found."""
    if row.is_bare:
        return 1
    if not row.takes_host(host.lower().rstrip(".")) or not _fields_fit(row, body):
        return 0
    text, fields = _text_weight(row, body), _header_weight(row, headers)
    return 1 + text + fields if _all_found(row, text, fields) else 0


def _all_found(row: Row, text: int, fields: int) -> bool:
    return (not row.text or text > 0) and (not row.header or fields > 0)


def _fields_fit(row: Row, body: Body) -> bool:
    return (not row.errno or body.errno in row.errno) and (not row.reason or body.reason in row.reason)


def _text_weight(row: Row, body: Body) -> int:
    return max((len(text) for text in row.text if body.contains(text)), default=0)


def _header_weight(row: Row, headers: Mapping[str, str]) -> int:
    weight = 0
    for pattern in row.header:
        value = headers.get(pattern.name)
        if value is not None and pattern.fits(value):
            weight = max(weight, pattern.weight)
    return weight


def _missing(row: Row, headers: Mapping[str, str], host: str, body: Body) -> str | None:
    """What the answer lacks for this row, in words, or None if it fits."""
    if not row.takes_host(host.lower().rstrip(".")):
        return f"wants the host {row.host}"
    if row.errno and body.errno not in row.errno:
        return f"wants errno {' or '.join('null' if each is None else str(each) for each in sorted_errnos(row))}"
    if row.reason and body.reason not in row.reason:
        return f"wants the reason {' or '.join(row.reason_names)}"
    if row.header and not _header_weight(row, headers):
        return f"wants the header {' or '.join(sorted({pattern.name for pattern in row.header}))} to say so"
    if row.text and not _text_weight(row, body):
        return "wants one of its texts in the body"
    return None


def sorted_errnos(row: Row) -> list[int | None]:
    return sorted(row.errno, key=lambda each: -1 if each is None else each)


def _verdict(row: Row, subject: Subject, headers: Mapping[str, str], body: Body) -> Verdict:
    """The row's own, which costs nothing, unless this answer adds to it."""
    verdict = row.verdict
    if "{" in verdict.code:
        code = verdict.code.replace("{errno}", str(body.errno)).replace("{status}", str(subject))
        verdict = replace(verdict, code=code)
    return verdict if _is_known(row, subject, headers, body) else replace(verdict, known=False)


def _is_known(row: Row, subject: Subject, headers: Mapping[str, str], body: Body) -> bool:
    """Whether the answer gives no reason, or one that is the row's or on its list. A success says none in its body."""
    if not row.is_bare or isinstance(subject, Fault):
        return True
    says = [value for name in REASON_HEADERS if (value := headers.get(name))]
    if not _ACCEPTED <= subject < _REDIRECTED:
        if body.errno != ABSENT:
            return body.errno in row.known.errnos
        says += [body.reason] if body.reason else body.texts
    return not says or any(known in text for text in says for known in row.known.texts)
