"""Reading the settings once; every problem in one error, with what was expected and what came."""

import difflib
import os
import tomllib
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from pushops.errors import SettingsError
from pushops.settings.model import PREFIX, Settings, config_file
from pushops.settings.values import Expected

# Read by others than Settings: where the file and the sandbox are.
ALSO_KNOWN: Final = frozenset({"PUSHOPS_CONFIG", "PUSHOPS_SANDBOX_DIR"})


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401  (any field of Settings)
    """Settings from the environment over ``pushops.toml`` (``PUSHOPS_CONFIG`` names another file).

    Raises SettingsError listing every problem: unknown names with a suggestion, wrong values with what was expected.
    """
    problems = [*_file_problems(), *(_unknown(name) for name in _unknown_environment())]
    if not problems:
        problems += _value_problems(overrides)
    else:
        problems += [line for line in _value_problems(overrides) if line not in problems]
    if problems:
        raise SettingsError("\n".join(problems))
    return Settings(**overrides)


def _file_problems() -> Iterator[str]:
    path = config_file()
    if not path.exists():
        if "PUSHOPS_CONFIG" in os.environ:
            yield f"expected PUSHOPS_CONFIG to name a file, got {str(path)!r}"
        return
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield f"expected {path.name} to be TOML: {error}"


def _unknown_environment() -> list[str]:
    known = {env_name(field) for field in Settings.model_fields} | ALSO_KNOWN
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)


def _value_problems(overrides: dict[str, Any]) -> list[str]:
    try:
        Settings(**overrides)
    except ValidationError as error:
        return [_explain(detail) for detail in error.errors()]
    except tomllib.TOMLDecodeError:
        return []  # _file_problems has said so
    return []


def _explain(detail: ErrorDetails) -> str:
    field = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        return _unknown(env_name(field))
    if not field:
        return str(detail["ctx"]["error"])
    section = _section(field)
    if section is not None and len(detail["loc"]) == 2 and detail["type"] == "value_error":  # noqa: PLR2004
        return f"{detail['ctx']['error']}, in [{field}.{detail['loc'][1]}]"
    named = detail["loc"][-1] != "[key]"  # where it is the section's name that is wrong
    if section is not None and named and len(detail["loc"]) > 2:  # noqa: PLR2004  (field, name of the section, its own)
        return _explain_section(section, detail)
    expected = next((m.words for m in Settings.model_fields[field].metadata if isinstance(m, Expected)), detail["msg"])
    return f"expected {env_name(field)} to be {expected}, got {_shown(field, detail['input'])}"


def _section(field: str) -> type[BaseModel] | None:
    """What each ``[field.NAME]`` of the file is read as; None for a plain setting."""
    kinds = [kind for kind in get_args(Settings.model_fields[field].annotation) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _explain_section(section: type[BaseModel], detail: ErrorDetails) -> str:
    """``expected interval of [partitions.clicks] to be day, week or month, got 'fortnight'``."""
    place, name = f"[{detail['loc'][0]}.{detail['loc'][1]}]", str(detail["loc"][2])
    if detail["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, section.model_fields, n=1)
        return f"unknown setting {name} in {place}" + (f", did you mean {close[0]}?" if close else "")
    known = section.model_fields.get(name)
    words = [m.words for m in known.metadata if isinstance(m, Expected)] if known else []
    expected = words[-1] if words else detail["msg"]
    got = "none" if detail["type"] == "missing" else repr(detail["input"])[:80]
    return f"expected {name} of {place} to be {expected}, got {got}"


def _shown(field: str, value: object) -> str:
    """A value as it came, unless it may hold a password, as any URL may."""
    url = isinstance(value, str) and "://" in value
    secret = url or "Secret" in str(Settings.model_fields[field].annotation) or isinstance(value, SecretStr)
    return "a value that is not shown" if secret else repr(value)[:80]


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, [env_name(field) for field in Settings.model_fields], n=1)
    return f"unknown setting {name}" + (f", did you mean {close[0]}?" if close else "")


def env_name(field: str) -> str:
    """The environment's name of a field; the file uses the field's own."""
    return PREFIX + field.upper()
