"""All sweeps that there are: those of pushops, and those of the settings."""

from collections.abc import Iterator, Mapping

from pushops.retention.own.service import own_sweep
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sweep import Sweep


class Catalog(Mapping[str, Sweep]):
    """Sweeps by name. One of a table of yours is looked up when it is asked for, which may raise RefusedError."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._own: dict[str, Sweep] = {}

    def __getitem__(self, name: str) -> Sweep:
        if name in SWEEPS:
            return SWEEPS[name]
        if name not in self._own:
            if name not in self._rt.settings.sweeps:
                raise KeyError(name)
            self._own[name] = own_sweep(self._rt, name)
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        return name in SWEEPS or name in self._rt.settings.sweeps

    def __iter__(self) -> Iterator[str]:
        return iter(names(self._rt.settings))

    def __len__(self) -> int:
        return len(names(self._rt.settings))


def catalog(rt: Runtime) -> Catalog:
    """As the settings and the database have them now: make one for each task, not one for a process."""
    return Catalog(rt)


def names(settings: Settings) -> list[str]:
    """What sweeps are called, with no look at the database."""
    return list(dict.fromkeys((*SWEEPS, *settings.sweeps)))
