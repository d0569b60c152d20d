"""What an answer means, in words that the settling acts on. The table has the same words."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Outcome(StrEnum):
    """What became of this attempt."""

    ACCEPTED = "accepted"
    DROPPED = "dropped"  # taken by HTTP and thrown away (WNS)
    GONE = "gone"
    NOT_FOUND = "not_found"
    MISMATCH = "mismatch"  # signed with another key than the subscription was made with
    THROTTLED = "throttled"
    AMBIGUOUS = "ambiguous"  # may have been accepted
    UNAVAILABLE = "unavailable"  # the push service failed
    UNREACHABLE = "unreachable"  # the network failed
    REFUSED = "refused"  # this message will never be taken
    DENIED = "denied"  # our keys or our configuration
    BAD_KEYS = "bad_keys"  # the subscription's own keys


class Scope(StrEnum):
    """Whose fault it is."""

    SUB = "sub"
    MSG = "msg"
    CFG = "cfg"
    SVC = "svc"
    NET = "net"
    NONE = "none"


class Lifecycle(StrEnum):
    """What it does to the subscription, if the evidence still applies."""

    SUCCESS = "success"
    VOTE = "vote"
    REVOKE = "revoke"
    MISMATCH = "mismatch"  # the key-mismatch rule: blocks the row, or counts towards a hold
    DEVICE_LIMIT = "device_limit"  # remember what this device takes
    BAD_KEYS = "bad_keys"  # send_block
    NONE = "none"


class Retry(StrEnum):
    NO = "no"
    BACKOFF = "backoff"
    AFTER = "after"  # when Retry-After says; without it the row's wait, else our own backoff
    AT_ONCE = "at_once"  # on a new connection; backoff when it answers the same again
    RESIGN = "resign"  # once at once with a fresh token, then as hold
    HOLD = "hold"  # backoff until the lane is held; held rows wait without spending attempts
    AMBIGUOUS = "ambiguous"  # as the message's on_ambiguous says


class Dead(StrEnum):
    """What is parked when it ends here."""

    NO = "no"
    POISON = "poison"  # now
    EXHAUSTED = "exhausted"  # when the attempts or the time are spent
    HOLD_ROW = "hold_row"  # one record of the lane with a count, no letters


@dataclass(frozen=True, slots=True)
class Verdict:
    """``row``: the id of the table's row. ``known``: False if the answer gave a reason that no row knows (count it).

    ``code``: the error code, such as ``errno_110``, ``http_400`` or ``dns``. ``wait``: for ``after`` the wait without a
    Retry-After, for ``backoff`` the shortest wait. ``most``: how many retries this row allows, None for the budget.
    """

    row: str
    known: bool
    outcome: Outcome
    code: str
    scope: Scope
    lifecycle: Lifecycle
    retry: Retry
    wait: timedelta | None
    most: int | None
    dead: Dead
    meaning: str
