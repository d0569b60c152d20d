"""Settings as they may be shown: where each comes from, with secrets masked."""

import os
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from pushops.settings.load import env_name
from pushops.settings.model import CADENCED, Settings, config_file
from pushops.settings.values import format_duration

MASKED: Final = "********"


@dataclass(frozen=True)
class Shown:
    """One setting; ``came_from`` is environment, file, sandbox or default. ``in_force`` differs by the cadence only."""

    name: str
    value: Any
    came_from: str
    in_force: Any


def shown(settings: Settings, own: Settings) -> list[Shown]:
    """All settings in force; ``own`` are those without a sandbox, to tell what it put in."""
    file = _file_names()
    return [_shown(settings, own, name, file) for name in Settings.model_fields]


def _shown(settings: Settings, own: Settings, name: str, file: frozenset[str]) -> Shown:
    value = masked(name, getattr(settings, name))
    in_force = masked(name, settings.window(name)) if name in CADENCED else value
    borrowed = getattr(settings, name) != getattr(own, name)
    return Shown(env_name(name), value, "sandbox" if borrowed else _came_from(name, file), in_force)


def _came_from(name: str, file: frozenset[str]) -> str:
    # The environment's names are compared without case, as pydantic does.
    if env_name(name) in {key.upper() for key in os.environ}:
        return "environment"
    return "file" if name in file else "default"


def _file_names() -> frozenset[str]:
    path = config_file()
    return frozenset(tomllib.loads(path.read_text(encoding="utf-8"))) if path.exists() else frozenset()


def masked(name: str, value: Any) -> Any:  # noqa: ANN401  (any setting's)
    """A value that may be printed: of URLs their place, of keys their ids, of other secrets that they are set."""
    if isinstance(value, SecretStr):
        return _place(value.get_secret_value()) if name.endswith("_url") else MASKED
    if isinstance(value, dict):
        return {key: masked(name, item) for key, item in value.items()}
    if isinstance(value, BaseModel):  # a section: what it says
        return {
            key: masked(key, getattr(value, key)) for key in type(value).model_fields if key in value.model_fields_set
        }
    if isinstance(value, timedelta):
        return format_duration(value)
    return value


def _place(url: str) -> str:
    """Scheme, host, port and path. Anything that does not read as a plain URL may hold a password anywhere."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return MASKED
    if not parts.scheme or not url.startswith(f"{parts.scheme}://") or "@" in parts.path:
        return MASKED
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
