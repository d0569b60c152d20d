"""All examinations in order; one that fails says so and never hides the others."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from pushops.cli.doctor import broker, database, replication, secrets, sweeping
from pushops.cli.doctor.findings import Finding, Level, fine, problem
from pushops.errors import PushopsError, SettingsError
from pushops.runtime import Runtime, open_runtime, settings_or_sandbox
from pushops.settings import Settings

Examination: TypeAlias = tuple[str, Callable[[Runtime], Iterator[Finding]]]

# The second group reads our tables; without them there is nothing to say.
WITH_DATABASE: Final[tuple[Examination, ...]] = (
    ("indexes", database.indexes),
    ("foreign keys", database.foreign_keys),
    ("replication", replication.replication),
    ("keys in rows", secrets.key_use),
    ("beat", sweeping.last_look),
    ("sweeps", sweeping.decisions),
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
        found = [*_run(("database", database.server), rt), *_run(("migrations", database.migrations), rt)]
        yield from found
        if all(finding.level is not Level.PROBLEM or finding.name == "clock" for finding in found):
            for examination in WITH_DATABASE:
                yield from _run(examination, rt)
        yield from _run(("broker", broker.broker), rt)
    finally:
        rt.close()


def _run(examination: Examination, rt: Runtime) -> list[Finding]:
    name, examination_of = examination
    try:
        return list(examination_of(rt))
    except PushopsError as error:
        return [problem(name, "to be able to look", str(error), "see whether the server is up and the role may read")]
