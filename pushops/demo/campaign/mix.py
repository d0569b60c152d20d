"""What the push service answers to whom: shares of the endpoints by a stable hash, so that every number is known."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from pushops.sandbox.push import PushService

AS_USUAL: Final = "as-usual"
SOON: Final = {"Retry-After": "1"}


@dataclass(frozen=True)
class Part:
    """A share of the endpoints and what they are answered, in the words of the sandbox's scripts."""

    fate: str
    share: float
    script: Mapping[str, Any]


@dataclass(frozen=True)
class Mix:
    """Disjoint shares. ``name`` salts the hash that chooses, so that two mixes have nothing to do with each other."""

    name: str
    parts: Sequence[Part]

    def chosen(self, service: PushService, endpoints: Sequence[str]) -> dict[str, list[str]]:
        """Whom each fate will meet."""
        struck = service.chosen(endpoints, salt=self.name, share=sum(part.share for part in self.parts))
        return {
            part.fate: service.chosen(struck, salt=self.name, share=part.share, start=start)
            for part, start in self._placed()
        }

    def begin(self, service: PushService, chosen: Mapping[str, Collection[object]]) -> None:
        """Set the scripts. A fault strikes as many requests as were chosen for it, since it has no second answer."""
        for part, start in self._placed():
            where = {"salt": self.name, "share": part.share, "start": start}
            times = {"times": len(chosen[part.fate])} if "fault" in part.script else {}
            service.script(self._script(part.fate), **part.script, **where, **times)

    def end(self, service: PushService, *, but: Sequence[str] = ()) -> None:
        for part in self.parts:
            if part.fate not in but:
                service.clear(self._script(part.fate))

    def _placed(self) -> Iterator[tuple[Part, float]]:
        return zip(self.parts, accumulate((part.share for part in self.parts), initial=0.0), strict=False)

    def _script(self, fate: str) -> str:
        return f"{self.name} {fate}"


# A bad day, on which nothing is wrong with the push service as a whole.
DAY: Final = Mix(
    "day",
    (
        Part("gone", 0.02, {"answers": ["*-410"]}),
        Part("not_found", 0.01, {"answers": ["*-404"]}),
        Part("throttled", 0.02, {"answers": [{"status": 429, "headers": SOON}, AS_USUAL]}),
        Part("unavailable", 0.02, {"answers": [{"status": 503, "headers": SOON}, AS_USUAL]}),
        Part("too_large", 0.005, {"answers": ["*-413"]}),
        # Accepted, and the answer is lost: nobody can know, so it is tried again.
        Part("reset", 0.005, {"fault": "rst_stream", "accept": True}),
    ),
)
# An outage that begins: not yet more deaths than one could believe.
DAWN: Final = Mix(
    "dawn",
    (
        Part("gone", 0.06, {"answers": ["*-410"]}),
        Part("not_found", 0.06, {"answers": ["*-404"]}),
    ),
)
OUTAGE: Final = "all-404-410"
# What is true of its subscriptions the push service goes on saying; the rest was that day's.
LASTING: Final = ("gone", "not_found")
CUTS: Final = 3  # whole connections, with whatever was on its way over them
CUT_HOST: Final = "fcm.googleapis.com"


def cut_connections(service: PushService) -> None:
    """Reset the next connections to one push service after a request was read and accepted."""
    service.script("cut", host=CUT_HOST, fault="reset", accept=True, times=CUTS)


def mend_connections(service: PushService) -> None:
    service.clear("cut")
