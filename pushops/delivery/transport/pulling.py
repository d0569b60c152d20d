"""The caller's requests, pulled one by one, with an end that is clean whatever they raise."""

import time
from collections.abc import Iterator
from typing import Generic, TypeVar

from pushops.delivery.transport.request import Request

T = TypeVar("T")


class Source(Generic[T]):
    """``open``: there may be more; ``willing``: there may be more at once; ``stopped``: its time is over."""

    def __init__(self, requests: Iterator[Request[T] | None], stop_at: float) -> None:
        self.open = True
        self.willing = True
        self._requests = requests
        self._stop_at = stop_at
        self._error: Exception | None = None

    @property
    def stopped(self) -> bool:
        return time.monotonic() >= self._stop_at

    def take(self, most: int) -> Iterator[Request[T]]:
        """Up to so many, fewer where the source has no more at the moment."""
        for _ in range(most):
            request = self._next()
            if request is None:
                return
            yield request

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _next(self) -> Request[T] | None:
        if not self.open or self.stopped:
            self.open = self.willing = False
            return None
        try:
            request = next(self._requests)
        except StopIteration:
            self.open, request = False, None
        except Exception as error:  # noqa: BLE001  (the caller's; raised again when what is out has been answered)
            self.open, request, self._error = False, None, error
        self.willing = request is not None
        return request
