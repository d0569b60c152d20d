"""``pushops check``: the doctor."""

import typer

from pushops.cli.doctor import Finding, Level, examine
from pushops.cli.exits import Exit
from pushops.cli.output import Json, print_json, say

app = typer.Typer()


@app.command()
def check(json_: Json = False) -> None:
    """Look at settings, database, replication, broker, keys and sweeps, and say what to do about each finding.

    Exit code 0 where there is no problem (warnings are none), 1 otherwise.
    """
    found = examine()
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    if json_:
        print_json({"ok": not problems, "findings": found})
    else:
        for finding in found:
            _say(finding)
        warnings = sum(finding.level is Level.WARNING for finding in found)
        say(f"{problems} problem(s), {warnings} warning(s)")
    if problems:
        raise typer.Exit(Exit.FAILED)


def _say(finding: Finding) -> None:
    say(f"{finding.level:<8} {finding.name}: {finding.found}")
    if finding.level is not Level.OK:
        say(f"         expected {finding.expected}")
        say(f"         to do: {finding.advice}")
