"""Requests to be forgotten that are not done in time."""

from collections.abc import Iterator
from typing import Final

from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.erasure import service as erasures
from pushops.erasure.service import Standing
from pushops.runtime import Runtime

NAME: Final = "erasures"
EXPECTED: Final = "every request done within minutes"
ADVICE: Final = "pushops erasure list says what each waits for"


def forgetting(rt: Runtime) -> Iterator[Finding]:
    yield judge(erasures.standing(rt))


def judge(found: Standing) -> Finding:
    """A day late is a ticket, three days a problem; what is held by law is nobody's fault."""
    held = f", {found.held:,} under legal hold" if found.held else ""
    if found.very_late:
        return problem(NAME, EXPECTED, f"{found.very_late:,} open for more than three days{held}", ADVICE)
    if found.late:
        return warning(NAME, EXPECTED, f"{found.late:,} open for more than a day{held}", ADVICE)
    return fine(NAME, EXPECTED, f"{found.open:,} open{held}")
