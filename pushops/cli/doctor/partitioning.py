"""Partitioned tables: can be kept, and what they need next stands ready."""

from collections.abc import Iterator

from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.errors import RefusedError
from pushops.retention.partitions import looking, service
from pushops.retention.partitions.words import Table
from pushops.runtime import Runtime


def partitions(rt: Runtime) -> Iterator[Finding]:
    """The ledger and the tables of the settings, one finding or more for each."""
    for table in looking.tables(rt.settings).values():
        yield from _of_table(rt, table)


def _of_table(rt: Runtime, table: Table) -> Iterator[Finding]:
    name = f"{table.schema}.{table.table}"
    try:
        said = service.problems(looking.look(rt, table))
    except RefusedError as error:
        yield problem("partitions", f"{name} to be partitioned by time", str(error), "see docs/partitions.md")
        return
    expected = f"{name} to have its next partition, and no stray row"
    for each in said:
        yield warning("partitions", expected, each, f"pushops partition plan {table.name}")
    if not said:
        yield fine("partitions", expected, "so it is")
