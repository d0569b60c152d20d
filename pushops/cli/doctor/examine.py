"""All examinations in order; one that fails says so and never hides the others."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from pushops.cli.doctor import broker, database, forgetting, key_use, partitioning, replication, secrets, sweeping
from pushops.cli.doctor.findings import Finding, Level, fine, problem
from pushops.errors import PushopsError, SettingsError
from pushops.runtime import Runtime, open_runtime, settings_or_sandbox
from pushops.settings import Settings

Examination: TypeAlias = tuple[str, Callable[[Runtime], Iterator[Finding]]]

FIRST: Final[tuple[Examination, ...]] = (("database", database.server),)
SECOND: Final[tuple[Examination, ...]] = (("migrations", database.migrations),)
THIRD: Final[tuple[Examination, ...]] = (
    ("indexes", database.indexes),
    ("foreign keys", database.foreign_keys),
    ("replication", replication.replication),
    ("keys in rows", key_use.key_use),
    ("erasures", forgetting.forgetting),
    ("partitions", partitioning.partitions),
    ("beat", sweeping.last_look),
    ("sweeps", sweeping.decisions),
    ("own tables", sweeping.own_tables),
)


def examine() -> list[Finding]:
    """Everything that can be looked at from here, in a few seconds."""
    expected = "settings that are complete and make sense"
    try:
        settings = settings_or_sandbox()
    except SettingsError as error:
        lines = str(error).splitlines()
        return [problem("settings", expected, line, "pushops config shows what is in force") for line in lines]
    first = fine("settings", expected, "so they are")
    return [first, *secrets.keys(settings), *secrets.subject(settings), *_servers(settings)]


def _servers(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is None:
        advice = "set it, or start a sandbox: pushops sandbox up"
        yield problem("database", "a database", "PUSHOPS_DATABASE_URL is not set", advice)
        return
    rt = open_runtime(settings.model_copy(update={"log_level": "error"}))
    try:
        yield from _database(rt)
        yield from _run(("broker", broker.broker), rt)
    finally:
        rt.close()


def _database(rt: Runtime) -> Iterator[Finding]:
    """Each group looks only where the one before found nothing in the way."""
    for group in (FIRST, SECOND, THIRD):
        found = [finding for examination in group for finding in _run(examination, rt)]
        yield from found
        if any(finding.level is Level.PROBLEM and finding.name in (name for name, _ in group) for finding in found):
            return


def _run(examination: Examination, rt: Runtime) -> list[Finding]:
    name, look = examination
    try:
        return list(look(rt))
    except PushopsError as error:
        return [problem(name, "to be able to look", str(error), "see whether the server is up and the role may read")]
