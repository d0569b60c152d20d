"""A payload for each recipient, from the application's own function: whatever it does, one row is at fault."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

from pushops.delivery.message import PAYLOAD_MAX
from pushops.errors import SettingsError
from pushops.runtime import Runtime
from pushops.settings import Settings

SETTING: Final = "PUSHOPS_RENDERER"


@dataclass(frozen=True, slots=True)
class Recipient:
    """What a renderer may know. ``max_payload``: bytes that this device takes, None where nobody knows of a limit."""

    subscription_id: UUID
    user_id: str | None
    locale: str | None
    tags: tuple[str, ...]
    push_service: str
    max_payload: int | None


Renderer = Callable[[bytes, Recipient], bytes]


@dataclass(frozen=True, slots=True)
class RenderFault:
    """Why a payload could not be made for this recipient, without any of its content."""

    why: str


def check_renderer(settings: Settings) -> Renderer | None:
    """The function that the settings name, None without one. Raises SettingsError; call it at the start."""
    return None if settings.renderer is None else _loaded(settings.renderer)


def render(rt: Runtime, payload: bytes, recipient: Recipient) -> bytes | RenderFault:
    """``renderer(payload, recipient)``, held to bytes that a push service takes."""
    try:
        renderer = check_renderer(rt.settings)
    except SettingsError:
        return RenderFault("the renderer could not be loaded")
    if renderer is None:
        return RenderFault(f"{SETTING} is not set, and the message asks for it")
    try:
        made = renderer(payload, recipient)
    except Exception as error:  # noqa: BLE001  (whatever the application raises; its text may hold anything)
        return RenderFault(f"it raised {type(error).__name__}")
    return _checked(made)


def _checked(made: object) -> bytes | RenderFault:
    if not isinstance(made, bytes):
        return RenderFault(f"expected bytes, got {type(made).__name__}")
    if len(made) > PAYLOAD_MAX:
        return RenderFault(f"expected at most {PAYLOAD_MAX} bytes, got {len(made)}")
    return made


@lru_cache(maxsize=4)
def _loaded(name: str) -> Renderer:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001  (an import runs anything)
        raise SettingsError(f"expected {SETTING} to name a function, got {type(error).__name__} from {name}") from None
    if not callable(found):
        raise SettingsError(f"expected {SETTING} to name a function, got {name}, which cannot be called")
    renderer: Renderer = found
    return renderer
