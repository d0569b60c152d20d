"""The lifecycle, in one table: which event moves a row from which state to which, and why.

The table gives the SQL its guards, the documentation its chart and the tests every pair, edges and non-edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypedDict


class State(StrEnum):
    """``expired`` and ``revoked`` are ends: such a row is a tombstone."""

    PENDING = "pending"
    ACTIVE = "active"
    STALE = "stale"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Event(StrEnum):
    REGISTERED = "registered"
    TOUCHED = "touched"
    ACCEPTED = "accepted"
    GONE = "gone"
    VOTE = "vote"
    VOTED_OUT = "voted_out"
    UNSUBSCRIBED = "unsubscribed"
    ROTATED_AWAY = "rotated_away"
    RETIRED = "retired"
    ERASED = "erased"
    QUIET = "quiet"
    AGED_OUT = "aged_out"
    UNDONE = "undone"
    TURNED_BACK = "turned_back"


@dataclass(frozen=True)
class Edge:
    """Where an event leads. With a second target the row itself decides; ``why`` says by what."""

    targets: tuple[State, ...]
    why: str


_P, _A, _S, _E, _R = State.PENDING, State.ACTIVE, State.STALE, State.EXPIRED, State.REVOKED

LIVE: Final = (_P, _A, _S)
ENDED: Final = (_E, _R)
INITIAL: Final = _P

_BEFORE: Final = Edge(LIVE, "an operator found the evidence wrong: back to the state before the end")
_STOPPED: Final = Edge((_R,), "a person's word outlives ours: undo must not bring this row back")
_ERASED: Final = Edge((_R,), "its person is to be forgotten: sent to no more, then deleted")
_CAME_BACK: Final = Edge((_P,), "the browser came back; the next success proves the row")

EDGES: Final[Mapping[tuple[State, Event], Edge]] = {
    (_P, Event.REGISTERED): Edge((_P,), "posted again, still unproven"),
    (_A, Event.REGISTERED): Edge((_A,), "a re-post never downgrades what a success has proven"),
    (_S, Event.REGISTERED): _CAME_BACK,
    (_E, Event.REGISTERED): _CAME_BACK,
    (_R, Event.REGISTERED): _CAME_BACK,
    (_P, Event.TOUCHED): Edge((_P,), "seen, which proves the browser but not the way to it"),
    (_A, Event.TOUCHED): Edge((_A,), "seen"),
    (_S, Event.TOUCHED): Edge((_A, _P), "seen again: active if it ever had a success, else pending"),
    (_P, Event.ACCEPTED): Edge((_A,), "the push service took a message"),
    (_A, Event.ACCEPTED): Edge((_A,), "the push service took a message"),
    (_S, Event.ACCEPTED): Edge((_A,), "the push service took a message"),
    (_P, Event.GONE): Edge((_R,), "the push service says that it is gone"),
    (_A, Event.GONE): Edge((_R,), "the push service says that it is gone"),
    (_S, Event.GONE): Edge((_R,), "the push service says that it is gone"),
    (_P, Event.VOTE): Edge((_P,), "one not-found may be the push service's fault"),
    (_A, Event.VOTE): Edge((_A,), "one not-found may be the push service's fault"),
    (_S, Event.VOTE): Edge((_S,), "one not-found may be the push service's fault"),
    (_P, Event.VOTED_OUT): Edge(
        (_R,), "the last of PUSHOPS_VOTES not-founds, far enough apart, without a success between"
    ),
    (_A, Event.VOTED_OUT): Edge(
        (_R,), "the last of PUSHOPS_VOTES not-founds, far enough apart, without a success between"
    ),
    (_S, Event.VOTED_OUT): Edge(
        (_R,), "the last of PUSHOPS_VOTES not-founds, far enough apart, without a success between"
    ),
    (_P, Event.UNSUBSCRIBED): Edge((_R,), "a person asked for it"),
    (_A, Event.UNSUBSCRIBED): Edge((_R,), "a person asked for it"),
    (_S, Event.UNSUBSCRIBED): Edge((_R,), "a person asked for it"),
    (_E, Event.UNSUBSCRIBED): _STOPPED,
    (_R, Event.UNSUBSCRIBED): _STOPPED,
    (_P, Event.ROTATED_AWAY): Edge((_R,), "the browser replaced it"),
    (_A, Event.ROTATED_AWAY): Edge((_R,), "the browser replaced it"),
    (_S, Event.ROTATED_AWAY): Edge((_R,), "the browser replaced it"),
    (_E, Event.ROTATED_AWAY): Edge((_R,), "the browser replaced it: undo must not bring it back beside its heir"),
    (_R, Event.ROTATED_AWAY): Edge((_R,), "the browser replaced it: undo must not bring it back beside its heir"),
    (_P, Event.RETIRED): Edge((_R,), "over the limit of live subscriptions per user, and seen the longest ago"),
    (_A, Event.RETIRED): Edge((_R,), "over the limit of live subscriptions per user, and seen the longest ago"),
    (_P, Event.ERASED): _ERASED,
    (_A, Event.ERASED): _ERASED,
    (_S, Event.ERASED): _ERASED,
    (_E, Event.ERASED): _ERASED,
    (_R, Event.ERASED): _ERASED,
    (_A, Event.QUIET): Edge((_S,), "neither seen nor a success for the stale window"),
    (_S, Event.AGED_OUT): Edge((_E,), "stale, and quiet for the expiry window too"),
    (_P, Event.AGED_OUT): Edge((_E,), "never proven within the window from its registration"),
    (_E, Event.UNDONE): _BEFORE,
    (_R, Event.UNDONE): _BEFORE,
    (_R, Event.TURNED_BACK): Edge(LIVE, "the guard opened on the answers of this hour: back to before them"),
}

# What the row and its consent period say of an end. "user_limit" is our own rule, the others speak for themselves.
END_REASON: Final[Mapping[Event, str]] = {
    Event.GONE: "gone",
    Event.VOTED_OUT: "voted_out",
    Event.UNSUBSCRIBED: "unsubscribed",
    Event.ROTATED_AWAY: "rotated",
    Event.RETIRED: "user_limit",
    Event.AGED_OUT: "aged_out",
    Event.ERASED: "erased",
}
# Ends that push-service evidence or ageing brought about: the only ones that may be taken back.
UNDOABLE: Final = tuple(END_REASON[event] for event in (Event.GONE, Event.VOTED_OUT, Event.AGED_OUT))


class Moves(TypedDict):
    """An event's edges as SQL parameters: three arrays of one length, to look a row's state up in."""

    sources: list[str]
    targets: list[str]
    otherwise: list[str]


def moves(event: Event) -> Moves:
    """``targets`` holds the first target of each edge and ``otherwise`` its second, or the first again."""
    edges = [(source, edge.targets) for (source, found), edge in EDGES.items() if found is event]
    return Moves(
        sources=[str(source) for source, _ in edges],
        targets=[str(targets[0]) for _, targets in edges],
        otherwise=[str(targets[min(1, len(targets) - 1)]) for _, targets in edges],
    )


def chart() -> str:
    """The table as a Mermaid state diagram; events that lead to the same place share an arrow."""
    arrows: dict[tuple[State, State], list[Event]] = {}
    for (source, event), edge in EDGES.items():
        for target in edge.targets:
            arrows.setdefault((source, target), []).append(event)
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {INITIAL}: {Event.REGISTERED}", *lines])


def document() -> str:
    """docs/lifecycle.md."""
    rows = [
        f"| {source} | {event} | {' or '.join(edge.targets)} | {edge.why} |" for (source, event), edge in EDGES.items()
    ]
    head = ["# Lifecycle of a subscription", "", "Printed from `pushops/subscriptions/lifecycle.py`; a test compares."]
    table = ["| state | event | leads to | because |", "|---|---|---|---|", *rows]
    ends = ["| event | end reason | can be undone |", "|---|---|---|"]
    ends += [f"| {event} | `{reason}` | {_yes(reason in UNDOABLE)} |" for event, reason in END_REASON.items()]
    return "\n".join([*head, "", "```mermaid", chart(), "```", "", *table, "", *ends, ""])


def _yes(value: object) -> str:
    return "yes" if value else "no"
