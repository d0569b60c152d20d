"""The revisions as Alembic finds them, and all of them as one script."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from alembic.config import Config
from alembic.script import Script, ScriptDirectory

from pushops.db.statements import Step, steps
from pushops.db.transaction import render
from pushops.settings import Settings

HOME: Final = Path(__file__).parent / "migrations"
VERSIONS: Final = HOME / "versions"


def config(versions: Path) -> Config:
    made = Config()
    options = {"script_location": HOME, "version_locations": versions, "path_separator": "newline"}
    for name, value in options.items():
        made.set_main_option(name, str(value).replace("%", "%%"))
    return made


def scripts(versions: Path) -> list[Script]:
    """All revisions, oldest first."""
    return list(reversed(list(ScriptDirectory.from_config(config(versions)).walk_revisions())))


def render_script(first: Sequence[str], revisions: Sequence[Script], settings: Settings) -> str:
    """``first`` and every revision as one script for psql, with the limits and the transactions of a real run."""
    begin = Step(tuple(_rendered(statement, settings) for statement in first), outside=False)
    parts = ["-- All migrations of pushops, for a database that has none of them yet.", _step(begin, settings)]
    return "\n\n".join((*parts, *(_revision(script, settings) for script in revisions))) + "\n"


def _revision(script: Script, settings: Settings) -> str:
    path = Path(script.path)
    found = steps(_rendered(path.with_suffix(".sql").read_text(encoding="utf-8"), settings))
    stamp = f"INSERT INTO {{schema}}.alembic_version (version_num) VALUES ('{script.revision}')"
    if script.down_revision:
        stamp = f"UPDATE {{schema}}.alembic_version SET version_num = '{script.revision}'"
    found.append(Step((_rendered(stamp, settings),), outside=False))
    return "\n\n".join((f"-- {path.stem}", *(_step(step, settings) for step in found)))


def _step(step: Step, settings: Settings) -> str:
    lines = [_end(statement) for statement in step.statements]
    if step.outside:
        return "\n\n".join(lines)
    limits = (
        f"SET LOCAL {name} = '{getattr(settings, name) // timedelta(milliseconds=1)}ms';"
        for name in ("lock_timeout", "statement_timeout")
    )
    return "\n\n".join(("\n".join(("BEGIN;", *limits)), *lines, "COMMIT;"))


def _rendered(text: str, settings: Settings) -> str:
    return render(text, settings.db_schema).decode().strip()


def _end(statement: str) -> str:
    """A statement with its semicolon, on a line of its own where a comment would swallow it."""
    return f"{statement}\n;" if "--" in statement.splitlines()[-1] else f"{statement};"
