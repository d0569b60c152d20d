"""``pushops explain``: what an answer of a push service means, which row of the table says so, and why that one."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from pushops.cli.output import Json, print_fields, print_json, print_table
from pushops.delivery.answer import BODY_MAX, Answer, Fault
from pushops.delivery.classify import Explanation, Table, explain, snippet, table_of, wording
from pushops.delivery.retry_after import parse_retry_after
from pushops.settings import Settings, load_settings
from pushops.subscriptions.hosts import DEFAULT_RULES, match, parse_host_rules

app = typer.Typer()

EPILOG: Final = """Example: pushops explain --service apple --status 403 --body '{"reason":"BadJwtToken"}'"""


def _headers(lines: list[str]) -> dict[str, str]:
    """Names in lower case, repeats joined, as the transport has them."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"expected 'Name: value', got {line!r}", param_hint="--header")
        key = name.strip().lower()
        found[key] = f"{found[key]}, {value.strip()}" if key in found else value.strip()
    return found


def _fault(name: str | None) -> Fault | None:
    if name is None:
        return None
    if name not in set(Fault):
        raise typer.BadParameter(f"expected one of {', '.join(Fault)}, got {name!r}", param_hint="--fault")
    return Fault(name)


@app.command(name="explain", epilog=EPILOG)
def explain_(
    service: Annotated[
        str | None,
        typer.Option("--service", help="fcm, mozilla, apple, wns or your own label; by --host if absent."),
    ] = None,
    status: Annotated[int | None, typer.Option("--status", help="The HTTP status.")] = None,
    body: Annotated[str, typer.Option("--body", help="The body as it came.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", help="'Name: value'; may be repeated.")] = None,
    fault: Annotated[str | None, typer.Option("--fault", help="Instead of a status, such as dns or ambiguous.")] = None,
    host: Annotated[str, typer.Option("--host", help="The endpoint's host.")] = "",
    table: Annotated[bool, typer.Option("--table", help="Print the whole table instead.")] = False,
    json_: Json = False,
) -> None:
    """Say what an answer of a push service means: the row that fits it best, why it won, and every effect."""
    settings = load_settings()
    rows = table_of(settings)
    if table:
        _print_table(rows, json_=json_)
        return
    if (status is None) == (fault is None):
        raise typer.BadParameter("expected either --status or --fault", param_hint="--status / --fault")
    answer = Answer(status, _fault(fault), _headers(header or []), body.encode("utf-8", "surrogateescape")[:BODY_MAX])
    label = service or _service(settings, host)
    told = _told(explain(answer, label, rows, host=host), answer, label, rows)
    if json_:
        print_json(told)
    else:
        print_fields({name.replace("_", " "): value for name, value in told.items() if value not in ("", [])})


def _service(settings: Settings, host: str) -> str:
    rule = match(host.lower(), (*parse_host_rules(dict(settings.extra_hosts)), *DEFAULT_RULES))
    return "any" if rule is None else rule.service


def _told(found: Explanation, answer: Answer, label: str, table: Table) -> dict[str, Any]:
    row, verdict = found.row, found.verdict
    return {
        "row": row.id,
        "table": table.version + ("" if row.ours else ", this row from PUSHOPS_CLASSIFICATION"),
        "service": label,
        "answer": "no answer: " + answer.fault if answer.fault else answer.status,
        "looks_for": wording.wants(row) or "nothing but the status or fault",
        "meaning": verdict.meaning,
        "outcome": verdict.outcome,
        "code": verdict.code,
        "scope": f"{verdict.scope}: {wording.SCOPE[verdict.scope]}",
        "lifecycle": f"{verdict.lifecycle}: {wording.LIFECYCLE[verdict.lifecycle]}",
        "retry": f"{verdict.retry}: {wording.retries(verdict)}",
        "retry_after": _retry_after(answer),
        "dead_letter": f"{verdict.dead}: {wording.DEAD[verdict.dead]}",
        "hold": wording.holds(verdict),
        "known": "yes" if verdict.known else "no: no row knows this reason, it is counted as send.unknown_reason",
        "snippet": snippet(answer),
        "passed_over": [f"row {each.row.id}: {each.why}" for each in found.lost],
    }


def _retry_after(answer: Answer) -> str:
    """How the header reads; the clock is this machine's, since no database is asked."""
    text = answer.headers.get("retry-after")
    if text is None:
        return ""
    wait = parse_retry_after(text, datetime.now(UTC), answer.headers.get("date"))
    return f"{text!r} is no time: as without" if wait is None else f"{wait.total_seconds():.0f} s, before limits"


def _print_table(table: Table, *, json_: bool) -> None:
    rows = [dict(zip(_NAMES, wording.cells(row), strict=True)) for row in table.rows]
    if json_:
        print_json({"version": table.version, "rows": [{**row, "code": row["code"].strip("`")} for row in rows]})
        return
    takes = [": ".join(filter(None, (row["status_or_fault"], row["looks_for"]))) for row in rows]
    print_table(
        ("ID", "SERVICE", "CODE", "EFFECTS", "TAKES"),
        [
            (row["id"], row["service"], row["code"].strip("`"), _effects(row), shown)
            for row, shown in zip(rows, takes, strict=True)
        ],
    )


def _effects(row: dict[str, str]) -> str:
    """Those that there are: on the subscription, on the message, on what is parked."""
    return ", ".join(row[name] for name in ("subscription", "retry", "dead_letter") if row[name] not in ("none", "no"))


_NAMES: Final = tuple(name.replace(" ", "_") for name in wording.COLUMNS)
