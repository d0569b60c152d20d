"""What the caller wants posted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One POST. ``endpoint`` goes out byte for byte; ``host`` is its host; ``tag`` is the caller's and comes back."""

    endpoint: str = field(repr=False)
    host: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    tag: T
