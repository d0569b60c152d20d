"""One turn of the seal keys: from which version to which; a run of ``reseal-auth`` has it as its filter."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pushops.errors import RefusedError

_KEY: Final = re.compile(r"([0-9]{1,5})>([0-9]{1,5})")


@dataclass(frozen=True)
class Turn:
    """What is sealed with ``source`` is to be sealed with ``target``."""

    source: int
    target: int

    def key(self) -> str:
        return f"{self.source}>{self.target}"

    @classmethod
    def from_key(cls, key: str) -> Self:
        """Raises RefusedError."""
        found = _KEY.fullmatch(key)
        if found is None or found[1] == found[2]:
            raise RefusedError("expected two versions of the seal key, old and new: pushops keys seal roll names them")
        return cls(int(found[1]), int(found[2]))


def filtered(key: str) -> Mapping[str, Any]:
    """A run's filter as parameters of the predicate."""
    return {"source": Turn.from_key(key).source}


def admits(key: str) -> None:
    Turn.from_key(key)
