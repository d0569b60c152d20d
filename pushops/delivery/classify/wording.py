"""The table in words for people: what each word does, and what each row asks for and says."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pushops.delivery.answer import Fault
from pushops.delivery.classify.row import HIGHEST, HeaderPattern, Row
from pushops.delivery.classify.table import Table
from pushops.delivery.classify.verdict import Dead, Lifecycle, Retry, Scope, Verdict
from pushops.settings import format_duration

SCOPE: Final[Mapping[Scope, str]] = {
    Scope.SUB: "this subscription",
    Scope.MSG: "this message",
    Scope.CFG: "our keys or configuration",
    Scope.SVC: "the push service",
    Scope.NET: "the network",
    Scope.NONE: "nobody",
}
LIFECYCLE: Final[Mapping[Lifecycle, str]] = {
    Lifecycle.SUCCESS: "active; last success stamped, votes cleared",
    Lifecycle.VOTE: "one vote, if it is far enough from the last one and the push service is healthy",
    Lifecycle.REVOKE: "revoked at once",
    Lifecycle.MISMATCH: "blocked (key_mismatch) only while siblings of this host and key succeed; else it counts"
    " towards a hold",
    Lifecycle.DEVICE_LIMIT: "what this device takes is remembered (max_payload)",
    Lifecycle.BAD_KEYS: "blocked (bad_keys) until the browser registers again",
    Lifecycle.NONE: "nothing",
}
RETRY: Final[Mapping[Retry, str]] = {
    Retry.NO: "no",
    Retry.BACKOFF: "with growing waits",
    Retry.AFTER: "when Retry-After says",
    Retry.AT_ONCE: "once at once on a new connection unless Retry-After says when, then with growing waits",
    Retry.RESIGN: "once at once with a fresh token, then with growing waits until the lane is held",
    Retry.HOLD: "with growing waits until the lane is held",
    Retry.AMBIGUOUS: "as the message's on_ambiguous says: with the same Topic and message id, or not at all",
}
DEAD: Final[Mapping[Dead, str]] = {
    Dead.NO: "no",
    Dead.POISON: "parked now, as poison",
    Dead.EXHAUSTED: "parked when the attempts or the time are spent",
    Dead.HOLD_ROW: "no letter: one hold row of the host and key, with a count",
}
HOLDS: Final = "host and key are held at 5 such answers in 5 minutes without a success; held rows spend no attempts"
_HOLDING: Final = (Retry.HOLD, Retry.RESIGN)


def holds(verdict: Verdict) -> str:
    return HOLDS if verdict.retry in _HOLDING else "no"


def retries(verdict: Verdict) -> str:
    """The retry rule with its numbers."""
    parts = [RETRY[verdict.retry]]
    if verdict.wait is not None:
        without = "without it after" if verdict.retry is Retry.AFTER else "at the earliest after"
        parts.append(f"{without} {format_duration(verdict.wait)}")
    if verdict.most is not None:
        parts.append(f"{verdict.most} times at most")
    return ", ".join(parts)


def subjects(row: Row) -> str:
    """Statuses and faults, ranges as such."""
    statuses = sorted(each for each in row.subjects if not isinstance(each, Fault))
    faults = [fault for fault in Fault if fault in row.subjects]
    return ", ".join([*_ranges(statuses), *faults])


def _ranges(statuses: Iterable[int]) -> Iterator[str]:
    runs: list[list[int]] = []
    for status in statuses:
        if runs and status == runs[-1][-1] + 1:
            runs[-1].append(status)
        else:
            runs.append([status])
    for run in runs:
        yield from _range(run)


def _range(run: list[int]) -> Iterator[str]:
    first, last = run[0], run[-1]
    if len(run) < 3:  # noqa: PLR2004  (two are shorter as a list)
        yield from map(str, run)
    elif first == 0 or last == HIGHEST:
        yield f"below {last + 1}" if first == 0 else f"{first} and above"
    else:
        yield f"{first // 100}xx" if (first % 100, len(run)) == (0, 100) else f"{first} to {last}"


def wants(row: Row) -> str:
    """What a row looks for beyond service and status."""
    parts = [f"host {row.host}"] if row.host else []
    if row.errno:
        numbers = sorted(row.errno, key=lambda each: -1 if each is None else each)
        parts.append(f"errno {', '.join('null' if each is None else str(each) for each in numbers)}")
    if row.reason:
        parts.append(f"reason {', '.join(row.reason_names)}")
    if row.header:
        parts.append(f"header {', '.join(map(_pattern, row.header))}")
    if row.text:
        parts.append("text " + ", ".join(f'"{text}"' for text in row.text))
    return "; ".join(parts)


def _pattern(pattern: HeaderPattern) -> str:
    if pattern.value is None:
        return pattern.name
    return f"{pattern.name}{' =' if pattern.whole else ':'} {pattern.value}"


def services(row: Row) -> str:
    return ", ".join(sorted(row.services))


def as_markdown(table: Table) -> str:
    """The table and its words as docs/answers.md has them."""
    lines = [*_INTRODUCTION.format(version=table.version).splitlines(), ""]
    for title, words in (("Scope", SCOPE), ("Subscription", LIFECYCLE), ("Retry", RETRY), ("Dead letter", DEAD)):
        lines += [f"## {title}", "", "| word | meaning |", "|---|---|"]
        lines += [f"| `{word}` | {meaning} |" for word, meaning in words.items()]
        lines.append("")
    lines += ["## The table", "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in table.rows]
    return "\n".join([*lines, ""])


COLUMNS: Final = (
    "id", "service", "status or fault", "looks for", "outcome", "code", "scope", "subscription", "retry", "dead letter",
    "meaning",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    verdict = row.verdict
    retry = verdict.retry.value + (f" {format_duration(verdict.wait)}" if verdict.wait else "")
    return [
        row.id,
        services(row),
        subjects(row),
        wants(row),
        verdict.outcome,
        f"`{verdict.code}`",
        verdict.scope,
        verdict.lifecycle,
        retry + (f", {verdict.most} at most" if verdict.most else ""),
        verdict.dead,
        verdict.meaning,
    ]


_INTRODUCTION: Final = """\
# Answers of push services

What an answer means is data: `pushops/delivery/classify/table.toml`, version {version}. The most specific row wins,
wherever it stands: one that names the host; then one that looks for an errno or a reason in the body, a header, a text;
then one that names the service; then one that names the status itself. Of two texts that are both in an answer the
longer wins. Every status and every fault has a row that asks for nothing more. A reason that no row knows is counted
(event `send.unknown_reason`): the vendor has changed its texts. `pushops explain` says which row wins and why.

`PUSHOPS_CLASSIFICATION` names a TOML file of your own with rows of the same form:

    version = "ours.1"

    [[row]]
    id = "41"                      # in the place of row 41; an id that the table has not is added
    service = "apple"              # or fcm, mozilla, wns, a label of PUSHOPS_EXTRA_HOSTS, any, other (named nowhere)
    status = [400, 403]            # or "4xx", ">=600", "<200"; or fault = "dns"
    reason = ["BadJwtToken"]       # or errno = [109], header = ["x-wns-status: dropped"], text = ["..."]: any of a list
    outcome = "denied"
    code = "vapid_jwt"
    scope = "cfg"
    retry = "hold"                 # lifecycle, retry and dead may be left out for none, no and no
    dead = "hold_row"
    meaning = "The token is wrong."

`header` is a name, `name: contained` or `name = whole value`; with several of errno, reason, header and text all must
fit. `known` lists reasons that change nothing. `wait` is a duration, `most` a number of retries. Unknown words, rows
that tie for the same answer, gaps, and outcomes whose effects do not go together (a 404 that becomes a letter, an
outage that revokes) are refused when the table is loaded, all at once. A process reads the file once.

Waits: `PUSHOPS_RETRY_BASE`, doubled up to `PUSHOPS_RETRY_CAP`, `PUSHOPS_RETRY_ATTEMPTS` in all, with jitter. A
Retry-After is the least to wait, in seconds or as a date (compared with the answer's Date), from 10 s, or the base if
it is shorter, to `PUSHOPS_RETRY_AFTER_MAX`. Throttles, holds and outages spend no attempts; nothing is tried at or
after `expires_at`, and the row's end is named by what it waited for. The same answer three times at real intervals ends
a row as poison: never without a status, for 429 or 503, and for what may be the push service's fault or ours only while
at least 20 other messages to the host succeed."""
